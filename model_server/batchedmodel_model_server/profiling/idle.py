"""Measures what is left of a profile while nobody asks for anything, one pass at a time.

A batch that comes waits for the end of the pass that runs, so passes are short unless nobody has
come for long. What was measured is kept after each shape, so that a restart goes on with it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from batchedmodel_contract.inference.profile import Profile
from batchedmodel_model_server.errors import DeviceLost, ForwardFailed
from batchedmodel_model_server.execution.device_thread import TrialScheduling
from batchedmodel_model_server.profiling.shapes import (
    LONG_IDLE_SECONDS,
    SHORT_PASS_SECONDS,
    Shape,
    longest_pass,
)
from batchedmodel_model_server.profiling.trial import Trial
from batchedmodel_model_server.profiling.warmup import WarmUp, enough

_log = logging.getLogger(__name__)


class Idleness(Protocol):
    """Whether anybody asks for anything."""

    def idle_seconds(self) -> float:
        """How long nothing has been in work; 0 while something is."""
        ...

    async def quiet(self, seconds: float) -> None:
        """Return once nothing has been in work for so long."""
        ...


async def measure_when_idle(
    trial: Trial,
    turns: TrialScheduling,
    idleness: Idleness,
    tell: Callable[[Profile], None],
    lost: Callable[[DeviceLost], None],
) -> None:
    """Measure what a trial has left, and `tell` the whole profile. No failure harms who serves."""
    try:
        tell(await _whole(trial, turns, idleness))
    except DeviceLost as error:
        lost(error)
    except Exception:
        _log.exception("the profile stays as it is")


async def _whole(trial: Trial, turns: TrialScheduling, idleness: Idleness) -> Profile:
    warm_up = trial.warm_up
    assert warm_up is not None, "something is left to measure"
    while not warm_up.is_whole:
        await idleness.quiet(SHORT_PASS_SECONDS)
        idle = idleness.idle_seconds()
        shape = warm_up.next(longest_pass(idle))
        if shape is None:
            await idleness.quiet(LONG_IDLE_SECONDS)
            continue
        needed = LONG_IDLE_SECONDS if idle >= LONG_IDLE_SECONDS else SHORT_PASS_SECONDS
        await _measure(trial, warm_up, shape, turns, partial(idleness.quiet, needed))
        # A file may be on a volume that is slow.
        await asyncio.to_thread(trial.kept, warm_up.profile())
    return await asyncio.to_thread(trial.kept, warm_up.profile())


async def _measure(
    trial: Trial,
    warm_up: WarmUp,
    shape: Shape,
    turns: TrialScheduling,
    idle: Callable[[], Awaitable[None]],
) -> None:
    batch = await asyncio.to_thread(warm_up.batch, shape)
    passes: list[float] = []
    try:
        while not enough(passes):
            await idle()
            run = partial(warm_up.run, batch)
            passes.append(await turns.turn(partial(trial.idle_pass, run)))
    except DeviceLost:
        raise
    except ForwardFailed as error:
        warm_up.failed(shape, error)
    else:
        warm_up.measured(shape, passes)
