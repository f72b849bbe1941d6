"""What all policies share: admission by count, the waiting set, the order of groups, the cut.

A group is due when it is full, because it can grow no more, or when its policy holds it back no
longer (`_due_at`). Due groups leave in the order of their heads' arrival, so a head that is due
waits only for the batches whose heads came before its own: no group, however often it fills up,
overtakes another.

A batch leaves when the server wants one (`Pipeline.opens_at`). If a slot is free earlier, a full
group is handed over at once, but only as the first in that order: the second slot of the server
stays of use as long as the oldest group is full, and is no way past an older head.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.batching import BatchSettings
from batchedmodel_contract.outcomes import HoldReason, Rejection, ReleaseReason
from batchedmodel_scheduling.pipeline import Pipeline
from batchedmodel_scheduling.policy import (
    NEVER,
    Decision,
    Finished,
    HandedOver,
    Item,
    ItemId,
    Refusal,
    Slots,
)
from batchedmodel_scheduling.waiting import Group, WaitingSet

_RETRY_UNKNOWN: Final = 1.0
_RETRY_BOUNDS: Final = (0.01, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """This group leaves now."""

    group: Group
    reason: ReleaseReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Nothing leaves before `until`, unless something happens."""

    until: float
    reason: HoldReason


class QueueingPolicy(ABC):
    """A policy over a waiting set; see `policy.Policy` for the five methods."""

    def __init__(self, settings: BatchSettings, waiting: WaitingSet, pipeline: Pipeline) -> None:
        self.waiting: Final = waiting
        self.pipeline: Final = pipeline
        self.settings = settings
        waiting.regroup(settings.length_buckets)

    def offer(self, item: Item, now: float) -> Refusal | None:
        """Refuse only when the queue is full; the retry delay is the time to serve what waits."""
        refusal = self.refusal()
        if refusal is None:
            self.waiting.add(item)
        return refusal

    def refusal(self) -> Refusal | None:
        """What an item would be told now: known before its body is read."""
        if len(self.waiting) < self.settings.max_queue_size:
            return None
        shortest, longest = _RETRY_BOUNDS
        drain = self.pipeline.drain_seconds(len(self.waiting))
        retry_after = min(longest, max(shortest, _RETRY_UNKNOWN if drain is None else drain))
        return Refusal(reason=Rejection.QUEUE_FULL, retry_after=retry_after)

    def work(self, length: int) -> float:
        """What an item of this length costs: seconds of the device, its share of a full batch.

        Full batches instead of seconds while nobody has measured the device.
        """
        rows = self.settings.max_batch_size
        share = self.pipeline.times.share(length, rows)
        return 1 / rows if share is None else share

    def withdraw(self, item_id: ItemId, now: float) -> None:
        """Forget a waiting item."""
        self.waiting.discard(item_id)

    def poll(self, now: float, slots: Slots) -> Decision:
        """Release the group whose turn it is, without members whose deadline has passed."""
        shed: list[Item] = []
        while len(self.waiting):
            choice = self._choose(now, slots, self.pipeline.opens_at(slots, now))
            if isinstance(choice, Hold):
                return Decision(
                    release=None, shed=tuple(shed), wake_at=choice.until, reason=choice.reason
                )
            items, late = self.waiting.cut(choice.group, self.settings.max_batch_size, now)
            if late:
                # The choice counted them: without them the group may neither be full nor due.
                shed += late
                continue
            batch = self.pipeline.release(items, choice.reason)
            return Decision(release=batch, shed=tuple(shed), wake_at=now, reason=choice.reason)
        return Decision(release=None, shed=tuple(shed), wake_at=NEVER, reason=HoldReason.EMPTY)

    def observe(self, event: HandedOver | Finished, now: float) -> None:
        """Learn what became of a released batch."""
        self.pipeline.observe(event, now)

    def configure(self, settings: BatchSettings, now: float) -> None:
        """Use other settings from now on."""
        self.settings = settings
        self.waiting.regroup(settings.length_buckets)

    def _choose(self, now: float, slots: Slots, opens_at: float) -> Leave | Hold:
        """Judge a waiting set that is not empty; `opens_at` is when the server wants a batch."""
        cap = self.settings.max_batch_size
        due = [
            (head.arrived, head.id, group, size >= cap)
            for group, head, size in self.waiting.groups()
            if size >= cap or self._due_at(head) <= now
        ]
        if not due:
            first = min(self._due_at(head) for _, head, _ in self.waiting.groups())
            return Hold(until=max(first, opens_at), reason=HoldReason.GATHERING)
        # Identifiers do not repeat, so that groups are never compared.
        _, _, group, full = min(due)
        early = full and slots.in_flight < slots.depth
        if opens_at > now and not early:
            return Hold(until=opens_at, reason=HoldReason.BUSY)
        return Leave(group=group, reason=ReleaseReason.FULL if full else self._reason(slots))

    @abstractmethod
    def _due_at(self, head: Item) -> float:
        """Until when a group with this head is held for company."""

    @abstractmethod
    def _reason(self, slots: Slots) -> ReleaseReason:
        """Why a group leaves that is not full."""
