"""A runner whose steps are watched, and whose times correct what steps are expected to take."""

from __future__ import annotations  # array.array takes no type argument at run time

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from batchedmodel_model_server.api.generator import Sampled, StepPart, StepRunner
from batchedmodel_model_server.errors import translating
from batchedmodel_model_server.execution.watchdog import Watchdog, longest_seconds
from batchedmodel_scheduling.engine.step_cost import LearntStepCost, StepLoad


class WatchedRunner:
    """Between the engine and a model's runner, on the compute thread."""

    def __init__(
        self,
        runner: StepRunner,
        cost: LearntStepCost,
        watchdog: Watchdog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`cost` learns from each step that ends well."""
        self._runner: Final = runner
        self._cost: Final = cost
        self._watchdog: Final = watchdog
        self._clock: Final = clock
        self.blocks: Final = runner.blocks
        self.block_tokens: Final = runner.block_tokens

    def run(self, parts: Sequence[StepPart]) -> list[list[Sampled]]:
        """What the model's runner gives; raises `OutOfMemory`, `ForwardFailed`, `DeviceLost`."""
        load = load_of(parts)
        began = self._clock()
        self._watchdog.pass_begins(longest_seconds(self._cost.seconds(**load._asdict())))
        try:
            drawn = translating(partial(self._runner.run, parts))
            self._cost.saw(load, self._clock() - began)
            return drawn
        finally:
            self._watchdog.pass_ends()

    def copy_block(self, source: int, target: int) -> None:
        """Make a block's content another's as well."""
        self._runner.copy_block(source, target)


def load_of(parts: Sequence[StepPart]) -> StepLoad:
    """What is in a step, as its cost counts."""
    read = sum([len(part.ids) for part in parts if len(part.ids) > 1])
    context = sum([part.start for part in parts if len(part.ids) == 1])
    return StepLoad(prefill_tokens=read, sequences=len(parts), context_tokens=context)
