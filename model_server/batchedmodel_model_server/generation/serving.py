"""Puts together what serves a generator: its description, its engine, and the loop around that.

Between the engine and a model's runner steps are watched, and their times correct what steps are
expected to take.
"""

from __future__ import annotations  # array.array takes no type argument at run time

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Final, NamedTuple

from batchedmodel_contract.generation.description import (
    GenerationDescription,
    StepBounds,
    StepSeconds,
)
from batchedmodel_model_server.api.generator import Generator, Sampled, StepPart, StepRunner
from batchedmodel_model_server.errors import translating
from batchedmodel_model_server.execution.device_thread import DeviceThread, TrialScheduling
from batchedmodel_model_server.execution.forward import LoadedModel
from batchedmodel_model_server.execution.watchdog import Watchdog, longest_seconds
from batchedmodel_model_server.generation.engine import Engine
from batchedmodel_model_server.generation.engine_loop import EngineLoop, Rules
from batchedmodel_model_server.generation.warm_up import warmed_up
from batchedmodel_model_server.lora.serving import Adapters
from batchedmodel_scheduling.engine.step_planner import StepSettings
from batchedmodel_scheduling.latency.device_times import DeviceTimes
from batchedmodel_scheduling.latency.step_times import StepCost, StepLoad, StepTimes

_ON_CPU: Final = StepBounds(sequences=64, tokens=512)
_ON_CUDA: Final = StepBounds(sequences=256, tokens=2048)


class WatchedRunner:
    """Between the engine and a model's runner, on the compute thread."""

    def __init__(
        self,
        runner: StepRunner,
        times: DeviceTimes[StepLoad],
        watchdog: Watchdog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`times` learn from each step that ends well."""
        self._runner: Final = runner
        self._times: Final = times
        self._watchdog: Final = watchdog
        self._clock: Final = clock
        self.blocks: Final = runner.blocks
        self.block_tokens: Final = runner.block_tokens

    def run(self, parts: Sequence[StepPart]) -> list[list[Sampled]]:
        """What the model's runner gives; raises `OutOfMemory`, `ForwardFailed`, `DeviceLost`."""
        load = load_of(parts)
        began = self._clock()
        self._watchdog.pass_begins(longest_seconds(self._times.predict(load) or 0.0))
        try:
            drawn = translating(partial(self._runner.run, parts))
            self._times.observe(load, self._clock() - began)
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


class Serving(NamedTuple):
    """What callers see of a generator; nothing of a model that has none."""

    description: GenerationDescription | None = None
    engine: EngineLoop | None = None


class FirstSteps(NamedTuple):
    """A generator, and what its warm-up has shown."""

    generator: Generator
    cost: StepCost
    sizes: StepBounds


def first_steps(model: LoadedModel, turns: TrialScheduling | None) -> FirstSteps | None:
    """Warm a model's generator up, if it has one; blocks.

    `turns`: where another version serves meanwhile. Raises `CannotLoad` and `DeviceLost`.
    """
    generator = model.handler.generator
    if generator is None:
        return None
    sizes = _ON_CUDA if model.device.startswith("cuda") else _ON_CPU
    # A text has a block at least.
    sizes = sizes._replace(sequences=min(sizes.sequences, generator.runner.blocks))
    context = generator.max_context_tokens
    cost, sizes = warmed_up(generator.runner, sizes, context, turns)
    return FirstSteps(generator, cost, sizes)


def serving_of(
    steps: FirstSteps,
    *,
    compute: DeviceThread,
    watchdog: Watchdog,
    rules: Rules,
    adapters: Adapters | None = None,
) -> Serving:
    """The generator as callers find it. Needs a running loop."""
    generator, cost, sizes = steps
    runner = generator.runner
    context = min(generator.max_context_tokens, runner.blocks * runner.block_tokens)
    learnt = StepTimes(cost)
    settings = StepSettings(
        max_sequences=sizes.sequences,
        max_tokens_per_step=sizes.tokens,
        block_tokens=runner.block_tokens,
        blocks=runner.blocks,
    )

    def new_engine() -> Engine:
        if adapters is not None:
            adapters.device.table.unpin_all()
        return Engine(
            WatchedRunner(runner, learnt, watchdog),
            settings,
            learnt,
            vocabulary=generator.vocabulary,
            max_context_tokens=context,
            adapters=None if adapters is None else adapters.device,
        )

    description = GenerationDescription(
        vocabulary=generator.vocabulary,
        max_context_tokens=context,
        block_tokens=runner.block_tokens,
        blocks=runner.blocks,
        max_sequences=sizes.sequences,
        max_tokens_per_step=sizes.tokens,
        step_seconds=StepSeconds(**asdict(cost)),
        stop_ids=generator.stop_ids,
        chat_template=generator.chat_template,
        special_tokens=generator.special_tokens,
        sampling_defaults=dict(generator.sampling_defaults),
    )
    return Serving(description, EngineLoop(new_engine, compute.post, rules, adapters=adapters))
