"""A generator's first steps: how long they take, and how many tokens fit into one.

Four kinds of steps show the four parts of the cost: one text that goes on, many that do, a part of
a prompt, and one text that goes on behind it. Each is as large as time allows. What no step could
show counts as slow; later steps correct it.
"""

from __future__ import annotations  # array.array takes no type argument at run time

import logging
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Final

from batchedmodel_contract.generation.description import StepBounds
from batchedmodel_contract.generation.frames import Sampling
from batchedmodel_model_server.api.generator import Draw, StepPart, StepRunner
from batchedmodel_model_server.errors import CannotLoad, OutOfMemory, warming_up
from batchedmodel_model_server.execution.device_thread import TrialScheduling
from batchedmodel_scheduling.latency.step_times import StepCost

BUDGET_SECONDS: Final = 10.0
BESIDE_BUDGET_SECONDS: Final = 3.0
"""Where another version serves meanwhile, whose batches and steps wait behind each of these."""
_SAMPLES: Final = 3
_CHEAP_SECONDS: Final = 0.1  # steps below it are sampled more than once: short times are noisy
_PASSES: Final = 2  # of a step at least: the first pays for what later ones find ready
_SHARES: Final = 3  # of the time that is left, one for each kind of step
_LEAST: Final = 0.05
"""Of a step each part of it takes: a part that noise hides from the warm-up is learnt later, and
one of nothing never would be."""
_GREEDY: Final = Sampling(temperature=0.0)
_log = logging.getLogger(__name__)

Turn = Callable[[Callable[[], float]], float]
"""Runs on the compute thread what measures a step."""


def warmed_up(
    runner: StepRunner,
    sizes: StepBounds,
    max_context_tokens: int,
    turns: TrialScheduling | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[StepCost, StepBounds]:
    """What steps cost, and of the sizes what the device's memory holds.

    `turns`: None where this is the compute thread; else another version serves meanwhile. Raises
    `CannotLoad` where a step fails or the smallest does not fit, and `DeviceLost`.
    """
    if turns is None:
        trial = _Trial(runner, lambda measure: measure(), clock, BUDGET_SECONDS)
    else:
        trial = _Trial(runner, turns.take, turns.clock, BESIDE_BUDGET_SECONDS)
    _, one = trial.largest(1, 1, lambda count: [trial.part(0, count)])
    whole = min(sizes.sequences, runner.blocks, trial.affordable(one))
    texts, many = trial.largest(
        whole, 1, lambda count: [trial.part(0, 1, block) for block in range(count)]
    )
    sequences = texts if texts < whole else sizes.sequences
    # Tokens of a prompt cost no more than tokens of as many texts.
    each = (many - one) / (texts - 1) if texts > 1 else one
    room = min(runner.blocks * runner.block_tokens, max_context_tokens) - 1
    whole = max(1, min(sizes.tokens, room, trial.affordable(each)))
    read, prompt = trial.largest(whole, sequences, lambda count: [trial.part(0, count)])
    tokens = read if read < whole else sizes.tokens
    _, behind = trial.largest(1, 1, lambda count: [trial.part(read, count)])
    cost = cost_of(one=one, many=many, texts=texts, prompt=prompt, tokens=read, behind=behind)
    _log.info("a step with one text takes %.2g s: %s", one, cost)
    return cost, StepBounds(sequences, tokens)


def cost_of(
    *, one: float, many: float, texts: int, prompt: float, tokens: int, behind: float
) -> StepCost:
    """The cost by the seconds of steps: with one text that goes on, with so many texts, with so
    many tokens of a prompt, and with one text that goes on behind these."""
    sequence = max(many - one, _LEAST * many) / (texts - 1) if texts > 1 else one / 2
    base = max(one - sequence, _LEAST * one)
    read = max(prompt - base - sequence, _LEAST * prompt) / tokens if tokens > 1 else one
    return StepCost(
        base=base,
        prefill_token=read,
        sequence=sequence,
        context_token=max(behind - one, _LEAST * behind) / tokens,
    )


class _Trial:
    """Runs steps over blocks that hold nothing yet."""

    def __init__(
        self, runner: StepRunner, turn: Turn, clock: Callable[[], float], budget_seconds: float
    ) -> None:
        self._runner = runner
        self._turn = turn
        self._clock = clock
        self._until = clock() + budget_seconds

    def affordable(self, seconds: float) -> int:
        """Texts or tokens in a step, if each takes so long."""
        left = max(0.0, self._until - self._clock()) / (_SHARES * _PASSES)
        return max(1, int(left / seconds)) if seconds > 0 else 1 << 30

    def part(self, start: int, tokens: int, block: int = 0) -> StepPart:
        """Tokens of one text whose first block is this one."""
        ids = array("i", bytes(array("i").itemsize * (start + tokens)))
        blocks = range(block, block - (-(start + tokens) // self._runner.block_tokens))
        return StepPart(ids[start:], start, blocks, [Draw(_GREEDY, 0, ids, len(ids))])

    def largest(
        self, count: int, least: int, parts: Callable[[int], Sequence[StepPart]]
    ) -> tuple[int, float]:
        """How many fit into a step, halved from `count` until they do, and what it takes.

        Raises `CannotLoad` where not even `least` fit, and `DeviceLost`.
        """
        while True:
            try:
                return count, self._seconds(parts(count))
            except OutOfMemory as error:
                _log.warning("a step with %d does not fit: %s", count, error)
                if count <= least:
                    raise CannotLoad(f"a step of {count} tokens does not fit: {error}") from None
            count = max(least, count // 2)

    def _seconds(self, parts: Sequence[StepPart]) -> float:
        self._turn(lambda: self._timed(parts))
        samples = [self._turn(lambda: self._timed(parts))]
        while len(samples) < _SAMPLES and samples[-1] < _CHEAP_SECONDS:
            samples.append(self._turn(lambda: self._timed(parts)))
        # Other work on the machine may slow a step down, but nothing makes one faster.
        return min(samples)

    def _timed(self, parts: Sequence[StepPart]) -> float:
        began = self._clock()
        with warming_up(f"a step of {len(parts)} texts"):
            self._runner.run(parts)
        return self._clock() - began
