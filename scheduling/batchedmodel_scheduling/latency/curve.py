"""The shape of a device: seconds for a batch of so many rows, so long, as its profile measured it.

Padded devices are measured on a grid of rows and lengths and read between its knots; packed ones
pay for tokens, fixed-size ones for rows. Outside what was measured the best plane through all
points goes on. Used by `batch_times`, and by the simulator for devices that replay a profile.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile, ProfilePoint

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
        lengths = np.array([point.length for point in profile.points], dtype=float)
        seconds = np.array([point.seconds for point in profile.points])
        if self.rule is CostRule.ROWS:
            lengths = np.zeros_like(lengths)
        self._plane = _plane(rows, rows * lengths, seconds)
        self._lengths: Floats = np.unique(lengths)
        self._by_length = [_knots(rows, seconds, lengths == length) for length in self._lengths]
        self._tokens, self._excess = self._packed(rows * lengths, rows, seconds)
        self._tables: dict[int, list[float]] = {}

    def seconds(self, lengths: Sequence[int]) -> float:
        """Seconds for a batch of at least one item."""
        if self.rule is CostRule.PACKED:
            return self.packed_seconds(lengths)[-1]
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
            return [0.0, *self.packed_seconds([length] * rows)]
        if length <= at[0] or length >= at[-1]:
            edge = 0 if length <= at[0] else len(at) - 1
            found = self._at_knot(edge, counts)
            if self.rule is not CostRule.ROWS:
                found = found + counts * (length - at[edge]) * max(0.0, self._plane[2])
        else:
            right = int(np.searchsorted(at, length))
            part = (length - at[right - 1]) / (at[right] - at[right - 1])
            found = (1 - part) * self._at_knot(right - 1, counts)
            found = found + part * self._at_knot(right, counts)
        return [0.0, *np.maximum.accumulate(np.maximum(found, _FLOOR)).tolist()]

    def packed_seconds(self, lengths: Sequence[int]) -> list[float]:
        """Seconds for the first 1, 2, ... of these items together."""
        fixed, per_row, per_token = self._plane
        tokens = np.cumsum(np.asarray(lengths, dtype=float))
        found = fixed + per_row * np.arange(1, len(lengths) + 1) + per_token * tokens
        found += np.interp(tokens, self._tokens, self._excess)
        seconds: list[float] = np.maximum.accumulate(np.maximum(found, _FLOOR)).tolist()
        return seconds

    def _at_knot(self, index: int, counts: Floats) -> Floats:
        """Seconds by rows of one measured length, at least those of all shorter ones.

        More work never takes less time; where measurements say so it is noise.
        """
        found: Floats = np.max([self._measured(k, counts) for k in range(index + 1)], axis=0)
        return found

    def _measured(self, index: int, counts: Floats) -> Floats:
        """Seconds by rows as one length was measured; beyond the ends the slopes go on."""
        rows, seconds = self._by_length[index]
        _, per_row, per_token = self._plane
        slope = last_slope = max(0.0, per_row + per_token * self._lengths[index])
        if len(rows) > 1:
            last_slope = max(0.0, float((seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2])))
        inside = np.interp(counts, rows, seconds)
        after = np.maximum(counts - rows[-1], 0) * last_slope
        before = np.minimum(counts - rows[0], 0) * slope
        found: Floats = np.maximum(inside + after + before, _FLOOR)
        return found

    def _packed(self, tokens: Floats, rows: Floats, seconds: Floats) -> tuple[Floats, Floats]:
        """By how much the measured times exceed the plane, over the number of tokens."""
        fixed, per_row, per_token = self._plane
        over = seconds - (fixed + per_row * rows + per_token * tokens)
        at = np.unique(tokens)
        excess = np.array([float(np.median(over[tokens == value])) for value in at])
        # As above: together with the plane it must not fall.
        excess = np.maximum.accumulate(excess + per_token * at) - per_token * at
        return at, excess


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


def _knots(rows: Floats, seconds: Floats, chosen: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    at = np.unique(rows[chosen])
    values = [float(np.median(seconds[chosen & (rows == value)])) for value in at]
    return at, np.maximum.accumulate(np.array(values))


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
