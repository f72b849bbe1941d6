"""How sure a profile is of what lies between two of its points.

A device that pays in tiles, waves or captured sizes jumps. Between two measured sizes it is
believed to go straight only where both lie on the lines through their own neighbours, or so little
is between the two that it does not matter. Elsewhere the time jumps at some unknown size.
The warm-up looks there next; a scheduler keeps to the safe side there.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

_STRAIGHT: Final = 0.03
"""By what part of its time a size may be off the line and still lie on it: what noise does."""


class Knot(NamedTuple):
    """A measured size, in rows or tokens, and the seconds that it takes."""

    size: float
    seconds: float


def unsure(knots: Sequence[Knot]) -> list[bool]:
    """Whether each stretch between neighbours may hold a jump; knots ascend in both."""
    # The ends have one neighbour, which contradicts nothing.
    straight = [
        n in {0, len(knots) - 1} or _on_the_line(knots[n - 1], knots[n], knots[n + 1])
        for n in range(len(knots))
    ]
    return [
        after.size - before.size > 1
        and after.seconds - before.seconds > _STRAIGHT * after.seconds
        and not (straight[n] and straight[n + 1])
        for n, (before, after) in enumerate(pairwise(knots))
    ]


def _on_the_line(before: Knot, middle: Knot, after: Knot) -> bool:
    part = (middle.size - before.size) / (after.size - before.size)
    line = before.seconds + part * (after.seconds - before.seconds)
    return abs(middle.seconds - line) <= _STRAIGHT * middle.seconds
