"""What of our own engine's speed is left through the whole chain, and what faults do to its texts.

Load generator, sidecar and model server are processes of their own on loopback, the sidecar with
compiled modules. The model's device is simulated; a full run asks a model that computes as well.
Called by `generation`.
"""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from batchedmodel_contract.manifest.batching import BatchSettings
from bench_report import Figure, tell
from compile_modules import compiled_modules
from engine_rivals import Load, loads
from generation_faults import cancelled, fault_figures, hung_up, killed
from generation_overhead import (
    bare_engine,
    framed_rate,
    overhead_figures,
    rounds_of,
    simulated,
    speaking_checkpoint,
)
from generation_refilled import DEVICE, RefillPlan, refilled
from load_generator import cache_folder
from stream_chain import SETTINGS
from support.chain import Chain, running_chain

_PARAMETERS: Final = {
    "generates": "true",
    "stepSeconds": str(DEVICE.step_seconds),
    "prefillTokenSeconds": str(DEVICE.prefill_seconds_per_token),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How often and how long to measure."""

    refill: RefillPlan
    leaves: int
    """How often callers leave."""
    rounds: int
    """Of all others."""
    computes: bool
    """Whether a model that computes is asked as well; it takes long to start."""


FULL: Final = Plan(
    refill=RefillPlan(rounds=5, learning=8.0, warm_up=2.0, seconds=8.0),
    leaves=10,
    rounds=5,
    computes=True,
)
QUICK: Final = Plan(
    refill=RefillPlan(rounds=1, learning=1.5, warm_up=0.5, seconds=1.5),
    leaves=1,
    rounds=1,
    computes=False,
)


def measure_chain(*, quick: bool) -> list[Figure]:
    """All figures; the median over the rounds."""
    return asyncio.run(_measure(QUICK if quick else FULL))


async def _measure(plan: Plan) -> list[Figure]:
    at_once, *_ = loads(quick=True)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        async with _chain(folder / "simulated", handler="simulated", parameters=_PARAMETERS) as one:
            figures = [
                *await refilled(one, plan.refill),
                *await _overhead(simulated(at_once), partial(framed_rate, one), one, plan.rounds),
                *await _faults(one, plan),
            ]
        if plan.computes:
            figures += await _computed(folder, at_once, plan.rounds)
    return figures


def _chain(folder: Path, **given: Any) -> AbstractAsyncContextManager[Chain]:
    """Both processes."""
    settings = {"settings": SETTINGS, **given}
    return running_chain(folder, compiled=compiled_modules(cache_folder(os.environ)), **settings)


async def _computed(folder: Path, load: Load, rounds: int) -> list[Figure]:
    """Of a model that computes."""
    tell("our engine computes: starting")
    checkpoint = await asyncio.to_thread(speaking_checkpoint, folder / "checkpoint")
    async with (
        _chain(
            folder / "computed",
            handler="hf",
            source={"path": str(checkpoint)},
            parameters={"dtype": "float32"},
            # No targets, as the bare loop has none. It embeds as well; what that would take need
            # not be found out.
            settings=BatchSettings(max_batch_size=1),
        ) as chain,
        bare_engine(checkpoint) as bare,
    ):
        return await _overhead(load, bare.rate, chain, rounds)


async def _overhead(
    load: Load, bare: Callable[[Load], Awaitable[float]], chain: Chain, rounds: int
) -> list[Figure]:
    return overhead_figures(load.name, await rounds_of(bare, chain, load, rounds))


async def _faults(chain: Chain, plan: Plan) -> list[Figure]:
    tell("our engine's callers leave")
    steps = [await cancelled(chain) for _ in range(plan.leaves)]
    hung = [await hung_up(chain) for _ in range(plan.leaves)]
    tell("our engine is killed")
    return fault_figures(steps, hung, [await killed(chain) for _ in range(plan.rounds)])
