"""Our engine over the model of a random checkpoint, against what transformers offers for it.

Called by `generation.py`. A Llama of 32 million random numbers in float32 on the CPU. Rivals are
transformers' own continuous batching, static batches that are padded on the left and run to their
longest text, and one text after the other. Prompts are drawn evenly. Lengths of texts are drawn
evenly too, but for their logarithms: most are short and some long, as in chats. Every engine gives
each text the same number of tokens. Rounds go in turns, and a ratio is the median of the ratios of
single rounds, so that what slows the machine down for a while slows down both.
"""

import math
import os
import random
import sys
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bare_engine import TOKENS_PER_STEP, engine_of, loaded
from batchedmodel_contract.generation.frames import Sampling, Submit
from bench_report import Figure, at_least, of_rounds, tell
from model_server import IMAGE, malloc_settings
from support.random_checkpoints import generating_checkpoint, reference

_VOCABULARY: Final = 8192
MODEL: Final[Mapping[str, Any]] = {
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1408,
    "vocab_size": _VOCABULARY,
    "max_position_embeddings": 2048,
    "initializer_range": 0.05,
}
_BATCH: Final = 16
_OURS: Final = "ours"
_CONTINUOUS: Final = "transformers' continuous batching"
_STATIC: Final = "static batches of 16"
_ALONE: Final = "one by one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Texts that are asked for at once."""

    name: str
    prompts: Sequence[Sequence[int]]
    tokens: Sequence[int]
    """That each of them gets."""
    goals: Mapping[str, float]
    """How many times a rival's rate ours should be."""

    @property
    def total(self) -> int:
        """Tokens of all texts."""
        return sum(self.tokens)


def loads(*, quick: bool) -> tuple[Load, ...]:
    """What is measured; always the same. A quick run leaves out long prompts and slow rivals."""
    rng = random.Random(11)

    def prompts(count: int, least: int, most: int) -> list[list[int]]:
        lengths = [rng.randint(least, most) for _ in range(count)]
        return [[rng.randrange(4, _VOCABULARY) for _ in range(n)] for n in lengths]

    short = {_CONTINUOUS: 1.6, _STATIC: 2.4, _ALONE: 4.5}
    every = (
        Load(
            name="48 at once, prompts 16..160",
            prompts=prompts(48, 16, 160),
            tokens=[round(math.exp(rng.uniform(math.log(4), math.log(160)))) for _ in range(48)],
            goals={_CONTINUOUS: short[_CONTINUOUS]} if quick else short,
        ),
        Load(
            name="16 at once, prompts 600..1000",
            prompts=prompts(16, 600, 1000),
            tokens=[48] * 16,
            goals={_CONTINUOUS: 2.5},
        ),
    )
    return every[:1] if quick else every


def restart_as_in_image() -> None:
    """Run this program anew with the image's settings of memory, unless it has any."""
    if (name := "GLIBC_TUNABLES") in os.environ:
        return
    # Both are read when a process starts. Threads that spin while they wait would hold up those
    # of other programs, which then hold up these.
    os.environ[name] = malloc_settings(IMAGE.read_text("utf-8"))
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.execv(sys.executable, [sys.executable, *sys.argv])


class Contest:
    """One checkpoint in all engines."""

    def __init__(self, folder: Path) -> None:
        generating_checkpoint(folder, "Llama", **MODEL)
        self._generator: Final = loaded(folder)
        self._model: Final[Any] = reference(folder)
        self._engines: Final[Mapping[str, Callable[[Load], object]]] = {
            _OURS: self._ours,
            _CONTINUOUS: self._continuous,
            _STATIC: self._static,
            _ALONE: self._alone,
        }

    def rate(self, name: str, load: Load) -> float:
        """Tokens a second that this engine gives."""
        began = time.perf_counter()
        self._engines[name](load)
        return load.total / (time.perf_counter() - began)

    def _ours(self, load: Load) -> None:
        engine = engine_of(self._generator, sequences=len(load.prompts))
        for number, (prompt, count) in enumerate(zip(load.prompts, load.tokens, strict=True)):
            greedy = Sampling(temperature=0.0)
            ids = array("i", prompt)
            engine.submit(Submit(id=number, ids=ids, max_tokens=count, sampling=greedy), 0.0)
        given = 0
        while engine.busy:
            engine.step(0.0)
            report, refused = engine.take(0.0)
            assert not refused
            given += len(report.tokens)
        assert given == load.total

    def _continuous(self, load: Load) -> None:
        """By its manager, as each text has a length of its own; with room for all of them."""
        from transformers import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        longest = max(map(len, load.prompts)) + max(load.tokens)
        page = 32
        config = ContinuousBatchingConfig(
            page_size=page,
            num_blocks=(longest // page + 2) * len(load.prompts),
            max_batch_tokens=TOKENS_PER_STEP,
            max_requests_per_batch=len(load.prompts),
        )
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        given = 0
        with self._model.continuous_batching_context_manager(
            generation_config=greedy, continuous_batching_config=config, block=True
        ) as manager:
            for prompt, count in zip(load.prompts, load.tokens, strict=True):
                manager.add_request(list(prompt), max_new_tokens=count)
            for _ in load.prompts:
                result = manager.get_result(timeout=300)
                given += len(result.generated_tokens)
        assert given == load.total

    def _static(self, load: Load) -> None:
        """As they come; each batch goes on until its longest text is there."""
        texts = list(zip(load.prompts, load.tokens, strict=True))
        for begin in range(0, len(texts), _BATCH):
            batch = texts[begin : begin + _BATCH]
            self._generate([prompt for prompt, _ in batch], max(count for _, count in batch))

    def _alone(self, load: Load) -> None:
        for prompt, count in zip(load.prompts, load.tokens, strict=True):
            self._generate([prompt], count)

    def _generate(self, prompts: Sequence[Sequence[int]], count: int) -> None:
        import torch

        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=count,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )


def measure_rivals(rounds: int, *, quick: bool) -> list[Figure]:
    """Ours over each rival, and the rates themselves."""
    figures = []
    with TemporaryDirectory() as folder:
        contest = Contest(Path(folder))
        for load in loads(quick=quick):
            rates: dict[str, list[float]] = {name: [] for name in (_OURS, *load.goals)}
            for number in range(rounds):
                for name, found in rates.items():
                    found.append(contest.rate(name, load))
                tell(f"{load.name}, round {number + 1}: {_last(rates)}")
            figures += _figures(load, rates)
    return figures


def _goal(what: str, least: float, value: float) -> Figure:
    return at_least(what, value, "x", least)


def _last(rates: Mapping[str, Sequence[float]]) -> str:
    return ", ".join(f"{name} {found[-1]:.0f}/s" for name, found in rates.items())


def _figures(load: Load, rates: Mapping[str, Sequence[float]]) -> list[Figure]:
    ours = rates[_OURS]
    found = []
    for name, goal in load.goals.items():
        what = f"{load.name}: tokens a second over {name}"
        ratios = [mine / theirs for mine, theirs in zip(ours, rates[name], strict=True)]
        found.append(of_rounds(partial(_goal, what, goal), ratios))
    what = f"{load.name}: tokens a second"
    found.append(of_rounds(lambda value: Figure(name=what, value=value, unit="/s"), ours))
    return found
