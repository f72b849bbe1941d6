"""Items that wait because the server refused their tenant's key a moment ago.

A server that refuses one kind of request with 429 or 503 (a tenant's quota, one of its models) says
nothing of the others, and nothing of other tenants' requests of that kind: so these go on.
"""

import math
from collections.abc import Hashable, Iterator
from typing import Final

from batchedmodel_scheduling.queue.items import Item, ItemId
from batchedmodel_scheduling.queue.keys import original

_MOST_KEYS: Final = 64
"""Tenants' keys that rest at once; of more the one whose rest would end first ends now."""


class RestingItems:
    """Tenants' keys that rest, and their items. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._until: dict[tuple[Hashable, str], float] = {}
        self._items: dict[ItemId, Item] = {}
        self._cut_short = False
        """Whether items may be here whose key rests no more."""

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items.values())

    def rest(self, key: Hashable, tenant: str, until: float) -> None:
        """A tenant's key rests until then at least."""
        rests = original(key), tenant
        self._until[rests] = max(until, self._until.get(rests, -math.inf))
        if len(self._until) > _MOST_KEYS:
            del self._until[min(self._until, key=lambda one: self._until[one])]
            self._cut_short = True

    def rests(self, key: Hashable, tenant: str) -> bool:
        """Whether a tenant's key rests; `woken` ends what is over."""
        return (original(key), tenant) in self._until

    def takes(self, item: Item) -> bool:
        """Whether the key of an item rests; it waits here then."""
        if not self._until or not self.rests(item.key, item.share.tenant):
            return False
        self._items[item.id] = item
        return True

    def discard(self, item_id: ItemId) -> Item | None:
        """Forget an item; None if it is not here."""
        return self._items.pop(item_id, None)

    def woken(self, now: float) -> list[Item]:
        """The items whose keys rest no more; they wait here no longer."""
        over = [key for key, until in self._until.items() if until <= now]
        if not over and not self._cut_short:
            return []
        for key in over:
            del self._until[key]
        self._cut_short = False
        woken = [
            item for item in self._items.values() if not self.rests(item.key, item.share.tenant)
        ]
        for item in woken:
            del self._items[item.id]
        return woken

    def changes_at(self) -> float:
        """When the next key ends its rest; infinity when none rests."""
        return min(self._until.values(), default=math.inf)
