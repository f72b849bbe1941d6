"""Policies that keep the order of arrival: `Greedy` and `Window`.

Items that may share a batch form a group: those of one key and one length class. A group is due
when it is full, or when its policy holds it back no longer (`_due_at`). Due groups leave in the
order of their oldest members, so none overtakes another, however often it fills up.

A batch leaves when the server wants one (`Pipeline.opens_at`). A full group leaves earlier, as soon
as a slot is free, if it is the first in that order.
"""

import bisect
from abc import abstractmethod
from collections.abc import Hashable, Iterator
from typing import Final, NamedTuple

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import HoldReason, Outcome, ReleaseReason
from batchedmodel_scheduling.core.base import BasePolicy
from batchedmodel_scheduling.core.limits import Limits
from batchedmodel_scheduling.core.pipeline import Pipeline
from batchedmodel_scheduling.core.policy import NEVER, Decision, Item, ItemId, Refusal, Shed, Slots
from batchedmodel_scheduling.lora.companions import LOOKED_AT, Chosen


class Group(NamedTuple):
    """What the members of a batch have in common."""

    key: Hashable
    length_class: int


class WaitingSet:
    """Waiting items by group, each group in order of arrival."""

    def __init__(self, edges: tuple[int, ...] = ()) -> None:
        """Edges are upper bounds of the length classes, ascending; longer items form a last one."""
        self._edges = edges
        self._groups: dict[Group, dict[ItemId, Item]] = {}
        self._group_of: dict[ItemId, Group] = {}

    def __len__(self) -> int:
        return len(self._group_of)

    def add(self, item: Item) -> None:
        """Append an item that is not here yet."""
        if item.id in self._group_of:
            raise ValueError(f"item {item.id} waits already: identifiers must not repeat")
        group = Group(item.key, bisect.bisect_left(self._edges, item.length))
        self._group_of[item.id] = group
        self._groups.setdefault(group, {})[item.id] = item

    def discard(self, item_id: ItemId) -> None:
        """Remove an item if it is here."""
        group = self._group_of.pop(item_id, None)
        if group is None:
            return
        members = self._groups[group]
        del members[item_id]
        if not members:
            del self._groups[group]

    def groups(self) -> Iterator[tuple[Group, Item, int]]:
        """Each group with its oldest member and its size."""
        for group, members in self._groups.items():
            yield group, next(iter(members.values())), len(members)

    def __iter__(self) -> Iterator[Item]:
        for members in self._groups.values():
            yield from members.values()

    def cut(
        self, group: Group, limits: Limits, now: float, by_adapter: Chosen | None = None
    ) -> tuple[list[Item], list[Item]]:
        """Remove those met whose deadline has passed or, if there are none, the oldest members.

        Returns the members to release and the late ones; one of the two is empty. `by_adapter`:
        the places of those that leave, of members in their order and of so many rows.
        """
        chosen: list[Item] = []
        late: list[Item] = []
        most = limits.rows if by_adapter is None else LOOKED_AT * limits.rows
        for item in self._groups[group].values():
            if len(chosen) == most:
                break
            (chosen if now < item.deadline else late).append(item)
        if by_adapter is not None and not late:
            chosen = [chosen[at] for at in by_adapter(chosen, limits.rows, now)]
        del chosen[limits.fitting([item.length for item in chosen]) :]
        for item in late or chosen:
            self.discard(item.id)
        return ([] if late else chosen), late

    def regroup(self, edges: tuple[int, ...]) -> None:
        """Sort every item into other length classes, order of arrival kept within each."""
        if edges == self._edges:
            return
        items = sorted(self, key=lambda item: (item.arrived, item.id))
        self._edges = edges
        self._groups.clear()
        self._group_of.clear()
        for item in items:
            self.add(item)


class QueueingPolicy(BasePolicy):
    """A policy over groups in order of arrival; due times and priorities mean nothing to it."""

    def __init__(self, settings: BatchSettings, pipeline: Pipeline) -> None:
        super().__init__(settings, pipeline)
        self._waiting: Final = WaitingSet(settings.length_buckets)

    def offer(self, item: Item, now: float) -> Refusal | None:
        """Refuse only when the queue is full."""
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

    def configure(self, settings: BatchSettings, now: float) -> None:
        """Use other settings from now on."""
        super().configure(settings, now)
        self._waiting.regroup(settings.length_buckets)

    def poll(self, now: float, slots: Slots) -> Decision:
        """Release the group whose turn it is, without members whose deadline has passed."""
        shed: list[Shed] = []
        cap = self.settings.max_batch_size
        while len(self._waiting):
            opens = self.pipeline.opens_at(slots, now)
            due = [
                (head.arrived, head.id, group, size >= cap)
                for group, head, size in self._waiting.groups()
                if size >= cap or self._due_at(head) <= now
            ]
            if not due:
                first = min(self._due_at(head) for _, head, _ in self._waiting.groups())
                return _hold(max(first, opens), HoldReason.GATHERING, shed)
            # Identifiers do not repeat, so that groups are never compared.
            _, _, group, full = min(due)
            if opens > now and not (full and slots.early(opens)):
                return _hold(opens, HoldReason.BUSY, shed)
            by_adapter = self._companions if self.pipeline.adapters.slots else None
            items, late = self._waiting.cut(group, self.limits, now, by_adapter)
            if late:
                # They were counted: without them the group may neither be full nor due.
                shed += [Shed(item=item, outcome=Outcome.EXPIRED) for item in late]
                continue
            reason = ReleaseReason.FULL if full else self._reason(slots)
            batch = self._released(items, reason, now)
            return Decision(release=batch, shed=tuple(shed), wake_at=now, reason=reason)
        return _hold(NEVER, HoldReason.EMPTY, shed)

    @abstractmethod
    def _due_at(self, head: Item) -> float:
        """Until when a group with this oldest member is held for company."""

    @abstractmethod
    def _reason(self, slots: Slots) -> ReleaseReason:
        """Why a group leaves that is not full."""


def _hold(until: float, reason: HoldReason, shed: list[Shed]) -> Decision:
    return Decision(release=None, shed=tuple(shed), wake_at=until, reason=reason)


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
    """A group is due when it is full or when its oldest member has waited enough.

    The window opens when the oldest member arrives. A batch whose window is over still waits until
    the server can take it, and grows meanwhile.
    """

    def _due_at(self, head: Item) -> float:
        return head.arrived + self.settings.max_wait_seconds

    def _reason(self, slots: Slots) -> ReleaseReason:
        return ReleaseReason.DELAY
