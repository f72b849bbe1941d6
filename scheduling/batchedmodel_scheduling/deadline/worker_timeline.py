"""When batches end that leave one after the other, each where a worker is free first.

Graham's list scheduling (1966). Used by plans, which look ahead; the pipeline says when the workers
are free of what has left already.
"""

import heapq
from collections.abc import Sequence


class WorkerTimeline:
    """The workers' times, as far as they are given away."""

    def __init__(self, free: Sequence[float]) -> None:
        """`free` says of each worker, at least of one, from when on it is."""
        self._free = sorted(free)

    @property
    def begins(self) -> float:
        """When the next batch does."""
        return self._free[0]

    def add(self, seconds: float) -> float:
        """One more batch takes so long; returns when it ends."""
        ends = self._free[0] + seconds
        heapq.heapreplace(self._free, ends)
        return ends
