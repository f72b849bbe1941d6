"""How much of the device the data path uses, what it adds to a request, and what it costs.

Load generator, sidecar and simulated model server are processes of their own on loopback, with a
manifest's defaults, the policy Deadline and metrics on. A device serves one batch after the other,
so its formula says how many rows it serves at most, whoever asks; what callers of few requests
should see is what the policy makes of the same arrivals in the simulator, where nothing but the
device takes time. A bare aiohttp server that parses and answers the same JSON is measured in the
same rounds: what of this machine HTTP alone takes in Python.

    python bench/throughput.py [--quick] [--json FILE]
"""

import asyncio
import contextlib
import itertools
import math
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from batchedmodel_contract.outcomes import Outcome
from batchedmodel_contract.processes import sidecar_api, sidecar_metrics
from batchedmodel_scheduling.simulator.engine import NANOSECONDS
from bench_report import Figure, at_least, at_most, median_of, new_parser, of_rounds, report
from device_chain import Chain, Plan, Process, device_chain, target
from load_generator import (
    ClosedLoop,
    GivenArrivals,
    Load,
    LoadResult,
    PoissonArrivals,
    Target,
    run_load,
)
from process_cpu import cpu_seconds
from same_arrivals import finished, latencies, microseconds, percentiles, poisson
from throughput_loads import (
    BUSY,
    DEVICES,
    FIRST,
    LARGE,
    LONE,
    ONE_ROW,
    SECOND,
    SHAPES,
    SINGLE,
    Ask,
    Closed,
    Device,
)

OPEN_RATE: Final = 500.0
OPEN_CONNECTIONS: Final = 256
OPEN: Final = (FIRST, SECOND)
SHARE_OF_LIMIT: Final = 90.0
SHARE_OF_BARE: Final = 75.0
PROBES_RATE: Final = 250.0
PROBES_CONNECTIONS: Final = 16

FULL: Final = Plan(rounds=5, seconds=3.0, warm_up_seconds=0.5)
# Most of a round is until a server has accepted all of many connections.
QUICK: Final = Plan(rounds=1, seconds=1.0, warm_up_seconds=0.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """One run of the load generator, and what the sidecar spent on it."""

    result: LoadResult
    cpu_microseconds: float
    """Per request, warm-up and connecting included."""
    least: Sequence[float] = ()
    """Milliseconds, p50 and p99, of the same arrivals where only the device takes time."""


@dataclass(slots=True, kw_only=True)
class Found:
    """All rounds."""

    loads: Mapping[str, list[Loaded]]
    bare: list[LoadResult]
    bare_alone: Mapping[str, list[LoadResult]]
    """The bare server asked by one connection as often as each lone request comes back."""
    probes: list[LoadResult]
    """Of the loop that serves large bodies, at random moments."""
    probes_alone: list[LoadResult]
    """The same while nobody asks for anything else."""
    idle: list[float]
    """CPU of a sidecar that nobody asks, as a share of one core."""
    busy: list[float]
    """Load averages of the machine."""


async def measure(plan: Plan) -> list[Figure]:
    """All figures; each is the median over the rounds, which alternate between the loads."""
    found = Found(
        loads=defaultdict(list),
        bare=[],
        bare_alone=defaultdict(list),
        probes=[],
        probes_alone=[],
        idle=[],
        busy=[],
    )
    async with _chains() as chains, _bare_server() as bare:
        for seed in range(plan.rounds):
            await _round(found, chains, bare, plan, seed)
    return figures_of(found)


def figures_of(found: Found) -> list[Figure]:
    """The table: medians of all rounds, with their goals where they have one."""
    return [
        *_of_busy_devices(found),
        *_of_callers(found),
        *_of_shapes(found),
        *_of_large_bodies(found),
        at_most("requests that failed", float(_failed(found)), "", 0.0),
        of_rounds(lambda value: Figure(name="load average", value=value, unit=""), found.busy),
    ]


async def _round(
    found: Found, chains: Mapping[str, Chain], bare: Target, plan: Plan, seed: int
) -> None:
    found.idle.append(await _idle(chains[FIRST.name], plan.seconds))
    # Shapes have no goals; every other round is enough for them.
    for closed in (*BUSY, *LONE, SINGLE, *(SHAPES if seed % 2 == 0 else ())):
        loaded = await _load(chains[closed.device.name], closed.ask, _loop(closed, plan))
        found.loads[closed.name].append(loaded)
        # Beside what it is the yardstick of: others on the machine meet both or neither.
        if closed is BUSY[1]:
            found.bare.append(await asyncio.to_thread(run_load, bare, _loop(closed, plan)))
        if closed in LONE:
            asked = await asyncio.to_thread(run_load, bare, _as_often(loaded.result, plan))
            found.bare_alone[closed.name].append(asked)
    for device in OPEN:
        found.loads[_open(device)].append(await _arrivals(chains[device.name], device, plan, seed))
    await _large_bodies(found, chains[LARGE.device.name], plan, seed)
    found.busy.append(os.getloadavg()[0])


def _of_busy_devices(found: Found) -> list[Figure]:
    figures = []
    rates = {closed.name: _rates(found, closed) for closed in (*BUSY, SINGLE)}
    first, second = BUSY
    bare = [result.rate for result in found.bare]
    reachable = SHARE_OF_BARE * median_of(bare) / second.device.limit
    for closed, goal in ((first, 97.0), (second, min(SHARE_OF_LIMIT, reachable))):
        limit = closed.device.limit
        shares = [100 * rate / limit for rate in rates[closed.name]]
        name = f"{closed.name}: share of the limit {limit:,.0f}/s"
        figures += [
            of_rounds(_at_least(name, "%", goal), shares),
            of_rounds(_plain(f"{closed.name}: answers", "1/s"), rates[closed.name]),
            _cpu(found, closed.name),
        ]
    ratios = [100 * rate / bare for rate, bare in zip(rates[second.name], bare, strict=True)]
    gains = [one / other for one, other in zip(rates[first.name], rates[SINGLE.name], strict=True)]
    return [
        *figures,
        of_rounds(_plain(f"bare server, closed loop {second.connections}: answers", "1/s"), bare),
        of_rounds(_plain(f"{second.name}: share of the bare server", "%"), ratios),
        of_rounds(_plain(f"{first.name}: rate against it unbatched", "x"), gains),
    ]


def _of_callers(found: Found) -> list[Figure]:
    figures = []
    for device in OPEN:
        loads = found.loads[_open(device)]
        name = f"{_open(device)}: added"
        p50 = [load.result.latency.p50 / 1e3 - load.least[0] for load in loads]
        p99 = [load.result.latency.p99 / 1e3 - load.least[1] for load in loads]
        late = [100 * load.result.late_sends / load.result.requests for load in loads]
        figures += [
            of_rounds(_at_most(f"{name} to the median", "ms", 1.0), p50),
            of_rounds(_at_most(f"{name} to the 99th percentile", "ms", 3.0), p99),
            of_rounds(_plain(f"{_open(device)}: sent over 1 ms late", "%"), late),
            _cpu(found, _open(device)),
        ]
    for lone in LONE:
        alone = lone.device.curve.seconds([1]) * 1e3
        p50 = [load.result.latency.p50 / 1e3 - alone for load in found.loads[lone.name]]
        name = f"{lone.name}: added to the median (0.5 is wished for)"
        bare = [result.latency.p50 / 1e3 for result in found.bare_alone[lone.name]]
        figures += [
            of_rounds(_at_most(name, "ms", 1.0), p50),
            of_rounds(_plain(f"{lone.name}: median of the bare server, as often", "ms"), bare),
            _cpu(found, lone.name),
        ]
    idle = [100 * share for share in found.idle]
    return [*figures, of_rounds(_at_most("idle sidecar: CPU of a core", "%", 1.0), idle)]


def _of_shapes(found: Found) -> list[Figure]:
    figures = []
    for closed in SHAPES:
        limit = closed.device.limit
        shares = [100 * rate / limit for rate in _rates(found, closed)]
        name = f"{closed.name}: share of the limit"
        figures += [of_rounds(_plain(name, "%"), shares), _cpu(found, closed.name)]
    return figures


def _of_large_bodies(found: Found) -> list[Figure]:
    """How late the loop is for whoever comes, and how late this machine makes everybody."""
    lag = [probes.latency.p99 / 1e3 for probes in found.probes]
    alone = [probes.latency.p99 / 1e3 for probes in found.probes_alone]
    late = [100 * probes.late_sends / probes.requests for probes in found.probes]
    rates = [load.result.rate for load in found.loads[LARGE.name]]
    return [
        of_rounds(_at_most(f"{LARGE.name}: lag of the loop, p99", "ms", 5.0), lag),
        of_rounds(_plain("no bodies: lag of the loop, p99", "ms"), alone),
        of_rounds(_plain(f"{LARGE.name}: probes sent over 1 ms late", "%"), late),
        of_rounds(_plain(f"{LARGE.name}: answers", "1/s"), rates),
        _cpu(found, LARGE.name),
    ]


def _rates(found: Found, closed: Closed) -> list[float]:
    """Rows per second in each round."""
    return [load.result.rate * closed.ask.rows for load in found.loads[closed.name]]


def _cpu(found: Found, name: str) -> Figure:
    spent = [load.cpu_microseconds for load in found.loads[name]]
    return of_rounds(_plain(f"{name}: CPU of the sidecar per request", "us"), spent)


def _failed(found: Found) -> int:
    results = [load.result for loads in found.loads.values() for load in loads]
    alone = itertools.chain.from_iterable(found.bare_alone.values())
    beside = (*found.bare, *alone, *found.probes, *found.probes_alone)
    return sum(result.requests - result.ok for result in (*results, *beside))


def _open(device: Device) -> str:
    return f"{device.name}, {OPEN_RATE:.0f}/s"


def _at_least(name: str, unit: str, bound: float) -> Callable[[float], Figure]:
    return lambda value: at_least(name, value, unit, bound)


def _at_most(name: str, unit: str, bound: float) -> Callable[[float], Figure]:
    return lambda value: at_most(name, value, unit, bound)


def _plain(name: str, unit: str) -> Callable[[float], Figure]:
    return lambda value: Figure(name=name, value=value, unit=unit)


@contextlib.asynccontextmanager
async def _chains() -> AsyncIterator[dict[str, Chain]]:
    """A sidecar and a model server for each device, by its name."""
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        starting = [
            device_chain(
                Path(folder, str(number)),
                curve=device.curve,
                settings=device.settings,
                parameters=device.parameters,
            )
            for number, device in enumerate(DEVICES)
        ]
        async with asyncio.TaskGroup() as group:
            started = [group.create_task(stack.enter_async_context(chain)) for chain in starting]
        names = [device.name for device in DEVICES]
        yield {name: task.result() for name, task in zip(names, started, strict=True)}


def _as_often(lone: LoadResult, plan: Plan) -> GivenArrivals:
    """One request at a time, with the pauses in between that a lone caller of a device makes.

    What has slept for milliseconds wakes with cold caches, and takes several times as long as in a
    loop without pauses. It counts from when a request was due, so that the load generator's own
    waking is in it, which a lone caller who asks at once does not have.
    """
    rate = max(lone.rate, 1.0)  # where nothing was answered, which is a figure of its own
    gap = 1e6 / rate
    count = int((plan.warm_up_seconds + plan.seconds) * rate)
    return GivenArrivals(
        offsets_microseconds=[round(gap * number) for number in range(1, count)],
        connections=1,
        warm_up_seconds=plan.warm_up_seconds,
    )


@contextlib.asynccontextmanager
async def _bare_server() -> AsyncIterator[Target]:
    process = Process("bare server", "bare_server", {"PYTHONPATH": os.pathsep.join(sys.path)})
    await process.start()
    try:
        port = int((await process.wait_for(r"listening: port (\d+)"))[1])
        headers = {"Content-Type": "application/json"}
        yield Target(port=port, headers=headers, bodies=[ONE_ROW.body])
    finally:
        await process.stop()


def _loop(closed: Closed, plan: Plan) -> ClosedLoop:
    return ClosedLoop(
        connections=closed.connections,
        seconds=plan.seconds,
        warm_up_seconds=plan.warm_up_seconds,
    )


async def _arrivals(chain: Chain, device: Device, plan: Plan, seed: int) -> Loaded:
    """Requests at random times, and what the simulator makes of the same."""
    seconds = plan.warm_up_seconds + plan.seconds
    due = poisson(OPEN_RATE, seconds, seed=seed, name=f"throughput/{device.name}")
    load = GivenArrivals(
        offsets_microseconds=microseconds(due),
        connections=OPEN_CONNECTIONS,
        warm_up_seconds=plan.warm_up_seconds,
    )
    loaded = await _load(chain, ONE_ROW, load)
    ideal = latencies(due, finished(device.curve, device.settings, due))
    counted = ideal[np.array(due) >= plan.warm_up_seconds * NANOSECONDS]
    least = percentiles(counted * 1e3, 50, 99)
    return Loaded(result=loaded.result, cpu_microseconds=loaded.cpu_microseconds, least=least)


async def _large_bodies(found: Found, chain: Chain, plan: Plan, seed: int) -> None:
    """Bodies that take long to read, and meanwhile somebody who asks the same loop for nothing.

    A probe's time counts from when it was due, as it would for whoever came at that moment. Its own
    way through the sidecar is in it, and what the load generator and the machine are late by.
    """
    live = Target(port=chain.admin_port, path=sidecar_api.LIVE, method="GET")
    probes = PoissonArrivals(
        rate=PROBES_RATE,
        seed=seed,
        connections=PROBES_CONNECTIONS,
        seconds=plan.seconds,
        warm_up_seconds=plan.warm_up_seconds,
    )
    found.probes_alone.append(await asyncio.to_thread(run_load, live, probes))
    loaded, probed = await asyncio.gather(
        _load(chain, LARGE.ask, _loop(LARGE, plan)), asyncio.to_thread(run_load, live, probes)
    )
    found.loads[LARGE.name].append(loaded)
    found.probes.append(probed)


async def _load(chain: Chain, ask: Ask, load: Load) -> Loaded:
    before = await _spent(chain)
    result = await asyncio.to_thread(run_load, target(chain, ask.body, ask.headers), load)
    spent, answered = (now - then for now, then in zip(await _spent(chain), before, strict=True))
    return Loaded(result=result, cpu_microseconds=spent / (answered or math.nan) * 1e6)


async def _spent(chain: Chain) -> tuple[float, float]:
    """CPU seconds of the sidecar so far, and how many requests it has answered."""
    outcome = Outcome.COMPLETED.value
    answered = await chain.metric(sidecar_metrics.REQUESTS_SETTLED, outcome=outcome)
    return cpu_seconds(chain.sidecar.pid), answered


async def _idle(chain: Chain, seconds: float) -> float:
    before = cpu_seconds(chain.sidecar.pid)
    await asyncio.sleep(seconds)
    return (cpu_seconds(chain.sidecar.pid) - before) / seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; returns the exit code."""
    options = new_parser("Throughput, latency and cost of the data path.").parse_args(arguments)
    return report(asyncio.run(measure(QUICK if options.quick else FULL)), options.json)


if __name__ == "__main__":
    sys.exit(main())
