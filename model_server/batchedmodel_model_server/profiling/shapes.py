"""Which shapes a warm-up measures: a grid, and then where the times may jump.

Pure. The grid is coarse. Where two neighbours in it differ, one between them is looked at; where
that is off the line, the times jump, and the search goes on in the parts (bisection): first where
a look takes least time for the rise that it explains. It is cut at the golden section: halves of a
grid of powers would all lie on the edges of tiles.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from batchedmodel_contract.inference.profile import ProfilePoint
from batchedmodel_contract.inference.stretches import Knot, unsure

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
        key=lambda shape: (shape[0] * shape[1], shape),
    )


def steps(least: int, most: int) -> tuple[int, ...]:
    """Numbers from `least` to `most`, each about as many times the one before."""
    ratio = most / least
    return tuple(sorted({round(least * ratio ** (n / (_STEPS - 1))) for n in range(_STEPS)}))


def looks(points: Sequence[ProfilePoint]) -> Iterator[Shape]:
    """What to measure beside the grid; whoever asks adds what was measured to the points."""
    tried: set[Shape] = set()
    while (shape := _worth_a_look(points, tried)) is not None:
        tried.add(shape)
        yield shape


def expected_seconds(points: Sequence[ProfilePoint], work: int) -> float:
    """How long a pass over `work` tokens takes: as the next larger one, or by the largest."""
    if not points:
        return 0.0
    by_work = sorted(points, key=lambda point: point.rows * point.length)
    for point in by_work:
        if point.rows * point.length >= work:
            return point.seconds
    last = by_work[-1]
    return last.seconds * work / (last.rows * last.length)


def _worth_a_look(points: Sequence[ProfilePoint], tried: Collection[Shape]) -> Shape | None:
    best: Shape | None = None
    most = 0.0
    for length in sorted({point.length for point in points}):
        knots = sorted(Knot(p.rows, p.seconds) for p in points if p.length == length)
        for before, after, jumps in zip(knots, knots[1:], unsure(knots), strict=False):
            if not jumps and after.size <= _WIDE * before.size:
                continue
            rise = (after.seconds - before.seconds) / after.seconds if after.seconds else 0.0
            shape = round(before.size + _GOLDEN * (after.size - before.size)), length
            if rise <= _LITTLE or not before.size < shape[0] < after.size or shape in tried:
                continue
            if rise / after.seconds > most:
                best, most = shape, rise / after.seconds
    return best
