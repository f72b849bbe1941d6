"""What all rivals share: a queue in order of arrival, its bound, batches and their numbers.

A rival forms its batch at the last moment, when the server can take it, so that it never commits
early; some systems do. Requests of unequal keys never share a batch: it ends before the first
item of another key, as Triton's does when shapes differ.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import count, islice
from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import HoldReason, Outcome, Rejection, ReleaseReason
from batchedmodel_scheduling.batching.decisions import Batch, BatchId, Decision, Event, Slots
from batchedmodel_scheduling.queue.items import NEVER, Item, ItemId, Refusal, Shed

Seconds = Callable[[Sequence[int]], float]
"""How long a batch of rows of these lengths takes. Exact, where a rival would have to learn it: the
generous reading."""

_RETRY_AFTER: Final = 1.0
_EMPTY: Final = Decision(release=None, shed=(), wake_at=NEVER, reason=HoldReason.EMPTY)
_BUSY: Final = Decision(release=None, shed=(), wake_at=NEVER, reason=HoldReason.BUSY)


class Rival(ABC):
    """A policy over one queue. Of the settings it uses the caps of rows and of the queue."""

    def __init__(self, settings: BatchSettings) -> None:
        self.settings = settings
        # Ordered, because the head of a plain dictionary is found by a walk over what has left.
        self.waiting: OrderedDict[ItemId, Item] = OrderedDict()
        self._ids: Final = count(1)

    def offer(self, item: Item, now: float) -> Refusal | None:
        """Refuse only when the queue is full."""
        if len(self.waiting) >= self.settings.max_queue_size - self.settings.spare_rows:
            return Refusal(reason=Rejection.QUEUE_FULL, retry_after=_RETRY_AFTER)
        self.waiting[item.id] = item
        return None

    def withdraw(self, item_id: ItemId, now: float) -> None:
        """Forget a waiting item at once; several systems would still compute it."""
        item = self.waiting.get(item_id)
        if item is not None:
            self._forget(item)

    def poll(self, now: float, slots: Slots) -> Decision:
        """Decide when the server can take a batch, and only then."""
        if not self.waiting:
            return _EMPTY
        if slots.in_flight >= slots.depth:
            return _BUSY
        return self._decide(now)

    def observe(self, event: Event, now: float) -> None:  # noqa: B027 - few of them learn
        """Learn nothing."""

    def configure(self, settings: BatchSettings, now: float) -> None:
        """Use other settings from now on."""
        self.settings = settings

    @abstractmethod
    def _decide(self, now: float) -> Decision:
        """Release or hold; something waits and the server can take a batch."""

    def _forget(self, item: Item) -> None:
        """Take an item out; extended by those that sort the queue in some way."""
        del self.waiting[item.id]

    def _oldest(self, at_most: int) -> list[Item]:
        """The items that a batch would take now, from the head on."""
        return alike(islice(self.waiting.values(), at_most))

    def _release(
        self, items: list[Item], reason: ReleaseReason, now: float, shed: tuple[Shed, ...] = ()
    ) -> Decision:
        """Make a batch of waiting items, given in order of arrival."""
        for item in items:
            self._forget(item)
        if len(items) >= self.settings.max_batch_size:
            reason = ReleaseReason.FULL
        batch = Batch(id=BatchId(next(self._ids)), items=tuple(items), reason=reason)
        return Decision(release=batch, shed=shed, wake_at=now, reason=reason)

    def _hold(
        self, until: float, reason: HoldReason = HoldReason.GATHERING, shed: tuple[Shed, ...] = ()
    ) -> Decision:
        """Nothing leaves before `until`; nothing at all waits any more if the queue is empty."""
        if not self.waiting:
            until, reason = NEVER, HoldReason.EMPTY
        return Decision(release=None, shed=shed, wake_at=until, reason=reason)

    def _give_up(self, item: Item, now: float) -> Shed:
        """Take an item out of the queue that will not be served."""
        self._forget(item)
        expired = item.deadline <= now
        return Shed(item=item, outcome=Outcome.EXPIRED if expired else Outcome.SHED)

    def _give_up_expired(self, items: Iterable[Item], now: float) -> tuple[Shed, ...]:
        """Take those out whose deadline has passed."""
        return tuple([self._give_up(item, now) for item in items if item.deadline <= now])


def alike(items: Iterable[Item]) -> list[Item]:
    """The first items, as far as their keys are equal."""
    chosen: list[Item] = []
    for item in items:
        if chosen and item.key != chosen[0].key:
            break
        chosen.append(item)
    return chosen
