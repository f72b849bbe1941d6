"""Values in order of keys that may change, lowest first. All is O(log n), but for tidying up."""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

N = TypeVar("N", bound=Hashable)
V = TypeVar("V")
Key = tuple[float, ...]
_FEW: Final = 64


class Ordered(Generic[N, V]):
    """Named values; equal keys are in the order in which they were put."""

    __slots__ = ("_heap", "_live", "_puts")

    def __init__(self) -> None:
        self._heap: list[tuple[Key, int, N, V]] = []
        """What left or moved stays until it comes first, or until there is too much of it."""
        self._live: dict[N, int] = {}
        """The number of the put that counts, by name."""
        self._puts = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, name: object) -> bool:
        return name in self._live

    def put(self, name: N, key: Key, value: V) -> None:
        """Let a value be here with this key, whether or not it was here before."""
        self._puts += 1
        self._live[name] = self._puts
        if len(self._heap) > _FEW + 2 * len(self._live):
            self._tidy()
        heappush(self._heap, (key, self._puts, name, value))

    def discard(self, name: N) -> None:
        """Forget a value if it is here."""
        if self._live.pop(name, None) is None:
            return
        if not self._live:
            self._heap.clear()
        elif len(self._heap) > _FEW + 2 * len(self._live):
            self._tidy()

    def first(self) -> V | None:
        """The value with the lowest key."""
        self._pass_over()
        return self._heap[0][3] if self._heap else None

    def first_key(self) -> Key | None:
        """The lowest key."""
        self._pass_over()
        return self._heap[0][0] if self._heap else None

    def _pass_over(self) -> None:
        heap, live = self._heap, self._live
        while heap and live.get(heap[0][2]) != heap[0][1]:
            heappop(heap)

    def _tidy(self) -> None:
        live = self._live
        self._heap = [entry for entry in self._heap if live.get(entry[2]) == entry[1]]
        heapify(self._heap)
