"""How long a forward pass takes: affine curves and measured grids, to and from profiles.

Plants, oracles and bounds are made from a curve; it is exact and has no noise.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, assert_never

import numpy as np

from batchedmodel_contract.description import CostRule
from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_contract.profile import Profile, ProfilePoint


class Curve(Protocol):
    """Time of a forward pass by the lengths of its rows."""

    def seconds(self, lengths: Sequence[int]) -> float:
        """For at least one row."""
        ...


def cost(rule: CostRule, lengths: Sequence[int]) -> int:
    """What the device pays for a batch, in the unit of its rule."""
    match rule:
        case CostRule.PADDED:
            return len(lengths) * max(lengths)
        case CostRule.PACKED:
            return sum(lengths)
        case CostRule.ROWS:
            return len(lengths)
        case _:
            assert_never(rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """fixed + per_row x rows + per_token x cost, in seconds."""

    fixed: float
    per_row: float = 0.0
    per_token: float = 0.0
    rule: CostRule = CostRule.PADDED

    def seconds(self, lengths: Sequence[int]) -> float:
        """See `Curve`."""
        tokens = cost(self.rule, lengths) if self.per_token else 0
        return self.fixed + self.per_row * len(lengths) + self.per_token * tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Measured points, bilinear in rows and length between them.

    A batch of different lengths counts as one of equal lengths at the same cost: the longest if the
    model pads, the mean if it packs. Beyond the last point the curve goes on as `beyond` does;
    before the first it is flat, because nothing is faster than the smallest batch measured.
    """

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    measured: tuple[tuple[float, ...], ...]
    """Seconds, by row count and then by length."""
    beyond: Affine

    def seconds(self, lengths: Sequence[int]) -> float:
        """See `Curve`."""
        rows = len(lengths)
        length: float
        match self.beyond.rule:
            case CostRule.PADDED:
                length = max(lengths)
            case CostRule.PACKED:
                length = sum(lengths) / rows
            case CostRule.ROWS:
                length = self.lengths[0]
            case _:
                assert_never(self.beyond.rule)
        return self.at(rows, length)

    def at(self, rows: int, length: float) -> float:
        """Seconds for `rows` rows, each `length` long."""
        inner_rows = min(max(rows, self.rows[0]), self.rows[-1])
        inner_length = min(max(length, self.lengths[0]), self.lengths[-1])
        i, part = _cell(self.rows, inner_rows)
        j, share = _cell(self.lengths, inner_length)
        lower, upper = self.measured[i], self.measured[i + 1] if part else self.measured[i]
        seconds = lower[j] + part * (upper[j] - lower[j])
        if share:
            other = lower[j + 1] + part * (upper[j + 1] - lower[j + 1])
            seconds += share * (other - seconds)
        if rows > self.rows[-1] or length > self.lengths[-1]:
            outer = _affine_at(self.beyond, max(rows, inner_rows), max(length, inner_length))
            seconds += outer - _affine_at(self.beyond, inner_rows, inner_length)
        return seconds


def profile_of(
    curve: Curve,
    *,
    max_rows: int,
    lengths: Sequence[int],
    cost_rule: CostRule,
    device: str = "simulated",
) -> Profile:
    """What a server with this curve would measure without noise: 1, 2, 4, ... `max_rows` rows."""
    counts = {min(1 << power, max_rows) for power in range(max_rows.bit_length() + 1)}
    points = tuple(
        ProfilePoint(rows=rows, length=length, seconds=curve.seconds([length] * rows))
        for rows in sorted(counts)
        for length in sorted(set(lengths))
    )
    return Profile(cost_rule=cost_rule, device=device, points=points)


def curve_of(profile: Profile) -> Grid:
    """The curve through the points of a profile, made to fall neither with rows nor with length.

    Shapes that the server had no time to measure are taken from the affine fit. Raises
    `InvalidInput` if there are no points.
    """
    if not profile.points:
        raise InvalidInput("profile.points", "must hold at least one measured batch")
    measured = {(point.rows, point.length): point.seconds for point in profile.points}
    rows = tuple(sorted({point.rows for point in profile.points}))
    lengths = tuple(sorted({point.length for point in profile.points}))
    beyond = _fit(profile)
    table = np.empty((len(rows), len(lengths)))
    for i, count in enumerate(rows):
        for j, length in enumerate(lengths):
            found = measured.get((count, length))
            table[i, j] = _affine_at(beyond, count, length) if found is None else found
    table = np.maximum.accumulate(np.maximum.accumulate(table, axis=0), axis=1)
    return Grid(
        rows=rows,
        lengths=lengths,
        measured=tuple(tuple(float(seconds) for seconds in line) for line in table),
        beyond=beyond,
    )


_TERMS: Final = 3


def _fit(profile: Profile) -> Affine:
    """Least squares on relative errors; a slope that comes out negative is left out."""
    rule = profile.cost_rule
    rows = np.array([float(point.rows) for point in profile.points])
    length = np.array([float(point.length) for point in profile.points])
    seconds = np.maximum(np.array([point.seconds for point in profile.points]), 1e-9)
    tokens = rows * length if rule is not CostRule.ROWS else np.zeros(len(rows))
    terms = np.stack([np.ones(len(rows)), rows, tokens], axis=1) / seconds[:, None]
    chosen = list(range(_TERMS))
    while True:
        found, *_ = np.linalg.lstsq(terms[:, chosen], np.ones(len(rows)), rcond=None)
        if np.all(found >= 0):
            break
        del chosen[int(np.argmin(found * np.abs(terms[:, chosen]).max(axis=0)))]
    values = [0.0] * _TERMS
    for index, value in zip(chosen, found, strict=True):
        values[index] = float(value)
    return Affine(fixed=values[0], per_row=values[1], per_token=values[2], rule=rule)


def _affine_at(affine: Affine, rows: int, length: float) -> float:
    tokens = rows if affine.rule is CostRule.ROWS else rows * length
    return affine.fixed + affine.per_row * rows + affine.per_token * tokens


def _cell(knots: tuple[int, ...], value: float) -> tuple[int, float]:
    """The knot at or before a value within the knots, and the part of the way to the next."""
    index = bisect_right(knots, value) - 1
    if index == len(knots) - 1:
        return index, 0.0
    return index, (value - knots[index]) / (knots[index + 1] - knots[index])
