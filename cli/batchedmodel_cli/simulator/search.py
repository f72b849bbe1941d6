"""Finds the highest rate at which something holds, in few trials.

A trial costs seconds, so the search begins at a guess and opens its bracket carefully. It draws
nothing at random: equal answers give an equal result.
"""

import math
from collections.abc import Callable
from typing import Final

_FIRST_STEP: Final = 1.08
_FARTHEST: Final = 1000.0


def highest_rate(holds: Callable[[float], bool], guess: float, *, tolerance: float = 0.01) -> float:
    """A rate that holds, while one at most `tolerance` (relative) above it does not.

    Where the answer flickers near the limit, any of its changes may be found. 0.0 if not even a
    thousandth of the guess holds. Raises ValueError if a thousand times the guess does: then the
    rate is no limit of what is asked.
    """
    up = holds(guess)
    step = _FIRST_STEP if up else 1 / _FIRST_STEP
    farthest = guess * _FARTHEST if up else guess / _FARTHEST
    inside = guess
    while True:  # in steps that double in log scale, to the first rate with the other answer
        if inside == farthest and up:
            raise ValueError(f"everything holds up to {inside} per second")
        if inside == farthest:
            return 0.0
        outside = min(inside * step, farthest) if up else max(inside * step, farthest)
        if holds(outside) != up:
            break
        inside, step = outside, step * step
    low, high = sorted((inside, outside))
    while high > low * (1 + tolerance):
        middle = math.sqrt(low * high)
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
