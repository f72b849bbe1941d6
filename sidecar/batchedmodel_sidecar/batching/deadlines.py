"""Which accepted calls run out of time next.

Used by the batcher for calls that wait and for calls that are in flight alike. A call that has
ended is discarded, and is not kept until its time with its body and its answer.
"""

import heapq
from typing import Final, Generic, TypeVar

Entry = TypeVar("Entry")
_SWEEP_ABOVE: Final = 64


class Deadlines(Generic[Entry]):
    """Entries by time, until they are due or discarded."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        """Times and numbers, also of entries that were discarded."""
        self._entries: dict[int, Entry] = {}
        self._number = 0

    def add(self, deadline: float, entry: Entry) -> int:
        """Remember an entry; returns the number by which it is discarded."""
        self._number += 1
        self._entries[self._number] = entry
        heapq.heappush(self._heap, (deadline, self._number))
        if len(self._heap) > 2 * len(self._entries) + _SWEEP_ABOVE:
            self._heap = [item for item in self._heap if item[1] in self._entries]
            heapq.heapify(self._heap)
        return self._number

    def discard(self, number: int) -> None:
        """Forget an entry, if it is there."""
        self._entries.pop(number, None)

    def due(self, now: float) -> list[Entry]:
        """Remove and return the entries whose time has come."""
        found: list[Entry] = []
        while self._heap and (self._heap[0][0] <= now or self._heap[0][1] not in self._entries):
            _, number = heapq.heappop(self._heap)
            if number in self._entries:
                found.append(self._entries.pop(number))
        return found

    def next(self) -> float:
        """When to look again; infinity when there is nothing to look for."""
        return self._heap[0][0] if self._heap else float("inf")
