"""Policies that keep the order of arrival: `Greedy` and `Window`.

Items that may share a batch form a lane: those of one key and one length class. A lane is due
when it is full, or when its policy holds it back no longer (`_due_at`). Due lanes leave in the
order of their oldest items, so none overtakes another, however often it fills up.

A batch leaves when the server wants one (`Pipeline.opens_at`). A full lane leaves earlier, as soon
as a slot is free, if it is the first in that order.
"""

from abc import abstractmethod

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import HoldReason, Outcome, ReleaseReason
from batchedmodel_scheduling.batching.companions import LOOKED_AT
from batchedmodel_scheduling.batching.decisions import Decision, Slots
from batchedmodel_scheduling.batching.policy import BasePolicy, Pipeline, leaves_early
from batchedmodel_scheduling.queue.item_queue import ItemQueue
from batchedmodel_scheduling.queue.items import NEVER, Item, Shed
from batchedmodel_scheduling.queue.ready_queue import Lane, QueuedItem, ReadyQueue


class QueueingPolicy(BasePolicy):
    """A policy over lanes in order of arrival; due times and priorities mean nothing to it."""

    def __init__(self, settings: BatchSettings, pipeline: Pipeline, queue: ItemQueue) -> None:
        super().__init__(settings, pipeline, queue, narrow_classes=False)

    def entry(self, item: Item) -> QueuedItem:
        """In order of arrival."""
        return QueuedItem(item, order=item.arrived, work=0.0, weight=1.0)

    def _choose(
        self, ready: ReadyQueue, now: float, opens: float, slots: Slots, shed: list[Shed]
    ) -> Decision:
        """Release the lane whose turn it is, without items whose deadline has passed."""
        cap = self.settings.max_batch_size
        while len(ready):
            lanes = [lane for lanes in ready.by_key() for lane in lanes]
            due = [
                lane
                for lane in lanes
                if len(lane.entries) >= cap or self._due_at(lane.entries[0].item) <= now
            ]
            if not due:
                first = min([self._due_at(lane.entries[0].item) for lane in lanes])
                return self._hold(max(first, opens), HoldReason.GATHERING, shed)
            lane = min(due, key=_oldest)
            full = len(lane.entries) >= cap
            if opens > now and not (full and leaves_early(slots, opens)):
                return self._hold(opens, HoldReason.BUSY, shed)
            entries, late = self._cut(lane, now)
            if late:
                # They were counted: without them the lane may neither be full nor due.
                for entry in late:
                    self.queue.cancel(entry.id)
                    ready.discard(entry.id)
                shed += [Shed(item=entry.item, outcome=Outcome.EXPIRED) for entry in late]
                continue
            reason = ReleaseReason.FULL if full else self._reason(slots)
            batch = self._released(entries, reason, now)
            return Decision(release=batch, shed=tuple(shed), wake_at=now, reason=reason)
        return self._hold(NEVER, HoldReason.EMPTY, shed)

    def _cut(self, lane: Lane, now: float) -> tuple[list[QueuedItem], list[QueuedItem]]:
        """The oldest of a lane that share a batch, and those met whose deadline has passed."""
        rows = self.limits.rows
        entries = lane.entries[: LOOKED_AT * rows if self.pipeline.adapters.slots else rows]
        late = [entry for entry in entries if entry.item.deadline <= now]
        if self.pipeline.adapters.slots and not late:
            places = self._companions([entry.item for entry in entries], rows, now)
            entries = [entries[at] for at in places]
        return entries[: self.limits.fitting([entry.length for entry in entries])], late

    @abstractmethod
    def _due_at(self, head: Item) -> float:
        """Until when a lane with this oldest item is held for company."""

    @abstractmethod
    def _reason(self, slots: Slots) -> ReleaseReason:
        """Why a lane leaves that is not full."""


def _oldest(lane: Lane) -> QueuedItem:
    return lane.entries[0]


class Greedy(QueueingPolicy):
    """Whatever waits when the model is free: the default of Triton, TEI and TGI.

    A lone request on an idle model never waits. Under load a batch grows while the one before it
    runs.
    """

    def _due_at(self, head: Item) -> float:
        return head.arrived

    def _reason(self, slots: Slots) -> ReleaseReason:
        busy = slots.in_flight >= self.pipeline.workers
        return ReleaseReason.JUST_IN_TIME if busy else ReleaseReason.IDLE


class Window(QueueingPolicy):
    """A lane is due when it is full or when its oldest item has waited enough.

    The window opens when the oldest item arrives. A batch whose window is over still waits until
    the server can take it, and grows meanwhile.
    """

    def _due_at(self, head: Item) -> float:
        return head.arrived + self.settings.max_wait_seconds

    def _reason(self, slots: Slots) -> ReleaseReason:
        return ReleaseReason.DELAY
