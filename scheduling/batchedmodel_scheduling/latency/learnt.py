"""What running batches taught of single sizes: by how much a size is off the profile's curve.

A size is what a batch pays for (rows, or tokens), in classes of a few percent. The middle of the
last few times counts, so that stragglers do not. A deviation counts only as far as noise does not
explain it, and what only one batch says does not count. Owned by `BatchTimes`.
"""

import bisect
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

_EXACT: Final = 128  # sizes up to here are classes of their own
_PER_DOUBLING: Final = 16
_REMEMBERED: Final = 25  # times of each class; more than a change of the device takes to be seen
_SIZES: Final = 1024  # size classes
_NOISE: Final = 2.0  # standard errors
_SURE: Final = 2  # times of a size
_TELLING: Final = 0.01  # a change of an estimate that is worth new tables
_LARGEST: Final[list[float]] = [
    *map(float, range(_EXACT + 1)),
    *(_EXACT * 2 ** (step / _PER_DOUBLING) for step in range(1, _SIZES - _EXACT)),
]
"""What a batch of each size class pays for at most."""


class LearntSizes:
    """Deviations of sizes that have run: logarithms of observed over expected times."""

    def __init__(self, measured: Iterable[int]) -> None:
        """`measured`: the sizes that the profile knows, and does not just read off its curve."""
        self._measured: Final = frozenset(map(_class_of, measured))
        self.forget()

    def forget(self) -> None:
        """The device has become another one."""
        self._times: dict[int, deque[float]] = {}
        self._estimates = [0.0] * _SIZES
        self._factors = [1.0] * _SIZES
        """Observed over expected times."""

    def observe(self, paid: int, deviation: float, spread: float) -> bool:
        """A batch deviated; returns whether the estimate has changed by more than a little."""
        size = _class_of(paid)
        times = self._times.get(size)
        if times is None:
            times = self._times[size] = deque(maxlen=_REMEMBERED)
        times.append(deviation)
        estimate, before = _estimate(sorted(times), spread), self._estimates[size]
        self._estimates[size] = estimate
        self._factors[size] = math.exp(estimate)
        return abs(estimate - before) > _TELLING

    def sure_of(self, paid: int) -> bool:
        """Whether the profile measured this size, or it has run twice."""
        size = _class_of(paid)
        return size in self._measured or len(self._times.get(size, ())) >= _SURE

    def corrected(self, seconds: list[float], paid: Sequence[int]) -> list[float]:
        """Times of batches that pay for so much, ascending, with what is known of their sizes.

        A size takes at least as long as a smaller one, and at most as long as a larger one that has
        run twice.
        """
        if not self._times:
            return seconds
        found = list(seconds)
        at_most = math.inf
        size, largest, factors = _class_of(paid[-1]) if paid else 0, _LARGEST, self._factors
        for index in range(len(found) - 1, -1, -1):
            # They go down, and comparing costs less than a logarithm.
            while size and paid[index] <= largest[size - 1]:
                size -= 1
            one = found[index] * factors[size]
            if one < at_most and len(self._times.get(size, ())) >= _SURE:
                at_most = one
            found[index] = one if one < at_most else at_most
        at_least = 0.0
        for index, one in enumerate(found):
            if one > at_least:
                at_least = one
            found[index] = at_least
        return found


def _estimate(ordered: list[float], spread: float) -> float:
    """What noise does not explain of the middle of these, which are ascending."""
    count = len(ordered)
    if count < _SURE:
        # It may be a straggler. A size that it makes too slow for the target never runs again.
        return 0.0
    # Of two the one that says less: the other may be a straggler.
    middle = ordered[count // 2] if count != 2 else min(ordered, key=abs)
    return math.copysign(max(0.0, abs(middle) - _NOISE * spread / math.sqrt(count)), middle)


def _class_of(paid: int) -> int:
    return bisect.bisect_left(_LARGEST, paid)
