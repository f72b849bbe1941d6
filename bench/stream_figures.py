"""The figures of the bench of streams, made of what was found. Called by `streams`; pure."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from bench_report import Figure, at_least, at_most, of_rounds
from stream_capacity import meets, request_limit, token_limit
from stream_faults import Seen
from stream_plan import Record, StreamResult
from support.engine import EngineSettings

Records = Sequence[Record]


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """One closed loop."""

    rate: float
    """Tokens per second once it runs."""
    tokens: int
    cpu_seconds: float
    """Of the sidecar, for all of these tokens."""
    generator_cpu_seconds: float
    result: StreamResult

    def share(self, engine: EngineSettings) -> float:
        """Of what the engine makes of outputs of these lengths."""
        ended = [one.tokens for one in self.result.records if one.completed]
        return self.rate / token_limit(engine, mean_tokens=fmean(ended) if ended else math.inf)


@dataclass(kw_only=True)
class Found:
    """Of all rounds."""

    capacity: float
    engine: EngineSettings
    closed: list[Busy] = field(default_factory=list)
    closed_straight: list[Busy] = field(default_factory=list)
    partly: list[Records] = field(default_factory=list)
    partly_straight: list[Records] = field(default_factory=list)
    overload: list[Records] = field(default_factory=list)
    overload_straight: list[Records] = field(default_factory=list)
    shared: list[tuple[Records, Records, Records]] = field(default_factory=list)
    """The interactive tenant alone, and beside the flood; the flood."""
    beside: list[Sequence[float]] = field(default_factory=list)
    """Of the streams of `partly`: seconds to the first token that did not pass in the engine."""
    beside_straight: list[Sequence[float]] = field(default_factory=list)
    idle_bytes: int = 0
    """Of a sidecar that nobody has asked for anything."""
    opened: list[tuple[int, int, int]] = field(default_factory=list)
    """Bytes, how many streams were open, and how many of all had a token."""
    faults: list[Seen] = field(default_factory=list)
    late_steps: float = 0.0
    steps: float = 1.0


def figures_of(found: Found) -> list[Figure]:
    """In the order of the goals, each followed by what helps to judge it."""
    return [
        *_closed(found),
        *_partly(found),
        *_overload(found),
        *_shared(found),
        *_opened(found.opened),
        *_faults(found.faults),
        _figure("engine: steps over 5 ms late", 100 * found.late_steps / found.steps, "%"),
        _figure("load average", os.getloadavg()[0], ""),
    ]


def _closed(found: Found) -> list[Figure]:
    through, straight = found.closed, found.closed_straight
    name = "closed loop of 96"
    shares = [100 * one.share(found.engine) for one in through]
    costs = [one.cpu_seconds / (one.tokens or math.nan) * 1e6 for one in through]
    own = [one.generator_cpu_seconds / (one.tokens or math.nan) * 1e6 for one in through]
    return [
        of_rounds(
            lambda value: at_least(f"{name}: share of the engine's limit", value, "%", 97.0), shares
        ),
        of_rounds(_plain(f"{name}: tokens", "1/s"), [one.rate for one in through]),
        of_rounds(
            _plain(f"{name}, straight: share of the engine's limit", "%"),
            [100 * one.share(found.engine) for one in straight],
        ),
        of_rounds(
            lambda value: at_most(f"{name}: CPU of the sidecar per token", value, "us", 30.0), costs
        ),
        of_rounds(_plain(f"{name}: CPU of the load generator per token", "us"), own),
    ]


def _partly(found: Found) -> list[Figure]:
    added, medians, firsts = [], [], []
    for through, straight in zip(found.partly, found.partly_straight, strict=True):
        added.append(1e3 * (_first(through, 99) - _first(straight, 99)))
        medians.append(1e3 * (_first(through, 50) - _first(straight, 50)))
        firsts.append(1e3 * _first(straight, 99))
    failed = [_failed(records) for records in found.partly]
    ways = {
        which: [
            1e3 * (_percentile(through, which) - _percentile(straight, which))
            for through, straight in zip(found.beside, found.beside_straight, strict=True)
        ]
        for which in (50, 99)
    }
    return [
        of_rounds(
            lambda value: at_most("70 % load: first token added, p99", value, "ms", 5.0), added
        ),
        of_rounds(_plain("70 % load: first token added, median", "ms"), medians),
        of_rounds(_plain("70 % load: added beside the engine's own time, median", "ms"), ways[50]),
        of_rounds(_plain("70 % load: added beside the engine's own time, p99", "ms"), ways[99]),
        of_rounds(_plain("70 % load, straight: first token, p99", "ms"), firsts),
        of_rounds(_plain("70 % load: streams that were not whole", "%"), failed),
    ]


def _overload(found: Found) -> list[Figure]:
    through = [_good(records) for records in found.overload]
    straight = [_good(records) for records in found.overload_straight]
    ratios = [ours / (theirs or math.nan) for ours, theirs in zip(through, straight, strict=True)]
    most = 100 * request_limit(found.engine) / (1.3 * found.capacity)
    return [
        of_rounds(
            lambda value: at_least("1.3 x capacity: goodput over straight", value, "x", 1.5), ratios
        ),
        of_rounds(_plain("1.3 x capacity: streams with both targets met", "%"), through),
        of_rounds(_plain("1.3 x capacity, straight: the same", "%"), straight),
        _figure("1.3 x capacity: what the engine can serve", most, "%"),
        of_rounds(
            _plain("1.3 x capacity: streams refused", "%"),
            [100 * fmean(one.status not in (0, 200) for one in it) for it in found.overload],
        ),
        _figure("capacity", found.capacity, "1/s"),
    ]


def _shared(found: Found) -> list[Figure]:
    alone = [_first(records, 99) for records, _, _ in found.shared]
    beside = [_first(records, 99) for _, records, _ in found.shared]
    ratios = [there / here for here, there in zip(alone, beside, strict=True)]
    name = "interactive tenant beside a flood"
    return [
        of_rounds(
            lambda value: at_most(f"{name}: first token p99 over alone", value, "x", 2.0), ratios
        ),
        of_rounds(_plain(f"{name}: first token, p99", "ms"), [1e3 * one for one in beside]),
        of_rounds(
            _plain("interactive tenant alone: first token, p99", "ms"), [1e3 * one for one in alone]
        ),
        of_rounds(
            _plain(f"{name}: its streams that were not whole", "%"),
            [_failed(records) for _, records, _ in found.shared],
        ),
        of_rounds(
            _plain("flood: streams that were whole", ""),
            [sum(one.completed for one in records) for _, _, records in found.shared],
        ),
    ]


def _opened(opened: Sequence[tuple[int, int, int]]) -> list[Figure]:
    name = "1,000 open streams"
    # Of fewer that were let in, the memory says nothing.
    memory = [held / 1e6 if count >= 1000 else math.nan for held, count, _ in opened]
    return [
        of_rounds(lambda value: at_most(f"{name}: memory above idle", value, "MB", 60.0), memory),
        of_rounds(_plain(f"{name}: the most memory", "MB"), [held / 1e6 for held, *_ in opened]),
        of_rounds(_plain(f"{name}: not refused", ""), [count for _, count, _ in opened]),
        of_rounds(_plain(f"{name}: with a token", ""), [count for *_, count in opened]),
    ]


def _faults(seen: Sequence[Seen]) -> list[Figure]:
    name = "kills, leaves, slow readers"
    wrong = sum(one.wrong for one in seen)
    return [
        at_most(f"{name}: lost or doubled chunks", float(wrong), "", 0.0),
        at_most(f"{name}: false ends", float(sum(one.false_ends for one in seen)), "", 0.0),
        at_most(
            "callers who leave: longest until the engine ends their requests",
            1e3 * max((it for one in seen for it in one.leaves), default=math.nan),
            "ms",
            50.0,
        ),
        _figure(f"{name}: broken off without a cause", sum(one.without_cause for one in seen), ""),
        _figure(f"{name}: refused", sum(one.refused for one in seen), ""),
        _figure(f"{name}: streams", sum(one.streams for one in seen), ""),
        _figure("of these killed with the engine", sum(one.killed for one in seen), ""),
        _figure("of these left by their callers", sum(one.left for one in seen), ""),
        _figure("of these read slowly", sum(one.slow for one in seen), ""),
    ]


def _first(records: Records, percentile: float) -> float:
    """Seconds to the first token by nearest rank; NaN where the rank got none."""
    return _percentile(
        [math.inf if one.first_seconds is None else one.first_seconds for one in records],
        percentile,
    )


def _percentile(seconds: Sequence[float], percentile: float) -> float:
    if not seconds:
        return math.nan
    found = float(np.percentile(seconds, percentile, method="inverted_cdf"))
    return found if math.isfinite(found) else math.nan


def _good(records: Records) -> float:
    """Per cent of those that were due."""
    good = [one.completed and meets(one.first_seconds, one.token_seconds) for one in records]
    return 100 * fmean(good)


def _failed(records: Records) -> float:
    return 100 * fmean(not one.completed for one in records)


def _figure(name: str, value: float, unit: str) -> Figure:
    return Figure(name=name, value=float(value), unit=unit)


def _plain(name: str, unit: str) -> Callable[[float], Figure]:
    return lambda value: _figure(name, value, unit)
