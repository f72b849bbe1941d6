"""Which accepted calls run out of time next.

Used by the batcher for calls that wait and for calls that are in flight alike. Bounded by the
number of live calls, because settled ones are swept out when they outnumber them; and a call that
is settled long before its time is not kept until then, with its body and its answer.
"""

import heapq
import weakref
from collections.abc import Callable
from itertools import count
from typing import Final, Generic, TypeVar

Entry = TypeVar("Entry")
_SWEEP_ABOVE: Final = 64


class Deadlines(Generic[Entry]):
    """A queue by time whose entries may lose interest; `live` says whether one still has it.

    Whoever adds an entry keeps it as long as it is live: here are references only.
    """

    def __init__(self, live: Callable[[Entry], bool]) -> None:
        self._live = live
        self._heap: list[tuple[float, int, weakref.ref[Entry]]] = []
        self._order = count()

    def add(self, deadline: float, entry: Entry, live_entries: int) -> None:
        """Remember an entry; `live_entries` is how many are live now, itself included."""
        heapq.heappush(self._heap, (deadline, next(self._order), weakref.ref(entry)))
        if len(self._heap) > 2 * live_entries + _SWEEP_ABOVE:
            self._heap = [item for item in self._heap if self._if_live(item[2]) is not None]
            heapq.heapify(self._heap)

    def due(self, now: float) -> list[Entry]:
        """Remove and return the live entries whose time has come."""
        found = []
        while self._heap and (self._heap[0][0] <= now or self._if_live(self._heap[0][2]) is None):
            _, _, reference = heapq.heappop(self._heap)
            entry = self._if_live(reference)
            if entry is not None:
                found.append(entry)
        return found

    def next(self) -> float:
        """When to look again; infinity when there is nothing to look for."""
        return self._heap[0][0] if self._heap else float("inf")

    def _if_live(self, reference: weakref.ref[Entry]) -> Entry | None:
        entry = reference()
        return entry if entry is not None and self._live(entry) else None
