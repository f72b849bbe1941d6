"""The items that wait for a batch, and which of them a policy may choose from.

While one tenant waits, a policy chooses among all items. Tenants have turns from when more items of
several wait than leave next if they are like those of recent batches, until a half of that is left.
Then the first offer is of the kind of items whose turn it is: that of the first item of the tenant
that is furthest behind. The candidates are the items of that kind that would leave next if each
were served by itself. A policy that holds all of them for company is offered those of the kinds
behind.

The states of an item are in `docs/architecture.md`. Pure; owned by a policy.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from batchedmodel_scheduling.queue.fair_queue import FairQueue
from batchedmodel_scheduling.queue.items import NEVER, Item, ItemId
from batchedmodel_scheduling.queue.keys import apart
from batchedmodel_scheduling.queue.ready_queue import Lane, QueuedItem, ReadyQueue
from batchedmodel_scheduling.queue.set_aside import LateItems, RestingItems
from batchedmodel_scheduling.queue.shared_room import SharedRoom

_KINDS_AT_ONCE: Final = 16
"""Kinds of items that one choice is among, once the kind whose turn it is waits for company."""
_MOST_OFFERS: Final = 4
"""Of one decision: what is behind waits for the next one."""

Entry = Callable[[Item], QueuedItem]
"""An item as the policy orders it."""
Price = Callable[[int], float]
"""The work of an item of this length, for which its tenant pays."""


class ItemQueue:
    """Items in the order of one policy, which may become another one's."""

    def __init__(self, room: SharedRoom | None = None) -> None:
        """`room`: what tenants share; by default of its own, and of no size yet."""
        self.room: Final = SharedRoom(0) if room is None else room
        self.late: Final = LateItems()
        self.resting: Final = RestingItems[Item]()
        self.evicted: list[Item] = []
        """Late items that made room for others, until the next decision tells so."""
        self._ready = ReadyQueue(())
        """Items on time while tenants have no turns."""
        self._fair: FairQueue[ItemId] | None = None
        """Their order while tenants have turns."""
        self._in_turn: Final[dict[ItemId, QueuedItem]] = {}
        self._returned: Final[set[ItemId]] = set()
        """Items that came back: first of their tenants, also after a rest."""
        self._entry: Entry | None = None
        self._price: Price | None = None
        self.next_items = 1
        """Items that leave next where all workers get full batches."""
        self.usual_next_items = 1
        """The same of items like those of recent batches, within all bounds and in time."""
        self._served: Collection[str] = ()
        """The tenants of the batch that left last."""

    def __len__(self) -> int:
        """How many items may leave, on time or late."""
        return self.on_time + len(self.late.entries)

    def __iter__(self) -> Iterator[Item]:
        """Those that may leave."""
        in_turn = [entry.item for entry in self._in_turn.values()]
        return chain(self._ready, in_turn, self.late)

    @property
    def on_time(self) -> int:
        """How many are not late."""
        return len(self._ready) + len(self._in_turn)

    @property
    def has_turns(self) -> bool:
        """Whether tenants have turns at present."""
        return self._fair is not None

    def competes(self, tenant: str, items: int) -> bool:
        """Whether tenants have turns once so many more items of this one wait."""
        if self._fair is not None:
            return True
        return self.room.in_use + items > self.usual_next_items and self.room.has_others(tenant)

    def order_by(self, entry: Entry, price: Price, ready: ReadyQueue, next_items: int) -> None:
        """Order all that waits by `entry`, in lanes as those of the empty `ready`.

        `next_items`: how many leave next where all workers get full batches.
        """
        waiting = list(self)
        self._entry, self._price = entry, price
        self.next_items = self.usual_next_items = next_items
        for item in waiting:
            self._forget(item.id)
        # What tenants had may have been counted in another unit: turns begin anew.
        self._fair, self._ready = None, ready
        for item in waiting:
            self._place(entry(item))

    def push(self, entry: QueuedItem) -> Lane | None:
        """Let an item wait, for which there is room; its lane, if it is in one."""
        self.room.take(entry.item.share, 1)
        if self.resting.until and self.resting.takes(entry.item):
            return None
        return self._place(entry)

    def come_back(self, entry: QueuedItem) -> None:
        """An item that left waits again: it is the first of its tenant, which pays once more."""
        self._returned.add(entry.id)
        self.push(entry)

    def cancel(self, item_id: ItemId) -> Item | None:
        """Forget an item; None if it does not wait."""
        item = self._forget(item_id) or self.resting.discard(item_id)
        self._returned.discard(item_id)
        if item is not None:
            self.room.give_back(item.share.tenant, 1)
        elif self.evicted:
            self.evicted = [item for item in self.evicted if item.id != item_id]
        return item

    def evict(self, tenant: str) -> None:
        """The late item of a tenant whose turn is last makes room; there must be one."""
        item = self.late.last(tenant)
        self.cancel(item.id)
        self.evicted.append(item)

    def leave(self, batch: Sequence[QueuedItem], late: Sequence[QueuedItem] = ()) -> None:
        """These leave together; tenants pay for the work of their items."""
        fair = self._fair
        if fair is None:
            self._ready.take(batch)
        else:
            for entry in batch:
                fair.leave(entry.id)
                del self._in_turn[entry.id]
        for entry in late:
            self.late.discard(entry.id)
            if fair is not None:
                fair.leave(entry.id)
        if self._returned:
            self._returned.difference_update([entry.id for entry in chain(batch, late)])
        tenants = Counter([entry.item.share.tenant for entry in chain(batch, late)])
        for tenant, items in tenants.items():
            self.room.give_back(tenant, items)
        self._served = tenants

    def becomes_late(self, entry: QueuedItem) -> None:
        """An item on time will not be; it waits on, behind its tenant's others."""
        if self._fair is None:
            self._ready.discard(entry.id)
        else:
            del self._in_turn[entry.id]
            self._fair.move(entry.id, _late_rank(entry), _Late(entry.item.key))
        self.late.add(entry)

    def rest(self, key: Hashable, tenant: str, until: float) -> None:
        """No item of a tenant and key leaves until then."""
        self.resting.rest(key, tenant, until)
        for item in list(self):
            if self.resting.takes(item):
                self._forget(item.id)

    def part(self, tenant: str) -> None:
        """What waits of a tenant shares batches with no other's items."""
        assert self._entry is not None, "a policy orders the items"
        for item in list(self):
            if item.share.tenant == tenant:
                self._forget(item.id)
                self._place(self._entry(apart(item)))
        for item in list(self.resting.items.values()):
            if item.share.tenant == tenant:
                self.resting.items[item.id] = apart(item)

    def wake(self, now: float) -> None:
        """End rests that are over, and turns that are not needed any more."""
        assert self._entry is not None, "a policy orders the items"
        if self.resting.until:
            for item in self.resting.woken(now):
                self._place(self._entry(item))
        if self._fair is not None and self.room.in_use <= self.usual_next_items // 2:
            self._fair = None
            for entry in self._in_turn.values():
                self._ready.add(entry)
            self._in_turn.clear()

    def candidates(self, offer: int = 0) -> ReadyQueue | None:
        """What a policy may choose from; None if there is no such offer.

        While tenants have turns, the first offer is of the kind whose turn it is, or empty if those
        are late items. Each further one is of the next kinds.
        """
        fair = self._fair
        if fair is None:
            return None if offer else self._ready
        ready = self._ready.alike()
        if offer == 0:
            first = fair.first()
            kinds = [] if first is None else [fair.kind_of(first)]
        elif offer < _MOST_OFFERS:
            kinds = fair.kinds(1 + offer * _KINDS_AT_ONCE)[1 + (offer - 1) * _KINDS_AT_ONCE :]
            if not kinds:
                return None
        else:
            return None
        for kind in kinds:
            if not isinstance(kind, _Late):
                for item_id in fair.candidates(kind, self.next_items):
                    ready.add(self._in_turn[item_id])
        return ready

    def late_in_turn(self, now: float) -> list[QueuedItem]:
        """Late items that may share a batch, if it is their tenants' turn."""
        first = None if self._fair is None else self._fair.first()
        if self._fair is None or first is None:
            return []
        kind = self._fair.kind_of(first)
        if not isinstance(kind, _Late):
            return []
        entries = [self.late.entry(one) for one in self._fair.candidates(kind, self.next_items)]
        return [one for one in entries if one is not None and one.item.deadline > now]

    def pass_over(self, batch: Sequence[QueuedItem]) -> None:
        """These are about to leave, while items that were offered before wait for company."""
        if self._fair is not None:
            self._fair.pass_over([entry.id for entry in batch])

    def charge(self, tenant: str, work: float) -> None:
        """A tenant pays for work beside that of its items, while tenants have turns."""
        if self._fair is not None:
            self._fair.charge(tenant, work)

    def _place(self, entry: QueuedItem) -> Lane | None:
        item = entry.item
        if self._fair is None and self.competes(item.share.tenant, 0):
            self._begin_turns()
        if self._fair is None:
            return self._ready.add(entry)
        self._take_turn(self._fair, entry)
        return None

    def _begin_turns(self) -> None:
        fair = self._fair = FairQueue()
        for entry in self._ready.entries():
            self._take_turn(fair, entry)
        for entry in self.late.entries:
            self._take_turn(fair, entry, _late_rank(entry), _Late(entry.item.key))
        self._ready = self._ready.alike()
        for tenant in self._served:
            fair.serves(tenant)

    def _take_turn(
        self,
        fair: FairQueue[ItemId],
        entry: QueuedItem,
        rank: tuple[float, ...] | None = None,
        kind: Hashable = None,
    ) -> None:
        assert self._price is not None, "a policy orders the items"
        item = entry.item
        if kind is None:
            self._in_turn[item.id] = entry
        if rank is None:  # compiled, a constant of it would not be set
            rank = (-NEVER if item.id in self._returned else entry.order,)
        fair.push(
            item.share,
            item.id,
            work=self._price(item.length),
            rank=rank,
            kind=_kind(item) if kind is None else kind,
        )

    def _forget(self, item_id: ItemId) -> Item | None:
        if self._fair is not None:
            self._fair.cancel(item_id)
            entry = self._in_turn.pop(item_id, None)
        else:
            entry = self._ready.discard(item_id)
        return self.late.discard(item_id) if entry is None else entry.item


class _Late(NamedTuple):
    """The kind of late items of a key."""

    key: Hashable


def _late_rank(entry: QueuedItem) -> tuple[float, ...]:
    """Behind all of its tenant that are on time."""
    return (NEVER, float(entry.item.priority), entry.item.arrived)


def _kind(item: Item) -> Hashable:
    """What items have in common that may share a batch while tenants have turns.

    Lengths of 2 to 7, of 8 to 31, ... : padded batches of unlike lengths take longer together than
    apart, and packed ones gain little. Where the device was not measured, what items take is only
    learnt where they are apart.
    """
    return item.key, (item.length.bit_length() + 2) // 2
