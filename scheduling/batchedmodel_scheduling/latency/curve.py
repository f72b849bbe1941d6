"""The shape of a device: seconds for a batch of so many rows, so long, as its profile measured it.

Padded devices are measured on a grid of rows and lengths and read between its knots; packed ones
pay for tokens, fixed-size ones for rows. Where a jump may lie between two knots, all above the
lower take about as long as the upper. Outside what was measured the best plane through all points
goes on. Used by `batch_times`, and by the simulator for devices that replay a profile.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import (
    Knot,
    Profile,
    ProfilePoint,
    unsure,
)

Floats = NDArray[np.float64]
_TABLED: Final = 1 << 20  # numbers in all tables together
_FLOOR: Final = 1e-7  # seconds: a prediction of nothing would make every ratio to it infinite


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
