"""Items that wait aside: late ones, and those whose key rests.

A late item missed its due time and is still wanted. Late items are served by priority and age when
no item on time needs the device; while tenants have turns also when it is the turn of a tenant that
has no others.

An item rests because the server refused its tenant's key a moment ago. A server that refuses one
kind of request with 429 or 503 (a tenant's quota, one of its models) says nothing of others, nor of
other tenants' requests of that kind: so these go on.
"""

import bisect
import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.queue.items import Item, ItemId, Priority
from batchedmodel_scheduling.queue.keys import original
from batchedmodel_scheduling.queue.ready_queue import Limits, QueuedItem

_MOST_LOOKED_AT: Final = 256
"""Late items that a decision looks at, however many there are."""
_MOST_KEYS: Final = 256
"""Tenants' keys that rest at once. Of more, a tenant with the most of them loses the rest that
would end first: callers choose keys, and one must not end the rests of others."""

_REFUSED_TENANTS: Final = 16
"""Where a key rests for so many tenants the next refusal is for all of them: a server that refuses
everybody must not be asked again by each."""
_ALL_TENANTS: Final = ""


class LateItems:
    """The late items of all keys and lengths."""

    def __init__(self) -> None:
        self.entries: Final[list[QueuedItem]] = []
        """By priority and age."""
        self._by_id: Final[dict[ItemId, QueuedItem]] = {}
        self._tenants: Final[Counter[str]] = Counter()
        """How many each tenant has."""

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Item]:
        return iter([entry.item for entry in self.entries])

    def add(self, entry: QueuedItem) -> None:
        """An item is late from now on."""
        self._by_id[entry.id] = entry
        self._tenants[entry.item.share.tenant] += 1
        bisect.insort(self.entries, entry, key=_turn)

    def discard(self, item_id: ItemId) -> Item | None:
        """Forget an item; None if it is not here."""
        entry = self._by_id.pop(item_id, None)
        if entry is None:
            return None
        del self.entries[bisect.bisect_left(self.entries, _turn(entry), key=_turn)]
        tenant = entry.item.share.tenant
        self._tenants[tenant] -= 1
        if not self._tenants[tenant]:
            del self._tenants[tenant]
        return entry.item

    def of(self, tenant: str) -> int:
        """How many a tenant has."""
        return self._tenants[tenant]

    def last(self, tenant: str) -> Item:
        """The one of a tenant whose turn is last; there must be one."""
        items = (entry.item for entry in reversed(self.entries))
        return next(item for item in items if item.share.tenant == tenant)

    def entry(self, item_id: ItemId) -> QueuedItem | None:
        """The item as it waits, if it is here."""
        return self._by_id.get(item_id)

    def expired(self, now: float) -> list[Item]:
        """Those that no caller waits for any more."""
        return [entry.item for entry in self.entries if entry.item.deadline <= now]

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
        return self._of(self.entries[0], now) if self.entries else []

    def _of(self, like: QueuedItem, now: float) -> list[QueuedItem]:
        seen, key = self.entries[:_MOST_LOOKED_AT], like.item.key
        return [one for one in seen if one.item.key == key and one.item.deadline > now]


def _turn(entry: QueuedItem) -> tuple[Priority, float, ItemId]:
    return entry.item.priority, entry.item.arrived, entry.id


class Refusable(Protocol):
    """An item or a request for texts, which a server may refuse for a while."""

    @property
    def id(self) -> int:
        """Its number."""
        ...

    @property
    def key(self) -> Hashable:
        """What a server may refuse with it."""
        ...

    @property
    def share(self) -> Share:
        """Its tenant's."""
        ...


R = TypeVar("R", bound=Refusable)


class RestingItems(Generic[R]):
    """Tenants' keys that rest, and their items. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.until: Final[dict[tuple[Hashable, str], float]] = {}
        """When the rest of each tenant's key ends."""
        self.items: Final[dict[int, R]] = {}
        self._cut_short = False
        """Whether items may be here whose key rests no more."""

    def rest(self, key: Hashable, tenant: str, until: float) -> None:
        """A tenant's key rests until then at least."""
        key = original(key)
        if sum([refused == key for refused, _ in self.until]) >= _REFUSED_TENANTS:
            tenant = _ALL_TENANTS
        rests = key, tenant
        self.until[rests] = max(until, self.until.get(rests, -math.inf))
        if len(self.until) > _MOST_KEYS:
            keys = Counter([name for _, name in self.until])
            most = max(keys.values())
            loses = [one for one in self.until if keys[one[1]] == most]
            del self.until[min(loses, key=lambda one: self.until[one])]
            self._cut_short = True

    def rests(self, key: Hashable, tenant: str) -> bool:
        """Whether a tenant's key rests; `woken` ends what is over."""
        key = original(key)
        return (key, tenant) in self.until or (key, _ALL_TENANTS) in self.until

    def takes(self, item: R) -> bool:
        """Whether the key of an item rests; it waits here then."""
        if not self.until or not self.rests(item.key, item.share.tenant):
            return False
        self.items[item.id] = item
        return True

    def discard(self, item_id: int) -> R | None:
        """Forget an item; None if it is not here."""
        return self.items.pop(item_id, None)

    def woken(self, now: float) -> list[R]:
        """The items whose keys rest no more; they wait here no longer."""
        over = [key for key, until in self.until.items() if until <= now]
        if not over and not self._cut_short:
            return []
        for key in over:
            del self.until[key]
        self._cut_short = False
        woken = [
            item for item in self.items.values() if not self.rests(item.key, item.share.tenant)
        ]
        for item in woken:
            del self.items[item.id]
        return woken

    def changes_at(self) -> float:
        """When the next key ends its rest; infinity when none rests."""
        return min(self.until.values(), default=math.inf)
