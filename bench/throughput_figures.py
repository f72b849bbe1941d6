"""The figures of `throughput`, made of all rounds."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench_report import Figure, at_least, at_most, median_of, of_rounds
from load_generator import LoadResult
from throughput_loads import BUSY, FIRST, LARGE, LONE, SECOND, SHAPES, SINGLE, Closed, Device

OPEN_RATE: Final = 500.0
OPEN: Final = (FIRST, SECOND)
SHARE_OF_LIMIT: Final = 97.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """One run of the load generator, and what the sidecar or the bare server spent on it."""

    result: LoadResult
    cpu_microseconds: float
    """Per request, warm-up and connecting included."""
    least: Sequence[float] = ()
    """Milliseconds, p50 and p99, of the same arrivals where only the device takes time."""


@dataclass(slots=True, kw_only=True)
class Found:
    """All rounds."""

    loads: Mapping[str, list[Loaded]]
    bare: list[Loaded]
    bare_alone: Mapping[str, list[LoadResult]]
    """The bare server asked by one connection as often as each lone request comes back."""
    bare_open: Mapping[str, list[LoadResult]]
    """The bare server asked at the same moments as the devices are."""
    halved: list[LoadResult]
    """Of device 1, with half a core for each process; empty where that cannot be had."""
    probes: list[LoadResult]
    """Of the loop that serves large bodies, at random moments."""
    probes_alone: list[LoadResult]
    """The same while nobody asks for anything else."""
    idle: list[float]
    """CPU of a sidecar that nobody asks, as a share of one core."""
    busy: list[float]
    """Load averages of the machine."""


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


def _of_busy_devices(found: Found) -> list[Figure]:
    figures = []
    rates = {closed.name: _rates(found, closed) for closed in (*BUSY, SINGLE)}
    first, second = BUSY
    bare = [load.result.rate for load in found.bare]
    for closed in (first, second):
        limit = closed.device.limit
        shares = [100 * rate / limit for rate in rates[closed.name]]
        name = f"{closed.name}: share of the limit {limit:,.0f}/s"
        goal = min(SHARE_OF_LIMIT, 100 * median_of(bare) / limit)
        figures += [
            of_rounds(_at_least(name, "%", goal), shares),
            of_rounds(_plain(f"{closed.name}: answers", "1/s"), rates[closed.name]),
            _cpu(found, closed.name),
        ]
    ratios = [100 * rate / bare for rate, bare in zip(rates[second.name], bare, strict=True)]
    spent = [load.cpu_microseconds for load in found.bare]
    ours = [load.cpu_microseconds for load in found.loads[second.name]]
    costs = [one / other for one, other in zip(ours, spent, strict=True)]
    halved = [100 * result.rate / first.device.limit for result in found.halved]
    gains = [one / other for one, other in zip(rates[first.name], rates[SINGLE.name], strict=True)]
    return [
        *figures,
        of_rounds(_plain(f"bare server, closed loop {second.connections}: answers", "1/s"), bare),
        of_rounds(_plain("bare server: CPU per request", "us"), spent),
        of_rounds(_plain(f"{second.name}: share of the bare server", "%"), ratios),
        of_rounds(_at_most(f"{second.name}: CPU over the bare server's", "x", 0.9), costs),
        *(
            [of_rounds(_at_least(f"{first.name}, half a core each: share", "%", 97.0), halved)]
            if halved
            else []
        ),
        of_rounds(_plain(f"{first.name}: rate against it unbatched", "x"), gains),
    ]


def _of_callers(found: Found) -> list[Figure]:
    figures = []
    for device in OPEN:
        loads = found.loads[name_of_open(device)]
        name = f"{name_of_open(device)}: added"
        p50 = [load.result.latency.p50 / 1e3 - load.least[0] for load in loads]
        p99 = [load.result.latency.p99 / 1e3 - load.least[1] for load in loads]
        bare = [result.latency.p99 / 1e3 for result in found.bare_open[device.name]]
        over = [one / other for one, other in zip(p99, bare, strict=True)]
        late = [100 * load.result.late_sends / load.result.requests for load in loads]
        figures += [
            of_rounds(_at_most(f"{name} to the median", "ms", 1.0), p50),
            of_rounds(_at_most(f"{name} to the 99th percentile", "ms", 3.0), p99),
            of_rounds(
                _at_most(f"{name} to the 99th percentile, over the bare server's", "x", 3.0), over
            ),
            of_rounds(_plain(f"{name_of_open(device)}: p99 of the bare server", "ms"), bare),
            of_rounds(_plain(f"{name_of_open(device)}: sent over 1 ms late", "%"), late),
            _cpu(found, name_of_open(device)),
        ]
    for lone in LONE:
        alone = lone.device.curve.seconds([1]) * 1e3
        p50 = [load.result.latency.p50 / 1e3 - alone for load in found.loads[lone.name]]
        name = f"{lone.name}: added to the median (0.5 is wished for)"
        bare = [result.latency.p50 / 1e3 for result in found.bare_alone[lone.name]]
        over = [one / other for one, other in zip(p50, bare, strict=True)]
        figures += [
            of_rounds(_at_most(name, "ms", 1.0), p50),
            of_rounds(_plain(f"{lone.name}: median of the bare server, as often", "ms"), bare),
            of_rounds(_at_most(f"{lone.name}: added, over the bare server's", "x", 2.5), over),
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
    more = [one - other for one, other in zip(lag, alone, strict=True)]
    late = [100 * probes.late_sends / probes.requests for probes in found.probes]
    rates = [load.result.rate for load in found.loads[LARGE.name]]
    return [
        of_rounds(_plain(f"{LARGE.name}: lag of the loop, p99", "ms"), lag),
        of_rounds(_at_most(f"{LARGE.name}: added to that lag", "ms", 5.0), more),
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
    opened = itertools.chain.from_iterable(found.bare_open.values())
    bare = [load.result for load in found.bare]
    beside = (*bare, *alone, *opened, *found.halved, *found.probes, *found.probes_alone)
    return sum(result.requests - result.ok for result in (*results, *beside))


def name_of_open(device: Device) -> str:
    return f"{device.name}, {OPEN_RATE:.0f}/s"


def _at_least(name: str, unit: str, bound: float) -> Callable[[float], Figure]:
    return lambda value: at_least(name, value, unit, bound)


def _at_most(name: str, unit: str, bound: float) -> Callable[[float], Figure]:
    return lambda value: at_most(name, value, unit, bound)


def _plain(name: str, unit: str) -> Callable[[float], Figure]:
    return lambda value: Figure(name=name, value=value, unit=unit)
