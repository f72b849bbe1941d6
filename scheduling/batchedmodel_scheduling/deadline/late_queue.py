"""Items that missed their due time and are still wanted: served when nobody on time needs it.

Owned by `Deadline`. Highest priority first, then in order of arrival.
"""

import bisect
from collections.abc import Iterator
from typing import Final

from batchedmodel_scheduling.core.limits import Limits
from batchedmodel_scheduling.core.policy import Item, ItemId, Priority
from batchedmodel_scheduling.deadline.ready_queue import QueuedItem

_LOOKED_AT: Final = 256
"""Late items that a decision looks at, however many there are."""


class LateQueue:
    """Late items in turn."""

    def __init__(self) -> None:
        self._turns: list[QueuedItem] = []
        self._by_id: dict[ItemId, QueuedItem] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[Item]:
        return (entry.item for entry in self._turns)

    def add(self, entry: QueuedItem) -> None:
        """An item is late from now on."""
        self._by_id[entry.id] = entry
        bisect.insort(self._turns, entry, key=_turn)

    def discard(self, item_id: ItemId) -> None:
        """Forget an item if it is here."""
        entry = self._by_id.pop(item_id, None)
        if entry is not None:
            del self._turns[bisect.bisect_left(self._turns, _turn(entry), key=_turn)]

    def evict(self) -> Item:
        """The one whose turn is last leaves; there must be one."""
        entry = self._turns.pop()
        del self._by_id[entry.id]
        return entry.item

    def expired(self, now: float) -> list[Item]:
        """Remove the first ones in turn that nobody waits for any more."""
        gone: list[Item] = []
        while self._turns and self._turns[0].item.deadline <= now:
            entry = self._turns.pop(0)
            del self._by_id[entry.id]
            gone.append(entry.item)
        return gone

    def company(
        self, batch: list[QueuedItem], limits: Limits, rows: int, now: float
    ) -> list[QueuedItem]:
        """At most `rows` late items that may go along with a batch without making it slower."""
        if rows <= 0 or not self._turns:
            return []
        key, longest = batch[0].item.key, max(entry.length for entry in batch)
        lengths = [entry.length for entry in batch]
        found: list[QueuedItem] = []
        for entry in self._turns[:_LOOKED_AT]:
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
        key = self._turns[0].item.key
        return [
            entry
            for entry in self._turns[:_LOOKED_AT]
            if entry.item.key == key and entry.item.deadline > now
        ]


def _turn(entry: QueuedItem) -> tuple[Priority, float, ItemId]:
    return entry.item.priority, entry.item.arrived, entry.id
