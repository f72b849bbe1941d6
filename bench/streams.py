"""What the sidecar adds to streams of a language model, and how it shares an engine among them.

The engine is simulated: 64 sequences at once, 20 ms a step, 20 us more for each token of a prompt
that begins; outputs have 20 to 60 tokens, and the engine is refilled. Load generator, sidecar and
engine are processes of their own on loopback. A second engine is asked without a sidecar for the
same. Capacity is what the engine serves in virtual time with both targets met by 99 %.

    python bench/streams.py [--quick] [--json FILE]
"""

import asyncio
import contextlib
import itertools
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("tests", "images")]

from batchedmodel_contract.manifest.batching import BatchSettings
from bench_report import Figure, new_parser, report, tell
from process_family import family_bytes
from stream_capacity import capacity, drawn, lengths, request_limit
from stream_chain import SETTINGS, EngineProcess, StreamChain, engine, stream_chain
from stream_faults import ENGINE as FAULTY
from stream_faults import faults
from stream_figures import Busy, Found, figures_of
from stream_plan import Stream, StreamLoad, StreamResult, run_streams
from support.engine import EngineSettings

ENGINE: Final = EngineSettings()
SLOW: Final = EngineSettings(max_num_seqs=4096, step_seconds=0.5, kv_cache_tokens=10_000_000)
"""Of the streams that are only open. None would end within the usual targets and time-out."""
PATIENT: Final = BatchSettings(max_queue_size=2_000, request_timeout_seconds=3600.0)
CLOSED: Final = 96
SHARE: Final = 0.7
OVERLOAD: Final = 1.3
OPEN: Final = 1000
OPENED_PER_SECOND: Final = 500
ADDRESSES: Final = 50
INTERACTIVE: Final = "127.0.0.66"
INTERACTIVE_RATE: Final = 10.0
INTERACTIVE_BYTES: Final = 100
FLOOD: Final = 100
FLOOD_BYTES: Final = 2000
_GRACE: Final = 2.5
"""In which a stream that still meets the targets ends."""
_BEFORE: Final = 1.5
"""Seconds after which a flood has taken all places."""
_AROUND: Final = 3.0
"""By how much a flood is longer than what it stands beside."""
_OTHERS: Final = 1_000_000
"""Numbers of the flood's streams begin here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How often and for how many seconds each load is offered."""

    rounds: int
    learning: float
    """Of a closed loop before all others, in which the sidecar learns what the engine runs."""
    warm_up: float
    closed: float
    partly: float
    overload: float
    shared: float
    faults: float
    capacity: float
    """Virtual seconds."""


FULL: Final = Plan(
    rounds=3,
    learning=15.0,
    warm_up=2.0,
    closed=8.0,
    partly=12.0,
    overload=20.0,
    shared=15.0,
    faults=12.0,
    capacity=60.0,
)
QUICK: Final = Plan(
    rounds=1,
    learning=7.0,
    warm_up=1.0,
    closed=2.0,
    partly=3.5,
    overload=8.0,
    shared=3.5,
    faults=3.5,
    capacity=20.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is running."""

    chain: StreamChain
    alone: EngineProcess
    """An engine without a sidecar."""
    opened: StreamChain
    faulty: StreamChain


async def measure(plan: Plan) -> list[Figure]:
    """All figures; the median over the rounds."""
    found = Found(capacity=capacity(ENGINE, seconds=plan.capacity, seed=0), engine=ENGINE)
    async with _bench() as bench:
        tell("learning")
        await _closed_loop(bench.chain.port, plan.learning, seed=1000)
        await bench.chain.idle()
        for seed in range(plan.rounds):
            await _closed(found, bench, plan, seed)
            await _partly(found, bench, plan, seed)
            await _overload(found, bench, plan, seed)
            await _shared(found, bench, plan, seed)
            tell("open streams, faults")
            _, seen = await asyncio.gather(
                _opened(found, bench.opened, seed), faults(bench.faulty, plan.faults, seed)
            )
            found.faults.append(seen)
        found.late_steps = (await bench.chain.counts())["late_steps"]
        found.steps = (await bench.chain.counts())["steps"]
    return figures_of(found)


@contextlib.asynccontextmanager
async def _bench() -> AsyncIterator[Bench]:
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        chains = [
            stream_chain(folder / name, settings, batching)
            for name, settings, batching in (
                ("engine", ENGINE, SETTINGS),
                ("slow", SLOW, PATIENT),
                ("faulty", FAULTY, SETTINGS),
            )
        ]
        async with asyncio.TaskGroup() as group:
            started = [group.create_task(stack.enter_async_context(chain)) for chain in chains]
            alone = group.create_task(stack.enter_async_context(engine(ENGINE)))
        chain, opened, faulty = (task.result() for task in started)
        yield Bench(chain=chain, alone=alone.result(), opened=opened, faulty=faulty)


async def _closed(found: Found, bench: Bench, plan: Plan, seed: int) -> None:
    """More callers than the engine has places, each with the next stream at once."""
    seconds = plan.warm_up + plan.closed
    # As often the one first as the other.
    for is_through in (True, False) if seed % 2 == 0 else (False, True):
        tell("closed loop, " + ("through the sidecar" if is_through else "straight"))
        port = bench.chain.port if is_through else bench.alone.port
        before = bench.chain.cpu_seconds()
        result = await _closed_loop(port, seconds, seed)
        busy = Busy(
            rate=result.token_rate(plan.warm_up, seconds),
            tokens=sum(result.arrivals),
            cpu_seconds=bench.chain.cpu_seconds() - before,
            generator_cpu_seconds=result.cpu_seconds,
            result=result,
        )
        (found.closed if is_through else found.closed_straight).append(busy)
    await bench.chain.idle()


async def _closed_loop(port: int, seconds: float, seed: int) -> StreamResult:
    most = 2 * int(seconds * request_limit(ENGINE)) + CLOSED
    rng = random.Random(seed)
    streams = [Stream(mark=number, tokens=lengths(rng)) for number in range(most)]
    return await run_streams(StreamLoad(port=port, streams=streams, seconds=seconds, closed=CLOSED))


async def _partly(found: Found, bench: Bench, plan: Plan, seed: int) -> None:
    """A load that the engine serves with ease, and what is added to it."""
    rate, seconds = SHARE * request_limit(ENGINE), plan.warm_up + plan.partly
    streams = drawn(rate, seconds, seed + 100)
    for one in (bench.chain.engine, bench.alone):
        await one.times()  # those of other loads are forgotten
    for is_through in (True, False) if seed % 2 == 0 else (False, True):
        tell("part of the load, " + ("through the sidecar" if is_through else "straight"))
        port = bench.chain.port if is_through else bench.alone.port
        result = await run_streams(
            StreamLoad(port=port, streams=streams, seconds=seconds, grace_seconds=_GRACE)
        )
        records = [one for one in result.records if one.due >= plan.warm_up]
        (found.partly if is_through else found.partly_straight).append(records)
        within = (await (bench.chain.engine if is_through else bench.alone).times()).first
        added = [
            one.first_seconds - within[one.mark]
            for one in records
            if one.first_seconds is not None and one.mark in within
        ]
        (found.beside if is_through else found.beside_straight).append(added)
    await bench.chain.idle()


async def _overload(found: Found, bench: Bench, plan: Plan, seed: int) -> None:
    """More than the engine serves, at the same time to both; the targets are coarse."""
    tell("overload, both")
    streams = drawn(OVERLOAD * found.capacity, plan.overload, seed + 200)
    loads = [
        StreamLoad(port=port, streams=streams, seconds=plan.overload, grace_seconds=_GRACE)
        for port in (bench.chain.port, bench.alone.port)
    ]
    through, straight = await asyncio.gather(*map(run_streams, loads))
    found.overload.append(through.records)
    found.overload_straight.append(straight.records)
    await bench.chain.idle()


async def _shared(found: Found, bench: Bench, plan: Plan, seed: int) -> None:
    """A tenant with few short prompts: alone, then beside one that floods with long ones."""
    tell("interactive tenant, alone")
    seconds = plan.shared
    streams = drawn(
        INTERACTIVE_RATE,
        seconds,
        seed + 300,
        prompt_bytes=INTERACTIVE_BYTES,
        address=INTERACTIVE,
    )
    few = StreamLoad(
        port=bench.chain.port, streams=streams, seconds=seconds, grace_seconds=2 * _GRACE
    )
    alone = await run_streams(few)
    tell("interactive tenant, beside a flood")
    rng = random.Random(seed)
    many = [
        Stream(mark=_OTHERS + number, tokens=lengths(rng), prompt_bytes=FLOOD_BYTES)
        for number in range(100 * FLOOD)
    ]
    flood = asyncio.create_task(
        run_streams(
            StreamLoad(port=bench.chain.port, streams=many, seconds=seconds + _AROUND, closed=FLOOD)
        )
    )
    await asyncio.sleep(_BEFORE)
    beside = await run_streams(few)
    found.shared.append((alone.records, beside.records, (await flood).records))
    await bench.chain.idle()


async def _opened(found: Found, chain: StreamChain, seed: int) -> None:
    """A thousand streams of many tenants that wait for tokens nearly all the time."""
    rng, seconds = random.Random(seed), OPEN / OPENED_PER_SECOND + 1.5
    addresses = itertools.cycle(f"127.0.1.{number}" for number in range(1, ADDRESSES + 1))
    streams = [
        Stream(
            mark=number,
            tokens=lengths(rng),
            at=number / OPENED_PER_SECOND,
            address=next(addresses),
        )
        for number in range(OPEN)
    ]
    # What a round leaves behind counts against the next.
    found.idle_bytes = found.idle_bytes or family_bytes(chain.pid)
    most = 0
    running = asyncio.create_task(
        run_streams(StreamLoad(port=chain.port, streams=streams, seconds=seconds))
    )
    while not running.done():
        await asyncio.wait([running], timeout=0.2)
        most = max(most, family_bytes(chain.pid))
    result: StreamResult = await running
    served = sum(one.tokens > 0 for one in result.records)
    found.opened.append((most - found.idle_bytes, result.open_at_end, served))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; returns the exit code."""
    options = new_parser(__doc__).parse_args(arguments)
    return report(asyncio.run(measure(QUICK if options.quick else FULL)), options.json)


if __name__ == "__main__":
    sys.exit(main())
