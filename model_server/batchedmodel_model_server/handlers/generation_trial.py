"""Whether a model generates step by step what it computes in one pass: tried when it is loaded.

What a model does beside attention is not known here: it may look at neighbours by a convolution,
keep a state, or turn its positions by the length of the longest text. So two texts of random tokens
are computed over a cache, in parts that share steps, and compared with the model's own plain pass.
One text reaches beyond each attention window. Where tables of positions may be switched, tokens on
both sides of that place are tried.

In halves the rounding of a sound model is as large as what a wrong scale or a missing cap changes.
So a CPU computes both in float32, of the weights as they are (`in_float32`). How much rounding
matters to a model is what passes of its own over more or less of a text differ by.
"""

from __future__ import annotations  # array.array takes no type argument at run time

import logging
import math
import random
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from batchedmodel_contract.generation.frames import Sampling
from batchedmodel_model_server.api.generator import Draw, StepPart
from batchedmodel_model_server.errors import CannotLoad, DeviceLost, translated
from batchedmodel_model_server.generation.paged_attention import LayerShape, Terms
from batchedmodel_model_server.generation.torch_runner import TorchRunner

TOLERANCES: Final = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}
"""Of the mean difference between two scores, as a share of the mean score, at least."""
_TIMES: Final = 10
"""Such a difference is borne of so many times what the model's own passes differ by. Over more and
less of a text they differ by a third of what a pass by another attention does."""
_SHORT: Final = (40, 1, 19, 1, 1, 10)
_OTHER: Final = (0, 21, 1, 12, 1, 1)
_BEYOND: Final = 24
"""Tokens on each side of a bound."""
_SECONDS: Final = 60.0
"""For a long text that nobody asked for by `maxContextTokens`."""
_log = logging.getLogger(__name__)

Plain = Callable[[Any, Any, Any], Any]
"""Ids and positions (1 x tokens) and whose scores are wanted, to 1 x these x vocabulary."""


class Layer(NamedTuple):
    """What a model's layer asked of its attention."""

    shape: LayerShape
    terms: Terms
    dtype: Any


class Discovery:
    """Attention over one short text, which notes what each layer asks for."""

    def __init__(self) -> None:
        self.layers: Final[list[Layer]] = []

    def attend(self, query: Any, key: Any, value: Any, terms: Terms) -> Any:
        """1 x heads x tokens x size in, 1 x tokens x heads x size out."""
        from torch.nn.functional import scaled_dot_product_attention

        shape = LayerShape(key.shape[1], key.shape[3], value.shape[3])
        self.layers.append(Layer(shape, terms, key.dtype))
        found = scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=terms.scaling, enable_gqa=True
        )
        return found.transpose(1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How a model is tried."""

    runner: TorchRunner
    """Over a cache with room for the longest text of `longest`, and a short one."""
    plain: Plain
    """The model's own pass without a cache, by its own attention."""
    device: str
    vocabulary: int
    tolerance: float

    def short(self) -> None:
        """Two short texts that share steps; raises `CannotLoad`."""
        self._compare("short texts", _SHORT, _OTHER)

    def beyond(self, window: int) -> None:
        """A text that is longer than what some layers see of it; raises `CannotLoad`."""
        half = window // 2 + 1
        what = f"a text longer than its window of {window} tokens"
        self._compare(what, (half, window - half, 1, _BEYOND, 1, 1))

    def across(self, switch: int) -> bool:
        """Whether tokens on both sides of this place in one text get the same scores."""
        difference = self._difference([(_BEYOND, _BEYOND)], switch - _BEYOND)
        _log.info("positions around %d, step by step: scores within %.1e", switch, difference)
        return self._is_rounding(difference)

    def _is_rounding(self, difference: float) -> bool:
        """Whether the model's own rounding is as large; raises `CannotLoad`."""
        if difference <= self.tolerance:
            return True
        ids = self._ids(sum(_SHORT), 0)
        lengths = (1, 2, 8, 40, len(ids))
        with _computing():
            whole = self._in_one_pass(ids, [length - 1 for length in lengths])
            parts = [self._in_one_pass(ids[:n], [n - 1])[0] for n in lengths]
            return difference <= _TIMES * _apart(parts, whole)

    def seconds(self, tokens: int) -> float:
        """That so many more tokens take in one pass, but for their attention, at most."""
        ids, taken = self._ids(sum(_SHORT), 0), list[float]()
        with _computing():
            for count in (1, len(ids)):
                began = time.monotonic()
                self._in_one_pass(ids[:count], [0]).tolist()
                taken.append(time.monotonic() - began)
        return max(0.0, taken[1] - taken[0]) / (len(ids) - 1) * tokens

    def _compare(self, what: str, *texts: Sequence[int]) -> None:
        difference = self._difference(texts)
        _log.info("%s, step by step: scores within %.1e", what, difference)
        if not self._is_rounding(difference):
            raise CannotLoad(
                f"the model cannot generate: {what} get other scores step by step than in one "
                f"pass, by {difference:.2g} of their mean; something beside full and sliding "
                "attention sees other tokens, such as a convolution or a state"
            )

    def _difference(self, texts: Sequence[Sequence[int]], offset: int = 0) -> float:
        """The mean between our scores and those of one pass, as a share of the mean score.

        `texts`: how many tokens of each are computed in each step. Raises `CannotLoad`.
        """
        drawn = [self._ids(sum(counts), seed) for seed, counts in enumerate(texts)]
        with _computing():
            ours = self._stepped(drawn, texts, offset)
            found = [
                _apart(list(rows), self._in_one_pass(ids, places, offset))
                for ids, (places, rows) in zip(
                    drawn, (zip(*one, strict=True) for one in ours), strict=True
                )
            ]
        if not all(map(math.isfinite, found)):
            raise CannotLoad("the model cannot generate: its scores are not finite, or all zero")
        return max(found)

    def _stepped(
        self, drawn: Sequence[array[int]], texts: Sequence[Sequence[int]], offset: int
    ) -> list[list[tuple[int, Any]]]:
        """For each text the scores behind each part: the place of its last token, and a row."""
        runner = self.runner
        found: list[list[tuple[int, Any]]] = [[] for _ in texts]
        free = list(range(runner.blocks))
        tables = [[free.pop() for _ in range(-(-len(ids) // runner.block_tokens))] for ids in drawn]
        starts = [0] * len(texts)
        for counts in zip(*texts, strict=True):
            parts = {
                at: StepPart(
                    drawn[at][starts[at] : starts[at] + count],
                    starts[at],
                    tables[at],
                    [Draw(Sampling(), 0, drawn[at], 0)],
                )
                for at, count in enumerate(counts)
                if count
            }
            rows = runner.logits(list(parts.values()), offset)
            for at, row in zip(parts, rows, strict=True):
                starts[at] += counts[at]
                found[at].append((starts[at] - 1, row))
        return found

    def _in_one_pass(self, ids: array[int], places: Iterable[int], offset: int = 0) -> Any:
        import torch

        given = torch.tensor(ids, dtype=torch.long, device=self.device)[None]
        positions = torch.arange(len(ids), device=self.device)[None] + offset
        with torch.inference_mode():
            return self.plain(given, positions, torch.tensor([*places], device=self.device))[0]

    def _ids(self, count: int, seed: int) -> array[int]:
        drawn = random.Random(seed)
        return array("i", [drawn.randrange(self.vocabulary) for _ in range(count)])


@contextmanager
def _computing() -> Iterator[None]:
    """Within it torch's errors become `CannotLoad` and `DeviceLost`."""
    try:
        yield
    except BaseException as error:
        failure = translated(error)
        if isinstance(failure, DeviceLost):
            raise failure from error
        raise CannotLoad(f"the model cannot generate: {failure}") from error


def _apart(ours: Sequence[Any], theirs: Any) -> float:
    import torch

    theirs = theirs.float()
    return float((torch.stack(list(ours)).float() - theirs).abs().mean() / theirs.abs().mean())


@contextmanager
def in_float32() -> Iterator[None]:
    """Within it models with weights in halves compute in float32.

    A module's own weights are wide while it computes, so that the model is not there twice. Of an
    embedding's few are needed: its vectors become wide instead.
    """
    from torch import bfloat16, float16
    from torch.nn import Embedding
    from torch.nn.modules import module as every_module

    narrow: dict[Any, Any] = {}

    def widen(module: Any, _: Any) -> None:
        for weight in () if isinstance(module, Embedding) else module.parameters(recurse=False):
            if weight.dtype in (bfloat16, float16):
                narrow[weight], weight.data = weight.data, weight.data.float()

    def narrow_again(module: Any, _: Any, output: Any) -> Any:
        for weight in module.parameters(recurse=False):
            weight.data = narrow.pop(weight, weight.data)
        return output.float() if isinstance(module, Embedding) else output

    before = every_module.register_module_forward_pre_hook(widen)
    behind = every_module.register_module_forward_hook(narrow_again)
    with before, behind:
        yield


def longest(windows: Iterable[int], context: int) -> int:
    """Tokens of the longest text of a trial with these windows."""
    reached = [window + _BEYOND + 3 for window in windows if window + _BEYOND + 3 <= context]
    return max([sum(_SHORT), *reached])


def tried(
    trial: Trial, windows: Iterable[int], switches: Iterable[int], context: int, *, asked: bool
) -> tuple[int, str]:
    """Up to how many tokens a model generates what it computes in one pass, and why no more.

    The tokens are of a prompt and its text; the reason is empty where they are as many as wanted.
    `context`: as many as are wanted; `asked`: somebody named it, so that it is tried however long
    that takes. Raises `CannotLoad` where the model cannot generate at all.
    """
    began, why = time.monotonic(), ""
    trial.short()
    took = time.monotonic() - began
    for window in sorted(windows):
        count = window + _BEYOND + 3
        if count > context:
            continue
        expected = took + trial.seconds(2 * count)  # step by step, and in one pass
        if expected > _SECONDS and not asked:
            why = f"trying one beyond the window of {window} would take {expected:.0f} s here"
            context = window
            break
        trial.beyond(window)
    for switch in sorted(switches):
        if switch <= _BEYOND or switch + _BEYOND > context:
            continue
        if not trial.across(switch):
            why = f"the model's tables of positions change behind {switch}, also for tokens before"
            return switch, why
    return context, why
