"""How far the simulator can be trusted: its latencies against those of real processes.

Load generator, sidecar and simulated model server are three processes on loopback; the simulator
meets the same arrivals with the same settings. What the real way costs beside the device is
measured at 20 % of the load that can be served in time, and nowhere else; at 50 % and 80 % the
simulator then has to foretell the median and the 99th percentile.

    python bench/fidelity.py [--quick] [--json FILE]
"""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from batchedmodel_contract.processes import sidecar_metrics
from bench_report import Figure, at_most, median_of, new_parser, report
from device_chain import Chain, Plan, device_chain, target
from fidelity_model import (
    CONSTANTS_SHARE,
    DEVICES,
    SETTINGS,
    SHARES,
    Constants,
    Device,
    Measured,
    arrivals,
    constants_of,
    foretold,
    gap_percent,
)
from load_generator import GivenArrivals, LoadResult, read_latencies, run_load
from same_arrivals import microseconds

CONNECTIONS: Final = 512
BODY: Final = b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"INT64","data":[1]}]}'
GOAL_PERCENT: Final = 10.0

FULL: Final = Plan(rounds=3, seconds=30.0, warm_up_seconds=2.0)
QUICK: Final = Plan(rounds=2, seconds=1.5, warm_up_seconds=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One run of real processes."""

    device: Device
    share: float
    arrivals: Sequence[int]
    """Nanoseconds after the start."""
    result: LoadResult
    measured: Measured


async def measure(plan: Plan) -> list[Figure]:
    """All figures; each is the median over the rounds, which alternate between the loads."""
    loads: list[Load] = []
    busy = []
    async with _chains() as chains:
        for seed in range(plan.rounds):
            for device, chain in chains:
                for share in (CONSTANTS_SHARE, *SHARES):
                    loads.append(await _load(chain, device, share, seed, plan))
                    busy.append(os.getloadavg()[0])
    # Only now: the simulator would take from the real processes what they are measured with.
    figures = []
    for device in DEVICES:
        own = [load for load in loads if load.device is device]
        figures += _figures(device, own, plan)
    failed = sum(load.result.requests - load.result.ok for load in loads)
    return [
        *figures,
        at_most("requests that failed", float(failed), "", 0.0),
        Figure(name="load average of this machine meanwhile", value=median_of(busy), unit=""),
    ]


def _figures(device: Device, loads: Sequence[Load], plan: Plan) -> list[Figure]:
    name = f"{device.name} at {CONSTANTS_SHARE:.0%}"
    found = [
        constants_of(device, load.arrivals, load.measured)
        for load in loads
        if load.share == CONSTANTS_SHARE
    ]
    constants = Constants(
        hand_off=median_of(each.hand_off for each in found),
        rest=median_of(each.rest for each in found),
        per_row=median_of(each.per_row for each in found),
    )
    rows = [
        Figure(name=f"{name}: hand-off", value=constants.hand_off * 1e3, unit="ms"),
        Figure(name=f"{name}: other ways", value=constants.rest * 1e3, unit="ms"),
        Figure(name=f"{name}: each answer", value=constants.per_row * 1e3, unit="ms"),
    ]
    for share in SHARES:
        same = [load for load in loads if load.share == share]
        rows += _compared(f"{device.name} at {share:.0%}", same, constants, plan)
    return rows


def _compared(name: str, loads: Sequence[Load], constants: Constants, plan: Plan) -> list[Figure]:
    """Real and foretold percentiles of the same requests."""
    rows = []
    expected = [
        foretold(load.device, load.arrivals, constants, since=plan.warm_up_seconds)
        for load in loads
    ]
    for label, real, simulated in (
        ("p50", [load.result.latency.p50 / 1e3 for load in loads], [it.p50 for it in expected]),
        ("p99", [load.result.latency.p99 / 1e3 for load in loads], [it.p99 for it in expected]),
    ):
        gaps = [gap_percent(*pair) for pair in zip(real, simulated, strict=True)]
        rows += [
            Figure(name=f"{name}: {label}, real", value=median_of(real), unit="ms"),
            Figure(name=f"{name}: {label}, simulated", value=median_of(simulated), unit="ms"),
            at_most(f"{name}: {label}, apart", abs(median_of(gaps)), "%", GOAL_PERCENT),
        ]
    late = [100 * load.result.late_sends / load.result.requests for load in loads]
    return [*rows, Figure(name=f"{name}: sent over 1 ms late", value=median_of(late), unit="%")]


@contextlib.asynccontextmanager
async def _chains() -> AsyncIterator[list[tuple[Device, Chain]]]:
    """A sidecar and a model server for each device."""
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        chains = []
        for device in DEVICES:
            chain = device_chain(
                Path(folder, device.name),
                curve=device.curve,
                settings=SETTINGS,
                parameters=device.parameters,
            )
            chains.append((device, await stack.enter_async_context(chain)))
        yield chains


async def _load(chain: Chain, device: Device, share: float, seed: int, plan: Plan) -> Load:
    # All requests make up the means of which the constants are made, the sidecar's among them.
    warm_up = 0.0 if share == CONSTANTS_SHARE else plan.warm_up_seconds
    due = arrivals(device, share, seed, plan.warm_up_seconds + plan.seconds)
    given = GivenArrivals(
        offsets_microseconds=microseconds(due),
        connections=CONNECTIONS,
        warm_up_seconds=warm_up,
    )
    before = await _inside(chain)
    file = chain.folder / "latencies"
    result = await asyncio.to_thread(run_load, target(chain, BODY), given, latencies_file=file)
    seconds, count = (now - then for now, then in zip(await _inside(chain), before, strict=True))
    measured = Measured(
        outside=[latency / 1e6 for latency in read_latencies(file)], inside=seconds / count
    )
    return Load(device=device, share=share, arrivals=due, result=result, measured=measured)


async def _inside(chain: Chain) -> tuple[float, float]:
    """Seconds that all requests have spent in the sidecar, and their number."""
    name = sidecar_metrics.REQUEST_DURATION
    return await chain.metric(f"{name}_sum"), await chain.metric(f"{name}_count")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; returns the exit code."""
    options = new_parser("The simulator against real processes.").parse_args(arguments)
    return report(asyncio.run(measure(QUICK if options.quick else FULL)), options.json)


if __name__ == "__main__":
    sys.exit(main())
