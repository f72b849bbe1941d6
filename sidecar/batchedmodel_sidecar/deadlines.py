"""Which accepted calls run out of time next.

Used by the batcher for calls that wait and for calls that are in flight alike. Bounded by the
number of live calls, because settled ones are swept out when they outnumber them.
"""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Final, Generic, TypeVar

Entry = TypeVar("Entry")
_SWEEP_ABOVE: Final = 64


class Deadlines(Generic[Entry]):
    """A queue by time whose entries may lose interest; `live` says whether one still has it."""

    def __init__(self, live: Callable[[Entry], bool]) -> None:
        self._live = live
        self._heap: list[tuple[float, int, Entry]] = []
        self._order = count()

    def add(self, deadline: float, entry: Entry, live_entries: int) -> None:
        """Remember an entry; `live_entries` is how many are live now, itself included."""
        heapq.heappush(self._heap, (deadline, next(self._order), entry))
        if len(self._heap) > 2 * live_entries + _SWEEP_ABOVE:
            self._heap = [item for item in self._heap if self._live(item[2])]
            heapq.heapify(self._heap)

    def due(self, now: float) -> list[Entry]:
        """Remove and return the live entries whose time has come."""
        found = []
        while self._heap and (self._heap[0][0] <= now or not self._live(self._heap[0][2])):
            _, _, entry = heapq.heappop(self._heap)
            if self._live(entry):
                found.append(entry)
        return found

    def next(self) -> float:
        """When to look again; infinity when there is nothing to look for."""
        return self._heap[0][0] if self._heap else float("inf")
