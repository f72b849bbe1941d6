"""A plain receding horizon that learns its times from what it runs, and is told nothing.

It plans for rows as `Receding`, by an exponential mean of what each number of rows took. Between
two sizes that have run it goes straight. Up to twice the largest that has run takes as long as that
one, so that larger batches are tried; beyond it goes on in proportion. Where all would be late by
what was learnt, the newest runs alone: refusing it for what a straggler taught would never end.

Source: general practice. Fair: nothing of it is exact.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import ReleaseReason
from batchedmodel_scheduling.batching.decisions import BatchId, Decision, Event, Finished
from batchedmodel_scheduling.queue.items import Item, Shed
from rival_policies.receding import Receding

_NEWEST: Final = 0.1
"""Part of the newest time in the mean of its size."""


class Learning(Receding):
    """For rows that all cost the same."""

    def __init__(self, settings: BatchSettings, *, target: float) -> None:
        """Batches may take half of the target, in seconds."""
        super().__init__(
            settings, self._learnt, target=target, worth=lambda length: 1.0, padded=False
        )
        self._sizes: Final[list[int]] = []
        self._means: Final[dict[int, float]] = {}
        self._running: Final[dict[BatchId, int]] = {}

    def observe(self, event: Event, now: float) -> None:
        """Learn from a batch that has ended."""
        if not isinstance(event, Finished):
            return
        rows, seconds = self._running.pop(event.batch), event.compute_seconds
        if seconds is None:
            return
        if rows in self._means:
            self._means[rows] += _NEWEST * (seconds - self._means[rows])
        else:
            insort(self._sizes, rows)
            self._means[rows] = seconds

    def _decide(self, now: float) -> Decision:
        queue = sorted(self.waiting.values(), key=lambda item: item.due)
        newest = queue[-1]
        if newest.due > now and now + self._learnt([newest.length]) > newest.due:
            shed = tuple([self._give_up(item, now) for item in queue if item.due <= now])
            return self._release([newest], ReleaseReason.IDLE, now, shed)
        return super()._decide(now)

    def _release(
        self, items: list[Item], reason: ReleaseReason, now: float, shed: tuple[Shed, ...] = ()
    ) -> Decision:
        decision = super()._release(items, reason, now, shed)
        assert decision.release is not None, "there are items"
        self._running[decision.release.id] = len(items)
        return decision

    def _learnt(self, lengths: Sequence[int]) -> float:
        """Seconds of a batch; 0 while nothing has run."""
        rows, sizes, means = len(lengths), self._sizes, self._means
        if not sizes:
            return 0.0
        at = bisect_left(sizes, rows)
        if at == len(sizes):
            return means[sizes[-1]] * max(1.0, rows / (2 * sizes[-1]))
        above = sizes[at]
        if at == 0 or above == rows:
            return means[above]
        below = sizes[at - 1]
        part = (rows - below) / (above - below)
        return means[below] + part * (means[above] - means[below])
