"""Finds the highest rate at which something holds, in few trials.

What is asked is a simulation or an optimum and costs seconds, so the search begins at a guess and
opens its bracket carefully. It draws nothing at random: equal answers give an equal result.
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
    if holds(guess):
        low, high = _opened(holds, guess, _FIRST_STEP)
        if high is None:
            raise ValueError(f"everything holds up to {low} per second")
    else:
        high, found = _opened(lambda rate: not holds(rate), guess, 1 / _FIRST_STEP)
        if found is None:
            return 0.0
        low = found
    while high > low * (1 + tolerance):
        middle = math.sqrt(low * high)
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def _opened(
    answers: Callable[[float], bool], start: float, step: float
) -> tuple[float, float | None]:
    """From a rate that answers, in steps that double in log scale, to the first that does not.

    Returns the last that answered and the first that did not; None if even the farthest answered.
    """
    farthest = start * _FARTHEST if step > 1 else start / _FARTHEST
    inside = start
    while inside != farthest:
        outside = min(inside * step, farthest) if step > 1 else max(inside * step, farthest)
        if not answers(outside):
            return inside, outside
        inside, step = outside, step * step
    return inside, None
