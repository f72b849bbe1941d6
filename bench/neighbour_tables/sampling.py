"""What one text's sampling fields do to the steps of the texts beside it.

A Llama of 32 million random numbers with a vocabulary of 151,936 runs in the engine in this
process, float32 on the CPU with one thread, no sockets. 16 texts with temperature 0.7 and `top_p`
0.95 generate all the time. In each round some steps of theirs alone are timed, and then as many
with another text beside them, for each kind of fields; one caller's `n` of 16 counts as 16 texts.
Steps that read prompts are left out. A figure is the ratio of the two medians of a round.

With a checkout from before, random rows and fields are drawn by its `sampling` as well: the same
seeds have to give the same tokens.
"""

import importlib.util
import random
import statistics
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Final

from bare_engine import engine_of, loaded
from batchedmodel_contract.generation.frames import Sampling, Submit
from batchedmodel_model_server.api.generator import Draw, Generator
from batchedmodel_model_server.generation import sampling
from bench_report import Figure, at_least, at_most, of_rounds, tell
from support.random_checkpoints import generating_checkpoint

_VOCABULARY: Final = 151_936
_MODEL: Final[Mapping[str, Any]] = {
    "hidden_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "intermediate_size": 512,
    "vocab_size": _VOCABULARY,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    # Some hundred tokens have 95 % of the probability, as behind real texts.
    "initializer_range": 0.25,
}
_TEXTS: Final = 16
_PROMPT_TOKENS: Final = 48
_LONG_PROMPT_TOKENS: Final = 2000
_MOST_ONE_TEXT: Final = 1.3
_MOST_SIXTEEN_CHOICES: Final = 2.0
_USUAL: Final[Mapping[str, Any]] = {"temperature": 0.7, "top_p": 0.95}
_FLAT: Final[Mapping[str, Any]] = {"temperature": 100.0, "top_p": 0.999}
_PENALTIES: Final[Mapping[str, Any]] = {
    "repetition_penalty": 1.2,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.3,
}
_COSTLIEST: Final[Mapping[str, Any]] = {
    **_FLAT, **_PENALTIES, "top_k": 100_000, "min_p": 1e-6, "logprobs": 20,
}  # fmt: skip
_FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "temperature 0.7, top_p 0.95": _USUAL,
    "temperature 0": {"temperature": 0.0},
    "temperature 100, top_p 0.999": _FLAT,
    "top_k 20": {"top_k": 20},
    "top_k 100,000": {"top_k": 100_000},
    "min_p 0.05": {"min_p": 0.05},
    "20 logprobs": {**_USUAL, "logprobs": 20},
    f"penalties, prompt of {_LONG_PROMPT_TOKENS:,}": {**_USUAL, **_PENALTIES},
    f"all of the costliest, prompt of {_LONG_PROMPT_TOKENS:,}": _COSTLIEST,
}
"""Of the text beside the others. The first one's own step is what any text costs."""
_QUICK: Final = tuple(_FIELDS)[2::6]


def figures(*, quick: bool, before: Path | None) -> list[Figure]:
    """`before`: a checkout whose tokens are compared with those of this one."""
    rounds, steps = (2, 3) if quick else (7, 4)
    kinds = _QUICK if quick else tuple(_FIELDS)
    found: list[Figure] = []
    with _one_thread(), TemporaryDirectory(prefix="sampling-") as folder:
        table = _Table(loaded(generating_checkpoint(Path(folder), "Llama", **_MODEL)), steps)
        alone: list[float] = []
        for kind, choices in [*((kind, 1) for kind in kinds), (kinds[0], 16), (kinds[-1], 16)]:
            tell(f"beside {choices} of {kind}")
            name = f"step of {_TEXTS} texts beside {choices} of {kind}, over alone"
            bound = _MOST_ONE_TEXT if choices == 1 else _MOST_SIXTEEN_CHOICES
            ratios = table.ratios(_FIELDS[kind], rounds, choices=choices, alone=alone)
            found.append(of_rounds(partial(_at_most, name, bound), ratios))
        name, times = f"step of {_TEXTS} texts alone", [1000 * one for one in alone]
        found.append(of_rounds(partial(_reported, name), times))
        if before is not None:
            found += _against(before, quick=quick)
    return found


def _at_most(name: str, bound: float, value: float) -> Figure:
    return at_most(name, value, "x", bound)


def _reported(name: str, value: float) -> Figure:
    return Figure(name=name, value=value, unit="ms")


class _Table:
    """An engine in which 16 texts generate all the time."""

    def __init__(self, generator: Generator, steps: int) -> None:
        self._steps = steps
        self._ids = count()
        self._random = random.Random(3)
        self._engine = engine_of(generator)
        for _ in range(_TEXTS):
            self._submit(_USUAL, _PROMPT_TOKENS, choices=1)

    def ratios(
        self, fields: Mapping[str, Any], rounds: int, *, choices: int, alone: list[float]
    ) -> Iterator[float]:
        """Of each round the time of a step beside the other text over one without it.

        `alone` takes the times of the latter.
        """
        prompt = _LONG_PROMPT_TOKENS if "repetition_penalty" in fields else _PROMPT_TOKENS
        for _ in range(rounds):
            without = self._median(_TEXTS)
            alone.append(without)
            other = self._submit(fields, prompt, choices=choices)
            beside = self._median(_TEXTS + choices)
            self._engine.cancel(other)
            yield beside / without

    def _submit(self, fields: Mapping[str, Any], tokens: int, *, choices: int) -> int:
        number = next(self._ids)
        ids = [self._random.randrange(4, _VOCABULARY) for _ in range(tokens)]
        self._engine.submit(
            Submit(
                id=number,
                ids=array("i", ids),
                max_tokens=2000,
                sampling=Sampling(seed=number, **fields),
                choices=choices,
            ),
            0.0,
        )
        return number

    def _median(self, texts: int) -> float:
        """Seconds of a step once so many texts generate."""
        report, _ = self._engine.take(0.0)
        while len(report.tokens) != texts or report.running != texts or report.backlog:
            self._engine.step(0.0)
            report, _ = self._engine.take(0.0)
        taken = []
        for _ in range(self._steps):
            began = time.perf_counter()
            self._engine.step(0.0)
            taken.append(time.perf_counter() - began)
            report, _ = self._engine.take(0.0)
            if len(report.tokens) != texts:
                raise RuntimeError(f"a step told {len(report.tokens)} tokens instead of {texts}")
        return statistics.median(taken)


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def _against(before: Path, *, quick: bool) -> list[Figure]:
    """Which share of tokens is what another checkout draws of the same rows by the same fields."""
    file = before / "model_server" / f"{sampling.__name__.replace('.', '/')}.py"
    spec = importlib.util.spec_from_file_location("sampling_before", file)
    assert spec is not None
    assert spec.loader is not None
    other = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(other)
    equal, drawn = _equal_draws(other, until=time.monotonic() + (3.0 if quick else 30.0))
    tell(f"{drawn} draws compared")
    return [at_least("tokens equal to those of the checkout from before", equal / drawn, "", 1.0)]


def _equal_draws(other: ModuleType, until: float) -> tuple[int, int]:
    import torch

    rng = random.Random(5)
    torch.manual_seed(5)
    equal = drawn = 0
    while time.monotonic() < until:
        vocabulary = rng.choice([300, 5000, 50_257, _VOCABULARY])
        rows = rng.randint(1, 8)
        logits = torch.randn(rows, vocabulary) * rng.choice([0.3, 1.0, 3.0])
        if rng.random() < 0.3:
            logits = logits.bfloat16()
        draws = [_random_draw(rng) for _ in range(rows)]
        with torch.inference_mode():
            mine, others = sampling.sampled(logits, draws), other.sampled(logits, draws)
        equal += sum(one.token == two.token for one, two in zip(mine, others, strict=True))
        drawn += rows
    return equal, drawn


def _random_draw(rng: random.Random) -> Draw:
    fields: dict[str, Any] = {"temperature": rng.choice([1e-3, 0.3, 0.7, 1.0, 2.0, 100.0])}
    if rng.random() < 0.6:
        fields["top_p"] = rng.choice([0.1, 0.5, 0.9, 0.95, 0.999, rng.random()])
    if rng.random() < 0.5:
        fields["top_k"] = rng.choice([1, 5, 20, 100, 500, 100_000])
    if rng.random() < 0.3:
        fields["min_p"] = rng.choice([1e-4, 0.05, 0.5])
    if rng.random() < 0.3:
        fields["repetition_penalty"] = rng.choice([0.5, 1.1, 2.0])
    ids: Sequence[int] = [rng.randrange(300) for _ in range(20)]
    return Draw(Sampling(seed=rng.getrandbits(63), **fields), rng.randrange(3), array("i", ids), 10)
