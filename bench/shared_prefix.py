"""What a beginning that many prompts share costs once the cache has it.

Prompts of 2,000 shared tokens and 50 of their own come one by one to our own engine, with a random
Llama of 32 million numbers in float32 on the CPU. Some find the beginning in the cache, others have
another beginning of the same length. Called by `adapters`.
"""

import random
import tempfile
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bare_engine import engine_of, loaded
from batchedmodel_contract.generation.frames import Sampling, Submit
from bench_report import Figure, at_most, of_rounds, tell
from engine_rivals import MODEL
from support.random_checkpoints import generating_checkpoint

_SHARED: Final = 2000
_OWN: Final = 50
_MOST_SHARE: Final = 0.2
_QUICK_ROUNDS: Final = 3
_ROUNDS: Final = 7
_LONGER: Final = {**MODEL, "max_position_embeddings": 4096}


def prefix_figures(*, quick: bool) -> list[Figure]:
    """The first token with the cache over without it."""
    tell("prompts that share their beginning")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        times = _times(generating_checkpoint(Path(name), "Llama", **_LONGER), quick=quick)
    name = f"prompts of {_SHARED} shared tokens and {_OWN} of their own: first token"
    return [
        of_rounds(
            lambda value: at_most(f"{name}, cached over not", value, "", _MOST_SHARE),
            [found / other for found, other in times],
        ),
        of_rounds(
            lambda value: Figure(name=f"{name}, cached", value=value, unit="ms"),
            [1e3 * found for found, _ in times],
        ),
    ]


def _times(checkpoint: Path, *, quick: bool) -> list[tuple[float, float]]:
    """Seconds until the first token of a prompt that the cache has, and of one that it has not."""
    engine = _Asked(checkpoint)
    rng = random.Random(100)

    def drawn(length: int) -> list[int]:
        return [rng.randrange(_LONGER["vocab_size"]) for _ in range(length)]

    shared = drawn(_SHARED)
    engine.first_token([*shared, *drawn(_OWN)])
    found = []
    for number in range(_QUICK_ROUNDS if quick else _ROUNDS):
        prompts = [[*shared, *drawn(_OWN)], drawn(_SHARED + _OWN)]
        order = (0, 1) if number % 2 == 0 else (1, 0)
        seconds = {at: engine.first_token(prompts[at]) for at in order}
        found.append((seconds[0], seconds[1]))
    return found


class _Asked:
    """An engine that has one request at a time."""

    def __init__(self, checkpoint: Path) -> None:
        self._engine = engine_of(loaded(checkpoint))
        self._number = 0

    def first_token(self, prompt: Sequence[int]) -> float:
        """Seconds until it."""
        self._number += 1
        greedy = Sampling(temperature=0.0)
        began = time.perf_counter()
        self._engine.submit(
            Submit(id=self._number, ids=array("i", prompt), max_tokens=1, sampling=greedy), 0.0
        )
        while self._engine.busy:
            self._engine.step(0.0)
            report, refused = self._engine.take(0.0)
            if refused:
                raise AssertionError(f"refused: {refused}")
            if report.tokens:
                return time.perf_counter() - began
        raise AssertionError("no token came")
