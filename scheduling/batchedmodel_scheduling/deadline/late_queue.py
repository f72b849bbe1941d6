"""Items that missed their due time and are still wanted: served when nobody on time needs it.

Owned by `Deadline`. Highest priority first, then in order of arrival.
"""

import bisect
from collections.abc import Iterator
from typing import Final, NamedTuple

from batchedmodel_scheduling.core.limits import Limits
from batchedmodel_scheduling.core.policy import Item, ItemId, Priority
from batchedmodel_scheduling.deadline.ready_queue import QueuedItem

_LOOKED_AT: Final = 256
"""A decision must not grow with a queue of late ones."""


class _Late(NamedTuple):
    """Sorts by the turn to be served."""

    priority: Priority
    arrived: float
    id: ItemId
    entry: QueuedItem


class LateQueue:
    """The late ones."""

    def __init__(self) -> None:
        self._turns: list[_Late] = []
        self._by_id: dict[ItemId, _Late] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, item_id: ItemId) -> bool:
        return item_id in self._by_id

    def __iter__(self) -> Iterator[Item]:
        return (late.entry.item for late in self._turns)

    def add(self, entry: QueuedItem) -> None:
        """An item is late from now on."""
        late = _Late(entry.item.priority, entry.item.arrived, entry.id, entry)
        self._by_id[entry.id] = late
        if not self._turns or self._turns[-1] < late:
            self._turns.append(late)
        else:
            bisect.insort(self._turns, late)

    def discard(self, item_id: ItemId) -> None:
        """Forget an item if it is here."""
        late = self._by_id.pop(item_id, None)
        if late is not None:
            del self._turns[bisect.bisect_left(self._turns, late)]

    def evict(self) -> Item:
        """The one whose turn is last leaves; there must be one."""
        late = self._turns.pop()
        del self._by_id[late.id]
        return late.entry.item

    def expired(self, now: float) -> list[Item]:
        """Remove the first ones in turn that nobody waits for any more."""
        gone: list[Item] = []
        while self._turns and self._turns[0].entry.item.deadline <= now:
            late = self._turns.pop(0)
            del self._by_id[late.id]
            gone.append(late.entry.item)
        return gone

    def company(
        self, batch: list[QueuedItem], limits: Limits, rows: int, now: float
    ) -> list[QueuedItem]:
        """At most `rows` late ones that may go along with a batch and make none of it longer."""
        if rows <= 0 or not self._turns:
            return []
        key, longest = batch[0].item.key, max(entry.length for entry in batch)
        lengths = [entry.length for entry in batch]
        found: list[QueuedItem] = []
        for late in self._turns[:_LOOKED_AT]:
            entry = late.entry
            if len(found) == rows:
                break
            fits = entry.item.key == key and entry.length <= longest
            if not fits or entry.item.deadline <= now:
                continue
            if limits.fitting([*lengths, entry.length]) == len(lengths):
                break
            lengths.append(entry.length)
            found.append(entry)
        return found

    def alike(self, now: float) -> list[QueuedItem]:
        """The next ones in turn that could share a batch with the very first; none if none wait."""
        if not self._turns:
            return []
        key = self._turns[0].entry.item.key
        return [
            late.entry
            for late in self._turns[:_LOOKED_AT]
            if late.entry.item.key == key and late.entry.item.deadline > now
        ]
