"""How long a batch will take: the shape from the server's profile, the scale from what is observed.

`Curve` is the shape of a device as its profile measured it, `LearntSizes` what single sizes are off
by, `Drift` how far the device is from both today, and `BatchTimes` predicts by all three. Where
the profile is partial, or there is none, a line through the batches of the traffic takes its place
once enough of them have been seen; what sizes are off that line is learnt as with a whole profile.
Owned by the pipeline; policies read from it. The simulator replays profiles by `Curve`.
"""

import bisect
import math
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import (
    Knot,
    Profile,
    ProfileExtent,
    ProfilePoint,
    extent_of,
    unsure,
)
from batchedmodel_scheduling.latency.drift import Drift

Floats = NDArray[np.float64]
_WHOLE: Final = ProfileExtent.WHOLE  # an enum finds its members by Python's code
_TABLED: Final = 1 << 20  # numbers in all tables together
_FLOOR: Final = 1e-7  # seconds: a prediction of nothing would make every ratio to it infinite
_EXACT: Final = 128  # sizes up to here are classes of their own
_PER_DOUBLING: Final = 16
_TIMES_OF_A_SIZE: Final = (
    25  # times of each class; more than a change of the device takes to be seen
)
_SIZES: Final = 1024  # size classes
_NOISE: Final = 2.0  # standard errors
_SURE: Final = 2  # times of a size
_TELLING: Final = 0.01  # a change of an estimate that is worth new tables
_LARGEST: Final[list[float]] = [
    *map(float, range(_EXACT + 1)),
    *(_EXACT * 2 ** (step / _PER_DOUBLING) for step in range(1, _SIZES - _EXACT)),
]
"""What a batch of each size class pays for at most."""
_COLD_BATCHES: Final = 3  # the first ones after a start pay for allocation and compilation
_FITTED_AT: Final = (16, 32, 64, 128)
"""Batches after which a line through the traffic stands in for a profile; it is forgotten by none
that come later, so that what was learnt of sizes beside it lasts."""
_MUCH_LESS: Final = 0.7  # of what was expected
_TABLES: Final = 1024


class Curve:
    """Noise-free seconds of a batch."""

    def __init__(self, profile: Profile) -> None:
        """Raises ValueError when the points say nothing that could be used."""
        if not profile.points or not all(0 < p.seconds < math.inf for p in profile.points):
            raise ValueError("no measured times")
        self.rule: Final = profile.cost_rule
        rows = np.array([point.rows for point in profile.points], dtype=float)
        lengths = np.array([max(1, point.length) for point in profile.points], dtype=float)
        seconds = np.array([point.seconds for point in profile.points])
        if self.rule is CostRule.ROWS:
            lengths = np.zeros_like(lengths)
        self._plane = _plane(rows, rows * lengths, seconds)
        self._lengths: Floats = np.unique(lengths)
        self._by_length = [_knots(rows, seconds, lengths == length) for length in self._lengths]
        every = np.ones(len(rows), dtype=bool)
        tokens = _knots(rows * lengths, seconds - self._plane[1] * rows, every)
        self._stretches: Final = tokens.stretches(beyond=self._plane[2])
        """Of a packed batch's tokens."""
        self._tables: dict[int, list[float]] = {}

    def seconds(self, lengths: Sequence[int]) -> float:
        """Seconds for a batch of at least one item."""
        if self.rule is CostRule.PACKED:
            return self.packed_table(lengths)[-1]
        rows = len(lengths)
        return self.rows_table(max(lengths), rows)[rows]

    def rows_table(self, length: int, rows: int) -> list[float]:
        """Seconds for 0 to at least `rows` items of which the longest has this length."""
        table = self._tables.get(length)
        if table is None or len(table) <= rows:
            if len(self._tables) * rows >= _TABLED:
                self._tables.clear()
            table = self._tables[length] = self._rows_table(length, rows)
        return table

    def _rows_table(self, length: int, rows: int) -> list[float]:
        counts = np.arange(1, rows + 1, dtype=float)
        at = self._lengths
        if self.rule is CostRule.PACKED:
            return self.packed_table([length] * rows)
        if length <= at[0] or length >= at[-1]:
            edge = 0 if length <= at[0] else len(at) - 1
            found = self._at_knot(edge, counts)
            if self.rule is not CostRule.ROWS:
                found = found + counts * (length - at[edge]) * max(0.0, self._plane[2])
        else:
            found = self._between_lengths(int(np.searchsorted(at, length)), length, counts)
        return [0.0, *np.maximum.accumulate(np.maximum(found, _FLOOR)).tolist()]

    def _between_lengths(self, right: int, length: int, counts: Floats) -> Floats:
        """Between two measured lengths: as batches of these with as many tokens take.

        Devices jump at tokens rather than at rows. Where only one of the two was measured with
        about as many tokens, that one counts. But it takes no less than as many shorter rows.
        """
        per_row = self._plane[1]
        below, above = self._lengths[right - 1], self._lengths[right]
        fewer, more = counts * (length / above), counts * (length / below)
        part = np.full_like(counts, (length - below) / (above - below))
        part[fewer < self._by_length[right].at[0]] = 0.0
        part[more > self._by_length[right - 1].at[-1]] = 1.0
        shorter = self._at_knot(right - 1, more) - per_row * more
        longer = self._at_knot(right, fewer) - per_row * fewer
        found = (1 - part) * shorter + part * longer + per_row * counts
        as_many_shorter = self._at_knot(right - 1, counts)
        kept: Floats = np.minimum(np.maximum(found, as_many_shorter), self._at_knot(right, counts))
        return kept

    def packed_table(self, lengths: Sequence[int]) -> list[float]:
        """Seconds for the first 0, 1, ... of these items together.

        Decisions ask for dozens of these, so it is a loop, which is compiled.
        """
        per_row, stretches = self._plane[1], self._stretches
        stretch, index, tokens, rows, most = stretches[0], 0, 0.0, 0.0, _FLOOR
        found: list[float] = [0.0]
        for length in lengths:
            tokens += length
            rows += 1.0
            while tokens > stretch.until:
                index += 1
                stretch = stretches[index]
            seconds = stretch.seconds + stretch.slope * (tokens - stretch.at) + per_row * rows
            if seconds > most:  # more work never takes less time
                most = seconds
            found.append(most)
        return found

    def _at_knot(self, index: int, counts: Floats) -> Floats:
        """Seconds by rows of one measured length, at least those of all shorter ones.

        More work never takes less time; where measurements say so it is noise.
        """
        found: Floats = np.max([self._measured(k, counts) for k in range(index + 1)], axis=0)
        return found

    def _measured(self, index: int, counts: Floats) -> Floats:
        """Seconds by rows as one length was measured; beyond the ends the slopes go on."""
        knots = self._by_length[index]
        at, seconds = knots.at, knots.seconds
        _, per_row, per_token = self._plane
        slope = last_slope = max(0.0, per_row + per_token * self._lengths[index])
        if len(at) > 1:
            last_slope = max(0.0, float((seconds[-1] - seconds[-2]) / (at[-1] - at[-2])))
        after = np.maximum(counts - at[-1], 0) * last_slope
        before = np.minimum(counts - at[0], 0) * slope
        found: Floats = np.maximum(knots.read(counts) + after + before, _FLOOR)
        return found


class _Stretch:
    """A straight line: `seconds` at a size, and `slope` for what a size differs from it."""

    __slots__ = ("at", "seconds", "slope", "until")

    def __init__(self, *, until: float, at: float, seconds: float, slope: float) -> None:
        self.until: Final = until
        """The largest size that it is for."""
        self.at: Final = at
        self.seconds: Final = seconds
        self.slope: Final = slope


class _Knots(NamedTuple):
    """Seconds at measured sizes, ascending in both."""

    at: Floats
    seconds: Floats
    jumps: list[bool]
    """Of each stretch between neighbours, whether a jump may lie there."""

    def read(self, sizes: Floats) -> Floats:
        """Between the knots straight, but on the safe side of what may be a jump."""
        at, seconds = self.at, self.seconds
        found: Floats = np.interp(sizes, at, seconds)
        if any(self.jumps):
            for n in np.flatnonzero(self.jumps).tolist():
                inside = (sizes > at[n]) & (sizes < at[n + 1])
                found[inside] = seconds[n + 1] - self._slope(n) * (at[n + 1] - sizes[inside])
        return found

    def stretches(self, *, beyond: float) -> list[_Stretch]:
        """The same as lines, ascending; `beyond` is the slope outside the knots."""
        at, seconds = self.at.tolist(), self.seconds.tolist()
        lines = [_Stretch(until=at[0], at=at[0], seconds=seconds[0], slope=beyond)]
        for n in range(len(at) - 1):
            right, slope = at[n + 1], self._slope(n)
            lines.append(_Stretch(until=right, at=right, seconds=seconds[n + 1], slope=slope))
        lines.append(_Stretch(until=math.inf, at=at[-1], seconds=seconds[-1], slope=beyond))
        return lines

    def _slope(self, stretch: int) -> float:
        """Seconds per size just below the upper end of a stretch: no more than beside a jump."""
        slopes = np.diff(self.seconds) / np.diff(self.at)
        if not self.jumps[stretch]:
            return float(slopes[stretch])
        beside = [slopes[n] for n in (stretch - 1, stretch + 1) if 0 <= n < len(slopes)]
        return float(min(slopes[stretch], min(beside, default=0.0)))


def smoothed(rule: CostRule, points: Iterable[ProfilePoint]) -> Profile:
    """The profile of the best plane through scattered points, such as traffic leaves them."""
    known = tuple(points)
    rows = np.array([point.rows for point in known], dtype=float)
    lengths = np.array([point.length for point in known], dtype=float)
    fixed, per_row, per_token = _plane(
        rows, rows * lengths, np.array([point.seconds for point in known])
    )
    corners = [
        (int(count), int(length))
        for count in {1, rows.max()}
        for length in {lengths.min(), lengths.max()}
    ]
    return Profile(
        cost_rule=rule,
        device="learnt",
        points=tuple(
            ProfilePoint(
                rows=count,
                length=length,
                seconds=fixed + per_row * count + per_token * count * length,
            )
            for count, length in sorted(corners)
        ),
    )


def _knots(sizes: Floats, seconds: Floats, chosen: NDArray[np.bool_]) -> _Knots:
    at = np.unique(sizes[chosen])
    values = [float(np.median(seconds[chosen & (sizes == value)])) for value in at]
    ascending = _ascending(values)
    return _Knots(at, ascending, unsure(list(map(Knot, at.tolist(), ascending.tolist()))))


def _ascending(values: list[float]) -> Floats:
    """More work never takes less time: where measurements say so it is noise, and shared.

    The pool of adjacent violators (Ayer et al., 1955).
    """
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            before, members = pools.pop()
            mean = (before * members + mean * count) / (members + count)
            count += members
        pools.append((mean, count))
    return np.repeat([mean for mean, _ in pools], [count for _, count in pools])


def _plane(rows: Floats, tokens: Floats, seconds: Floats) -> tuple[float, float, float]:
    """Least squares on relative errors, no term below zero: a long batch must not drown the short.

    A term that the points cannot tell from others stays zero.
    """
    columns = np.stack([np.ones_like(rows), rows, tokens], axis=1) / seconds[:, None]
    best, best_error = (float(np.median(seconds)), 0.0, 0.0), math.inf
    for used in ([0, 1, 2], [0, 2], [0, 1], [1, 2], [2], [1], [0]):
        solution, *_ = np.linalg.lstsq(columns[:, used], np.ones(len(seconds)), rcond=None)
        error = float(np.sum((columns[:, used] @ solution - 1) ** 2))
        if np.all(solution >= 0) and np.all(np.isfinite(solution)) and error < best_error - 1e-12:
            terms = [0.0, 0.0, 0.0]
            for column, value in zip(used, solution, strict=True):
                terms[column] = float(value)
            best, best_error = (terms[0], terms[1], terms[2]), error
    return best


class LearntSizes:
    """Deviations of sizes that have run: logarithms of observed over expected times.

    A size that has not run deviates as its neighbours among the known ones do, in between by parts.
    """

    def __init__(self, measured: Iterable[int]) -> None:
        """`measured`: the sizes that the profile knows, and does not just read off its curve."""
        self._measured: Final = frozenset(map(_class_of, measured))
        self.forget()

    def forget(self) -> None:
        """The device has become another one."""
        self._times: dict[int, deque[float]] = {}
        self._estimates: dict[int, float] = {}
        """Of the sizes that have run often enough."""
        self._is_sure = [False] * _SIZES
        """Whether there is an estimate, by size."""
        self._factors: list[float] | None = None
        """Observed over expected times, by size; None: to be found anew."""

    def observe(self, paid: int, deviation: float, spread: float) -> bool:
        """A batch deviated; returns whether what is known of its size has changed by it."""
        size = _class_of(paid)
        times = self._times.get(size)
        if times is None:
            times = self._times[size] = deque(maxlen=_TIMES_OF_A_SIZE)
        times.append(deviation)
        if len(times) < _SURE:
            # It may be a straggler. A size that it makes too slow for the target never runs again.
            return False
        estimate, before = _estimate(sorted(times), spread), self._estimates.get(size)
        if before is not None and abs(estimate - before) <= _TELLING:
            return False
        self._estimates[size] = estimate
        self._is_sure[size] = True
        self._factors = None
        return True

    def _every_factor(self) -> list[float]:
        """What all are off by at least that the profile measured and that have run is the device's.

        So measured sizes that have not run are off by it too.
        """
        ran = self._estimates
        known = [ran[size] for size in self._measured if size in ran]
        shared = min(known, key=abs) if known and min(known) * max(known) > 0 else 0.0
        deviations = dict.fromkeys(self._measured, shared) | ran
        at = sorted(deviations)
        between = np.interp(np.arange(_SIZES), at, [deviations[size] for size in at])
        factors: list[float] = np.exp(between).tolist()
        return factors

    def corrected(self, seconds: list[float], paid: list[float]) -> list[float]:
        """Times of batches that pay for so much, ascending, with what is known of their sizes.

        A size takes at least as long as a smaller one, and at most as long as a larger one that has
        run twice. Decisions ask for dozens of these, so all are floats: compiled, comparing those
        needs no objects.
        """
        if not self._estimates:
            return seconds
        if self._factors is None:
            self._factors = self._every_factor()
        found = list(seconds)
        at_most = math.inf
        size, largest = _class_of(paid[-1]), _LARGEST
        factors, is_sure = self._factors, self._is_sure
        for index in range(len(found) - 1, -1, -1):
            pays = paid[index]
            # They go down, and comparing costs less than a logarithm.
            while size and pays <= largest[size - 1]:
                size -= 1
            one = found[index] * factors[size]
            if one < at_most and is_sure[size]:
                at_most = one
            found[index] = one if one < at_most else at_most
        at_least = 0.0
        for index, one in enumerate(found):
            at_least = max(at_least, one)
            found[index] = at_least
        return found


def _estimate(ordered: list[float], spread: float) -> float:
    """What noise does not explain of the middle of these, which are ascending."""
    count = len(ordered)
    # Of two the one that says less: the other may be a straggler.
    middle = ordered[count // 2] if count != 2 else min(ordered, key=abs)
    return math.copysign(max(0.0, abs(middle) - _NOISE * spread / math.sqrt(count)), middle)


def _class_of(paid: float) -> int:
    return bisect.bisect_left(_LARGEST, paid)


class BatchTimes:
    """Predicts the forward pass of a batch, in seconds."""

    def __init__(self, profile: Profile | None) -> None:
        self.rule: Final = profile.cost_rule if profile else CostRule.PADDED
        self._curve = _curve(profile)
        self._points: Final = profile.points if profile and self._curve else ()
        self._learnt: Final = LearntSizes(_measured(profile))
        self.profiled = self._curve is not None
        """Whether predictions rest on the server's own measurements alone."""
        self.extent: Final = extent_of(profile if self.profiled else None)
        """A partial profile foretells batches. Work is counted in seconds by a whole one only."""
        self.drift: Final = Drift()
        self._cold = _COLD_BATCHES
        self._tables: dict[int, list[float]] = {}
        self._samples: list[ProfilePoint] = []

    @property
    def upper(self) -> float:
        """Present over tabled times, what nine of ten batches keep."""
        return self.drift.scale * self.drift.margin

    @property
    def counts_seconds(self) -> bool:
        """Whether work is in seconds of the device; otherwise in full batches."""
        return self.extent is _WHOLE

    def predict(self, lengths: Sequence[int]) -> float | None:
        """Seconds for a batch of items of these lengths; None while nothing is known."""
        if self._curve is None:
            return None
        return self._expected(lengths) * self.drift.scale

    def table(self, longest: int, rows: int) -> list[float]:
        """Seconds by number of items of which the longest has this length, at least to `rows`.

        Without drift: multiply by `drift.scale` or `upper`. All zero while nothing is known.
        """
        if self._curve is None:
            return [0.0] * (rows + 1)
        table = self._tables.get(longest)
        if table is None or len(table) <= rows:
            table = self._curve.rows_table(longest, rows)
            each = 1 if self.rule is CostRule.ROWS else max(1, longest)
            paid = [float(each * count) for count in range(len(table))]
            table = self._learnt.corrected(table, paid)
            if len(self._tables) >= _TABLES:
                self._tables.clear()
            self._tables[longest] = table
        return table

    def upper_table(self, longest: int, rows: int) -> list[float]:
        """What nine of ten batches keep, by number of items of which the longest has this length.

        To `rows`; all zero while nothing is known.
        """
        factor = self.upper
        return [seconds * factor for seconds in self.table(longest, rows)[: rows + 1]]

    def packed_table(self, lengths: Sequence[int]) -> list[float]:
        """Seconds for the first 0, 1, ... of these items when packed, without drift."""
        if self._curve is None:
            return [0.0] * (len(lengths) + 1)
        table = self._curve.packed_table(lengths)
        return self._learnt.corrected(table, list(accumulate(lengths, initial=0.0)))

    def _expected(self, lengths: Sequence[int]) -> float:
        """Seconds of a batch without drift."""
        if self.rule is CostRule.PACKED:
            return self.packed_table(lengths)[-1]
        return self.table(max(lengths), len(lengths))[len(lengths)]

    def _paid(self, lengths: Sequence[int]) -> int:
        """What such a batch pays for; where it is padded, at least a token for each item."""
        longest = max(1, *lengths)
        return self.rule.paid(rows=len(lengths), longest=longest, total=sum(lengths))

    def share(self, length: int, rows: int) -> float | None:
        """Seconds of the device for one item's part in a batch of `rows` items of this length.

        By the profile alone, and None without a whole one: what traffic taught may change, and
        sums of work must not.
        """
        if self._curve is None or not self.counts_seconds:
            return None
        return self._curve.rows_table(length, rows)[rows] / rows * self.drift.scale

    def paid(self, lengths: Sequence[int]) -> float | None:
        """Seconds that a batch of such items counts for, as `share` counts each of them."""
        return None if self._curve is None else self._curve.seconds(lengths) * self.drift.scale

    def observe(self, lengths: Sequence[int], seconds: float, *, trial: bool = False) -> None:
        """Learn from one forward pass.

        `trial`: it ran although it was predicted to be late. If it took much less time, that is
        believed at once: while items are refused there is nothing else to learn from.
        """
        if seconds <= 0:
            return
        if not self.counts_seconds:
            self._learn(lengths, seconds)
        if self._curve is None:
            return
        expected = self._expected(lengths)
        if trial and seconds < _MUCH_LESS * expected * self.drift.scale:
            self.drift.believe(seconds / expected)
            return
        if self._cold:
            self._cold -= 1
            return
        if self._learn_size(lengths, seconds / self.drift.scale):
            # What this size is off by does not count as drift of the device as well.
            self._tables.clear()
            expected = self._expected(lengths)
        if self.drift.observe(seconds / expected):
            self._learnt.forget()
            self._tables.clear()

    def _learn_size(self, lengths: Sequence[int], seconds: float) -> bool:
        """Let the device's own time of a size stand beside the curve's; whether that changes it."""
        assert self._curve is not None, "a profiled device has a curve"
        deviation = math.log(seconds / self._curve.seconds(lengths))
        return self._learnt.observe(self._paid(lengths), deviation, self.drift.spread)

    def _learn(self, lengths: Sequence[int], seconds: float) -> None:
        """Let the traffic stand in for the whole profile that the server has not.

        Far from the few sizes of a partial one any line through them is a guess. By a guess that is
        too slow larger batches are never tried.
        """
        if len(self._samples) == _FITTED_AT[-1]:
            return
        rows = len(lengths)
        each = max(1, round(self._paid(lengths) / rows))
        self._samples.append(ProfilePoint(rows=rows, length=each, seconds=seconds))
        if len(self._samples) not in _FITTED_AT:
            return
        self._curve = _curve(smoothed(self.rule, [*self._points, *self._samples]))
        self.profiled = False
        self.drift.start_over()
        self._learnt.forget()
        for point in self._samples:
            self._learn_size([point.length] * point.rows, point.seconds)
        self._tables.clear()


def _measured(profile: Profile | None) -> list[int]:
    """What batches pay for that the profile has timed."""
    if profile is None:
        return []
    return [
        profile.cost_rule.paid(
            rows=point.rows, longest=max(1, point.length), total=point.rows * max(1, point.length)
        )
        for point in profile.points
    ]


def _curve(profile: Profile | None) -> Curve | None:
    try:
        return None if profile is None else Curve(profile)
    except ValueError:
        return None
