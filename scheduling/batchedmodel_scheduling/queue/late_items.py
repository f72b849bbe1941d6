"""Items that missed their due time and are still wanted.

They wait in one line, by priority and age, and are served when no item on time needs the device.
"""

import bisect
from collections.abc import Iterator, Sequence
from typing import Final

from batchedmodel_scheduling.queue.items import Item, ItemId, Priority
from batchedmodel_scheduling.queue.limits import Limits
from batchedmodel_scheduling.queue.ready_queue import QueuedItem

_MOST_LOOKED_AT: Final = 256
"""Late items that a decision looks at, however many there are."""


class LateItems:
    """The late items of all keys and lengths."""

    def __init__(self) -> None:
        self._entries: Final[list[QueuedItem]] = []
        self._by_id: Final[dict[ItemId, QueuedItem]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Item]:
        return iter([entry.item for entry in self._entries])

    def add(self, entry: QueuedItem) -> None:
        """An item is late from now on."""
        self._by_id[entry.id] = entry
        bisect.insort(self._entries, entry, key=_turn)

    def discard(self, item_id: ItemId) -> Item | None:
        """Forget an item; None if it is not here."""
        entry = self._by_id.pop(item_id, None)
        if entry is None:
            return None
        del self._entries[bisect.bisect_left(self._entries, _turn(entry), key=_turn)]
        return entry.item

    def last(self) -> Item:
        """The one whose turn is last; there must be one."""
        return self._entries[-1].item

    def expired(self, now: float) -> list[Item]:
        """Those that no caller waits for any more."""
        return [entry.item for entry in self._entries if entry.item.deadline <= now]

    def company(
        self, batch: Sequence[QueuedItem], limits: Limits, rows: int, now: float
    ) -> list[QueuedItem]:
        """At most `rows` that may go along with a batch without making it slower."""
        longest = max(entry.length for entry in batch)
        lengths = [entry.length for entry in batch]
        company: list[QueuedItem] = []
        for entry in self._of(batch[0], now):
            if len(company) >= rows:
                break
            if entry.length > longest:
                continue
            if limits.fitting([*lengths, entry.length]) == len(lengths):
                break
            lengths.append(entry.length)
            company.append(entry)
        return company

    def alike(self, now: float) -> list[QueuedItem]:
        """Those next in turn that could share a batch with the very first; perhaps none."""
        return self._of(self._entries[0], now) if self._entries else []

    def _of(self, like: QueuedItem, now: float) -> list[QueuedItem]:
        seen, key = self._entries[:_MOST_LOOKED_AT], like.item.key
        return [one for one in seen if one.item.key == key and one.item.deadline > now]


def _turn(entry: QueuedItem) -> tuple[Priority, float, ItemId]:
    return entry.item.priority, entry.item.arrived, entry.id
