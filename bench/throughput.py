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
import math
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from batchedmodel_cli.simulator.engine import NANOSECONDS
from batchedmodel_contract.outcomes import Outcome
from batchedmodel_contract.processes import sidecar_api, sidecar_metrics
from bench_report import Figure, new_parser, report
from cpu_quota import held_to
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
from throughput_figures import OPEN, OPEN_RATE, Found, Loaded, figures_of, name_of_open
from throughput_loads import (
    BUSY,
    DEVICES,
    FIRST,
    LARGE,
    LONE,
    ONE_ROW,
    SHAPES,
    SINGLE,
    Ask,
    Closed,
    Device,
)

OPEN_CONNECTIONS: Final = 256
_HALF_A_CORE: Final = 0.5
PROBES_RATE: Final = 250.0
PROBES_CONNECTIONS: Final = 16

FULL: Final = Plan(rounds=5, seconds=3.0, warm_up_seconds=0.5)
# Most of a round is until a server has accepted all of many connections.
QUICK: Final = Plan(rounds=1, seconds=1.0, warm_up_seconds=0.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bare:
    """The bare server, and how it is asked."""

    target: Target
    pid: int


async def measure(plan: Plan) -> list[Figure]:
    """All figures; each is the median over the rounds, which alternate between the loads."""
    found = Found(
        loads=defaultdict(list),
        bare=[],
        bare_alone=defaultdict(list),
        bare_open=defaultdict(list),
        halved=[],
        probes=[],
        probes_alone=[],
        idle=[],
        busy=[],
    )
    async with _chains() as chains, _bare_server() as bare:
        for seed in range(plan.rounds):
            await _round(found, chains, bare, plan, seed)
    return figures_of(found)


async def _round(
    found: Found, chains: Mapping[str, Chain], bare: Bare, plan: Plan, seed: int
) -> None:
    found.idle.append(await _idle(chains[FIRST.name], plan.seconds))
    # Shapes have no goals; every other round is enough for them.
    for closed in (*BUSY, *LONE, SINGLE, *(SHAPES if seed % 2 == 0 else ())):
        loaded = await _load(chains[closed.device.name], closed.ask, _loop(closed, plan))
        found.loads[closed.name].append(loaded)
        # Beside what it is the yardstick of: others on the machine meet both or neither.
        if closed is BUSY[1]:
            found.bare.append(await _bare_load(bare, _loop(closed, plan)))
        if closed is BUSY[0]:
            found.halved += await _halved(chains[closed.device.name], closed, plan)
        if closed in LONE:
            asked = await asyncio.to_thread(run_load, bare.target, _as_often(loaded.result, plan))
            found.bare_alone[closed.name].append(asked)
    for device in OPEN:
        load, ideal = _arrivals(device, plan, seed)
        loaded = await _load(chains[device.name], ONE_ROW, load)
        found.loads[name_of_open(device)].append(replace(loaded, least=ideal))
        found.bare_open[device.name].append(await asyncio.to_thread(run_load, bare.target, load))
    await _large_bodies(found, chains[LARGE.device.name], plan, seed)
    found.busy.append(os.getloadavg()[0])


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
async def _bare_server() -> AsyncIterator[Bare]:
    process = Process("bare server", "bare_server", {"PYTHONPATH": os.pathsep.join(sys.path)})
    await process.start()
    try:
        port = int((await process.wait_for(r"listening: port (\d+)"))[1])
        headers = {"Content-Type": "application/json"}
        target_ = Target(port=port, headers=headers, bodies=[ONE_ROW.body])
        yield Bare(target=target_, pid=process.pid)
    finally:
        await process.stop()


def _loop(closed: Closed, plan: Plan) -> ClosedLoop:
    return ClosedLoop(
        connections=closed.connections,
        seconds=plan.seconds,
        warm_up_seconds=plan.warm_up_seconds,
    )


def _arrivals(device: Device, plan: Plan, seed: int) -> tuple[GivenArrivals, list[float]]:
    """Requests at random times, and p50 and p99 that the simulator makes of the same, in ms."""
    seconds = plan.warm_up_seconds + plan.seconds
    due = poisson(OPEN_RATE, seconds, seed=seed, name=f"throughput/{device.name}")
    load = GivenArrivals(
        offsets_microseconds=microseconds(due),
        connections=OPEN_CONNECTIONS,
        warm_up_seconds=plan.warm_up_seconds,
    )
    ideal = latencies(due, finished(device.curve, device.settings, due))
    counted = ideal[np.array(due) >= plan.warm_up_seconds * NANOSECONDS]
    return load, list(percentiles(counted * 1e3, 50, 99))


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


async def _bare_load(bare: Bare, load: ClosedLoop) -> Loaded:
    """What it answers while it does nothing else, and its CPU by the same measure.

    It counts no requests, so its CPU is that of a second, over its answers in a second.
    """
    spent, began = cpu_seconds(bare.pid), time.monotonic()
    result = await asyncio.to_thread(run_load, bare.target, load)
    share = (cpu_seconds(bare.pid) - spent) / (time.monotonic() - began)
    return Loaded(result=result, cpu_microseconds=1e6 * share / result.rate)


async def _halved(chain: Chain, closed: Closed, plan: Plan) -> list[LoadResult]:
    """The same load while load generator, sidecar and model server have half a core each."""
    pids = [os.getpid(), chain.sidecar.pid, chain.model.pid]
    with held_to(_HALF_A_CORE, pids) as held:
        if not held:
            return []
        load = _loop(closed, plan)
        return [await asyncio.to_thread(run_load, target(chain, closed.ask.body), load)]


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
