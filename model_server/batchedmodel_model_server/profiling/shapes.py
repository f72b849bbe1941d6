"""Which shape is measured next: of a grid, and then where the times may jump.

Pure. The grid is coarse. Where two neighbours in it differ, one between them is looked at; where
that is off the line, the times jump, and the search goes on in the parts (bisection): first where
a look takes least time for the rise that it explains. It is cut at the golden section: halves of a
grid of powers would all lie on the edges of tiles.
"""

import math
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from batchedmodel_contract.inference.profile import (
    Knot,
    ProfilePoint,
    unsure,
)

SHORT_PASS_SECONDS: Final = 0.05
"""A caller waits no longer for a pass that began before it came. A moment counts as idle once
nobody has come for as long."""
LONG_IDLE_SECONDS: Final = 10.0
LONGEST_PASS_SECONDS: Final = 2.0
"""Shapes beyond are not measured: no idle moment is worth that a caller waits for them."""
_STEPS: Final = 4  # sizes of batches, and of lengths: enough to tell the curve's four terms apart
_GOLDEN: Final = 0.618
_WIDE: Final = 2.0  # times the lower end: too wide to be believed without a look
_LITTLE: Final = 0.03  # of the upper end: a rise that is not worth a look

Shape = tuple[int, int]
"""Rows, and the length of each."""


def shapes(max_rows: int, of_lengths: Sequence[int]) -> list[Shape]:
    """The grid: from one row to as many as allowed, of each length; the least work first."""
    return sorted(
        ((rows, length) for rows in steps(1, max_rows) for length in of_lengths),
        key=lambda shape: (math.prod(shape), shape),
    )


def steps(least: int, most: int) -> tuple[int, ...]:
    """Numbers from `least` to `most`, each about as many times the one before."""
    ratio = most / least
    return tuple(sorted({round(least * ratio ** (n / (_STEPS - 1))) for n in range(_STEPS)}))


def way_up(
    grid: Sequence[Shape], points: Sequence[ProfilePoint], longest_seconds: float, share: float
) -> Shape:
    """The shape that is this share of the way to the largest one that takes so long at most."""
    within = [s for s in grid if expected_seconds(points, math.prod(s)) <= longest_seconds]
    return within[round(share * (len(within) - 1))] if within else grid[0]


def next_shape(
    grid: Sequence[Shape],
    points: Sequence[ProfilePoint],
    tried: Collection[Shape],
    longest_seconds: float,
    *,
    looks: bool,
) -> Shape | None:
    """What to measure next with passes of so long at most; None: nothing that is worth it.

    `tried`: what was asked for before. `looks`: whether there is time to look beside the grid.
    """
    shape = next((shape for shape in grid if shape not in tried), None)
    if shape is not None and expected_seconds(points, math.prod(shape)) <= longest_seconds:
        return shape
    return _worth_a_look(points, tried, longest_seconds) if looks else None


def expected_seconds(points: Sequence[ProfilePoint], work: int) -> float:
    """How long a pass over `work` tokens takes: between its neighbours, or by the largest."""
    if not points:
        return 0.0
    by_work = sorted((point.rows * point.length, point.seconds) for point in points)
    largest, seconds = by_work[-1]
    if work > largest:
        return seconds * work / largest
    known, times = zip(*by_work, strict=True)
    return float(np.interp(work, known, times))


def _worth_a_look(
    points: Sequence[ProfilePoint], tried: Collection[Shape], longest_seconds: float
) -> Shape | None:
    """Between two measured shapes, of which the larger takes no longer than that."""
    best: Shape | None = None
    most = 0.0
    for length in sorted({point.length for point in points}):
        knots = sorted(Knot(p.rows, p.seconds) for p in points if p.length == length)
        for before, after, jumps in zip(knots, knots[1:], unsure(knots), strict=False):
            if after.seconds > longest_seconds:
                break
            if not jumps and after.size <= _WIDE * before.size:
                continue
            rise = (after.seconds - before.seconds) / after.seconds if after.seconds else 0.0
            shape = round(before.size + _GOLDEN * (after.size - before.size)), length
            if rise <= _LITTLE or not before.size < shape[0] < after.size or shape in tried:
                continue
            if rise / after.seconds > most:
                best, most = shape, rise / after.seconds
    return best
