"""What running batches taught of single sizes: by how much a size is off the profile's curve.

A size is what a batch pays for (rows, or tokens), in classes of a few percent, and apart from it by
length class. The middle of the last few times counts, so that stragglers do not. A deviation counts
only as far as noise does not explain it, and what only one batch says does not count. Where a
length class has no times of its own for a size, those of other lengths stand in. What all sizes are
off by that the profile measured and that have run is the device's, so that sizes that have not run
are off by it too. Owned by `BatchTimes`.
"""

import bisect
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

_EXACT: Final = 128  # sizes up to here are classes of their own
_PER_DOUBLING: Final = 16
_REMEMBERED: Final = 25  # times of each class; more than a change of the device takes to be seen
_CLASSES: Final = 512
_SIZES: Final = 1024  # more than there are size classes
_ALL: Final = -1  # the length class of all lengths together
_NOISE: Final = 2.0  # standard errors
_SURE: Final = 2  # times of a size
_TELLING: Final = 0.01  # a change of an estimate that is worth new tables
_LARGEST: Final[list[float]] = [
    *map(float, range(_EXACT + 1)),
    *(_EXACT * 2 ** (step / _PER_DOUBLING) for step in range(1, _SIZES - _EXACT)),
]
"""What a batch of each size class pays for at most."""


class _Deviations:
    """Logarithms of observed over expected times of one class."""

    __slots__ = ("estimate", "ordered", "times")

    def __init__(self) -> None:
        self.times: Final[deque[tuple[int, float]]] = deque()
        self.ordered: Final[list[float]] = []
        self.estimate = 0.0

    def add(self, number: int, deviation: float, spread: float) -> None:
        if len(self.times) == _REMEMBERED:
            self._forget_oldest()
        self.times.append((number, deviation))
        bisect.insort(self.ordered, deviation)
        self.update(spread)

    def keep_one(self, before: int, spread: float) -> None:
        """Of what is older than this batch only the middle stays, of what is newer nothing."""
        while self.times and self.times[-1][0] >= before:
            _, deviation = self.times.pop()
            del self.ordered[bisect.bisect_left(self.ordered, deviation)]
        if self.times:
            middle = self.ordered[(len(self.ordered) - 1) // 2]
            number = self.times[-1][0]
            self.times.clear()
            self.ordered.clear()
            self.times.extend([(number, middle), (number, middle)])
            self.ordered.extend([middle, middle])
        self.update(spread)

    def update(self, spread: float) -> None:
        count = len(self.ordered)
        if count < _SURE:
            # It may be a straggler. A size that it makes too slow for the target never runs again.
            self.estimate = 0.0
            return
        # Of two the one that says less: the other may be a straggler.
        middle = self.ordered[count // 2] if count != 2 else min(self.ordered, key=abs)
        unexplained = max(0.0, abs(middle) - _NOISE * spread / math.sqrt(count))
        self.estimate = math.copysign(unexplained, middle)

    def _forget_oldest(self) -> None:
        _, deviation = self.times.popleft()
        del self.ordered[bisect.bisect_left(self.ordered, deviation)]


class _Table:
    """By size class, for items of some lengths."""

    __slots__ = ("factors", "ran")

    def __init__(self, shared: float) -> None:
        self.factors: Final = [math.exp(shared)] * _SIZES
        """Observed over expected times."""
        self.ran: Final = [False] * _SIZES


class LearntSizes:
    """Deviations of sizes that have run."""

    def __init__(self, measured: Iterable[int]) -> None:
        """`measured`: the sizes that the profile knows, and does not just read off its curve."""
        self._measured: Final = frozenset(map(_class_of, measured))
        self._of: dict[tuple[int, int], _Deviations] = {}
        """By length class and size class."""
        self._tabled: dict[int, _Table | None] = {}
        self._batches = 0

    def observe(self, paid: int, length: int, deviation: float, spread: float) -> bool:
        """A batch deviated; returns whether estimates have changed by more than a little."""
        self._batches += 1
        size = _class_of(paid)
        changed = False
        for key in ((length.bit_length(), size), (_ALL, size)):
            found = self._of.pop(key, None)
            if found is None:
                if len(self._of) >= _CLASSES:
                    del self._of[next(iter(self._of))]
                found = _Deviations()
            self._of[key] = found  # the one that ran last is forgotten last
            before = found.estimate
            found.add(self._batches, deviation, spread)
            changed = changed or abs(found.estimate - before) > _TELLING
        if changed:
            self._tabled.clear()
        return changed

    def sure_of(self, paid: int, length: int) -> bool:
        """Whether the profile measured this size, or it has run twice."""
        size = _class_of(paid)
        found = self._of.get((length.bit_length(), size))
        return size in self._measured or (found is not None and len(found.ordered) >= _SURE)

    def changed_device(self, batches: int, spread: float) -> None:
        """The last so many batches ran on a device that has become another one."""
        for found in self._of.values():
            found.keep_one(self._batches - batches + 1, spread)
        self._tabled.clear()

    def knows(self, length: int) -> bool:
        """Whether running batches taught anything of items of such lengths."""
        return self._table(length.bit_length()) is not None

    def corrected(self, seconds: list[float], paid: Sequence[int], length: int) -> list[float]:
        """Times of batches that pay for so much, ascending, with what is known of their sizes.

        A size takes at least as long as a smaller one, and at most as long as a larger one that has
        run twice.
        """
        table = self._table(length.bit_length())
        if table is None:
            return seconds
        found = list(seconds)
        at_most = math.inf
        size, largest = _class_of(paid[-1]) if paid else 0, _LARGEST
        for index in range(len(found) - 1, -1, -1):
            # They go down, and comparing costs less than a logarithm.
            while size and paid[index] <= largest[size - 1]:
                size -= 1
            one = found[index] * table.factors[size]
            if table.ran[size] and one < at_most:
                at_most = one
            found[index] = one if one < at_most else at_most
        at_least = 0.0
        for index, one in enumerate(found):
            if one > at_least:
                at_least = one
            found[index] = at_least
        return found

    def _table(self, length_class: int) -> _Table | None:
        """What is known of items of such lengths; None where nothing is."""
        if length_class not in self._tabled:
            shared = self._shared()
            table, known = _Table(shared), shared != 0.0
            for wanted in (_ALL, length_class):
                for (of, size), found in self._of.items():
                    if of == wanted:
                        table.factors[size] = math.exp(found.estimate)
                        table.ran[size] = len(found.ordered) >= _SURE
                        known = known or found.estimate != 0.0
            self._tabled[length_class] = table if known else None
        return self._tabled[length_class]

    def _shared(self) -> float:
        """By how much all are off at least that the profile measured and that have run."""
        known = [
            found.estimate
            for (of, size), found in self._of.items()
            if of == _ALL and size in self._measured
        ]
        if not known:
            return 0.0
        least = min(known, key=abs)
        return least if min(known) * max(known) > 0 else 0.0


def _class_of(paid: int) -> int:
    return bisect.bisect_left(_LARGEST, paid)
