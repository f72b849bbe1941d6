"""What all policies share: admission by count, the waiting set, the order of groups, the cut.

A group is due when it is full, because it can grow no more, or when its policy holds it back no
longer (`_due_at`). Due groups leave in the order of their heads' arrival, so a head that is due
waits only for the batches whose heads came before its own: no group, however often it fills up,
overtakes another.

A batch leaves when the server wants one (`Pipeline.opens_at`). If a slot is free earlier, a full
group is handed over at once, but only as the first in that order: the second slot of the server
stays of use as long as the oldest group is full, and is no way past an older head.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import HoldReason, Outcome, ReleaseReason
from batchedmodel_scheduling.core.base import BasePolicy
from batchedmodel_scheduling.core.pipeline import Pipeline
from batchedmodel_scheduling.core.policy import NEVER, Decision, Item, ItemId, Refusal, Shed, Slots
from batchedmodel_scheduling.fifo.waiting import Group, WaitingSet


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


class QueueingPolicy(BasePolicy):
    """A policy over groups in order of arrival; due times and priorities mean nothing to it."""

    def __init__(self, settings: BatchSettings, pipeline: Pipeline) -> None:
        super().__init__(settings, pipeline)
        self._waiting: Final = WaitingSet(settings.length_buckets)

    def offer(self, item: Item, now: float) -> Refusal | None:
        """Refuse only when the queue is full; the retry delay is the time to serve what waits."""
        refusal = self.refusal()
        if refusal is None:
            self._waiting.add(item)
        return refusal

    def refusal(self) -> Refusal | None:
        """Whether the queue is full."""
        return self._queue_full(len(self._waiting))

    def withdraw(self, item_id: ItemId, now: float) -> None:
        """Forget a waiting item."""
        self._waiting.discard(item_id)

    def waiting(self) -> Iterator[Item]:
        """All waiting items."""
        return iter(self._waiting)

    def take_over(self, item: Item) -> None:
        """Let an item wait that a predecessor had accepted."""
        self._waiting.add(item)

    def poll(self, now: float, slots: Slots) -> Decision:
        """Release the group whose turn it is, without members whose deadline has passed."""
        shed: list[Shed] = []
        while len(self._waiting):
            choice = self._choose(now, slots, self.pipeline.opens_at(slots, now))
            if isinstance(choice, Hold):
                return Decision(
                    release=None, shed=tuple(shed), wake_at=choice.until, reason=choice.reason
                )
            items, late = self._waiting.cut(choice.group, self.limits, now)
            if late:
                # The choice counted them: without them the group may neither be full nor due.
                shed += [Shed(item=item, outcome=Outcome.EXPIRED) for item in late]
                continue
            batch = self._released(items, choice.reason, now)
            return Decision(release=batch, shed=tuple(shed), wake_at=now, reason=choice.reason)
        return Decision(release=None, shed=tuple(shed), wake_at=NEVER, reason=HoldReason.EMPTY)

    def configure(self, settings: BatchSettings, now: float) -> None:
        """Use other settings from now on."""
        super().configure(settings, now)
        self._waiting.regroup(settings.length_buckets)

    def _choose(self, now: float, slots: Slots, opens_at: float) -> Leave | Hold:
        """Judge a waiting set that is not empty; `opens_at` is when the server wants a batch."""
        cap = self.settings.max_batch_size
        due = [
            (head.arrived, head.id, group, size >= cap)
            for group, head, size in self._waiting.groups()
            if size >= cap or self._due_at(head) <= now
        ]
        if not due:
            first = min(self._due_at(head) for _, head, _ in self._waiting.groups())
            return Hold(until=max(first, opens_at), reason=HoldReason.GATHERING)
        # Identifiers do not repeat, so that groups are never compared.
        _, _, group, full = min(due)
        early = full and slots.early(opens_at)
        if opens_at > now and not early:
            return Hold(until=opens_at, reason=HoldReason.BUSY)
        return Leave(group=group, reason=ReleaseReason.FULL if full else self._reason(slots))

    @abstractmethod
    def _due_at(self, head: Item) -> float:
        """Until when a group with this head is held for company."""

    @abstractmethod
    def _reason(self, slots: Slots) -> ReleaseReason:
        """Why a group leaves that is not full."""
