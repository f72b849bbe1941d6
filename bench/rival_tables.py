"""Answers a second and latencies of several servers under several loads: tables and figures.

Called by `rivals`. It knows what was measured, not how.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench_report import Figure, at_least, median_of, of_rounds, plain

GOALS: Final[Mapping[int, float]] = {1: 0.95, 8: 1.3, 64: 1.5}
"""By the number of callers: ours over the best rival, in answers a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """So many callers, on an idle machine or beside a busy process."""

    callers: int
    beside: bool

    @property
    def name(self) -> str:
        return f"{'beside a neighbour' if self.beside else 'idle'}, {callers_of(self)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one server answered under one load in one round."""

    rate: float
    """Answers a second."""
    p50: float
    """Milliseconds, as the next."""
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One server in a table."""

    name: str
    datatype: str
    is_ours: bool
    samples: Mapping[Load, Sequence[Sample]]
    """By round."""


def callers_of(load: Load) -> str:
    """In words."""
    return "1 caller" if load.callers == 1 else f"{load.callers} callers"


def markdown(title: str, rows: Sequence[Row]) -> str:
    """A table for people: medians of answers a second, then of latencies."""
    return "\n".join(
        [
            f"{title}: answers a second, median of rounds (lowest to highest)",
            "",
            *_lines(rows, _rates),
            "",
            f"{title}: p50 / p99 in milliseconds, medians of rounds",
            "",
            *_lines(rows, _latencies),
        ]
    )


def figures(title: str, rows: Sequence[Row]) -> list[Figure]:
    """Each server's, and ours over the best rival of each round."""
    found: list[Figure] = []
    for load in rows[0].samples:
        what = f"{title}, {load.name}"
        rivals = [row.samples[load] for row in rows if not row.is_ours]
        best = [max(sample.rate for sample in of_round) for of_round in zip(*rivals, strict=True)]
        for row in rows:
            samples = row.samples[load]
            if row.is_ours and best:
                found.append(_over(f"{what}: {row.name} over the best rival", load, samples, best))
            of = f"{what}: {row.name} ({row.datatype})"
            found += [
                of_rounds(plain(f"{of}, answers", "1/s"), [one.rate for one in samples]),
                of_rounds(plain(f"{of}, p50", "ms"), [one.p50 for one in samples]),
                of_rounds(plain(f"{of}, p99", "ms"), [one.p99 for one in samples]),
            ]
    return found


def _over(name: str, load: Load, samples: Sequence[Sample], best: Sequence[float]) -> Figure:
    ratios = [mine.rate / other for mine, other in zip(samples, best, strict=True)]
    return of_rounds(lambda value: at_least(name, value, "x", GOALS[load.callers]), ratios)


def _short(load: Load) -> str:
    return f"{callers_of(load)}, {'beside' if load.beside else 'idle'}"


def _rates(samples: Sequence[Sample]) -> str:
    rates = [sample.rate for sample in samples]
    return f"{_short_number(median_of(rates))} ({_spread(rates)})"


def _spread(values: Sequence[float]) -> str:
    return f"{_short_number(min(values))} to {_short_number(max(values))}"


def _latencies(samples: Sequence[Sample]) -> str:
    middle = median_of(sample.p50 for sample in samples)
    last = median_of(sample.p99 for sample in samples)
    return f"{_short_number(middle)} / {_short_number(last)}"


def _short_number(value: float) -> str:
    """Three digits, and all before the point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _lines(rows: Sequence[Row], cell: Callable[[Sequence[Sample]], str]) -> Iterable[str]:
    head = ["server", "computes in", *(_short(load) for load in rows[0].samples)]
    body = [[row.name, row.datatype, *map(cell, row.samples.values())] for row in rows]
    for cells in (head, ["---"] * len(head), *body):
        yield f"| {' | '.join(cells)} |"
