"""Ends a run as soon as too many requests have missed their due time.

Half of the trials of a search for the highest rate fail, many of them within the first moments;
nobody wants to know how they would have gone on.
"""

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_scheduling.batching.decisions import (
    Batch,
    BatchId,
    Decision,
    Event,
    Finished,
    Policy,
    Slots,
)
from batchedmodel_scheduling.queue.items import Item, ItemId, Refusal


class TooManyMissedError(Exception):
    """The run cannot reach the share any more that was asked for."""


class EarlyEnd:
    """A policy that decides as the one within does, and counts what that misses."""

    def __init__(self, policy: Policy, allowed: int) -> None:
        self._policy = policy
        self._left = allowed
        self._running: dict[BatchId, Batch] = {}

    def offer(self, item: Item, now: float) -> Refusal | None:
        """See `Policy`."""
        refusal = self._policy.offer(item, now)
        if refusal is not None:
            self._miss(1)
        return refusal

    def withdraw(self, item_id: ItemId, now: float) -> None:
        """See `Policy`."""
        self._policy.withdraw(item_id, now)

    def poll(self, now: float, slots: Slots) -> Decision:
        """See `Policy`."""
        decision = self._policy.poll(now, slots)
        if decision.shed:
            self._miss(len(decision.shed))
        if decision.release is not None:
            self._running[decision.release.id] = decision.release
        return decision

    def observe(self, event: Event, now: float) -> None:
        """See `Policy`."""
        self._policy.observe(event, now)
        if isinstance(event, Finished):
            late = [item for item in self._running.pop(event.batch).items if item.due < now]
            if late:
                self._miss(len(late))

    def configure(self, settings: BatchSettings, now: float) -> None:
        """See `Policy`."""
        self._policy.configure(settings, now)

    def _miss(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise TooManyMissedError
