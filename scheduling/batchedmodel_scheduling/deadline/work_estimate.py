"""What an item is worth in work: its share of a full batch, remembered by length.

Owned by `Deadline`, which asks for every item that comes.
"""

from typing import Final

from batchedmodel_scheduling.latency.batch_times import BatchTimes

_REMEMBERED: Final = 4096  # lengths; callers choose them


class WorkEstimate:
    """In seconds before drift; in full batches while there is no curve."""

    def __init__(self, times: BatchTimes, rows: int) -> None:
        """`rows` are those of a full batch."""
        self._times = times
        self._rows = rows
        self._by_length: dict[int, float] = {}
        self._fits = times.fits

    def of(self, length: int) -> float:
        """The share of one item of this length."""
        if self._fits != self._times.fits or len(self._by_length) >= _REMEMBERED:
            self._fits = self._times.fits
            self._by_length.clear()
        share = self._by_length.get(length)
        if share is None:
            seconds = self._times.table(length, self._rows)[self._rows]
            share = self._by_length[length] = (seconds or 1.0) / self._rows
        return share
