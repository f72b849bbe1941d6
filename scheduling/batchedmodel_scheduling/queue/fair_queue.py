"""Start-time fair queueing: whose item is next, where tenants share something by their weights.

Each tenant has a virtual time, its start: the work that it was given, divided by its weight. The
tenant with the earliest start is next, and shows its item of the lowest rank. A tenant that comes,
or comes back, starts no earlier than those that wait, and no earlier than it would have if all had
been served at once: so neither idling nor coming anew is an advantage. Work is estimated when an
item leaves and corrected when more is known (`charge`). Its unit is any.

Items of different kinds share no batch. `candidates` are items of one kind in the order in which
they would leave if each were served by itself. They are as many as a caller can choose from
without one tenant getting further ahead of another than by `ahead` work.

Start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996. Pure.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nsmallest
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from batchedmodel_contract.manifest.tenants import Share

K = TypeVar("K", bound=Hashable)
Rank = tuple[float, ...]
_MOST_IDLE_TENANTS: Final = 64
"""Tenants without items that are remembered before those are forgotten that owe nothing."""

_ROUNDING: Final = 1e-9
_turn: Final = attrgetter("start", "served")

_Placed = tuple[Rank, int, Any]
"""An item among those of its tenant: its rank, then the order of arrival; last its key."""


@dataclass(slots=True)
class _Tenant:
    name: str
    weight: float
    start: float = 0.0
    """The virtual time at which its next item starts."""
    served: float = 0.0
    """When an item of it left last, in the order of services."""
    items: list[_Placed] = field(default_factory=list)
    by_kind: dict[Hashable, list[_Placed]] = field(default_factory=dict)
    owes_until: float = -math.inf
    """Its start when it was noted last as one that has no items and owes."""
    counted: float = 0.0
    """Its part of the weights of the tenants that a server of all at once serves."""


class _Item(NamedTuple):
    tenant: _Tenant
    work: float
    placed: _Placed
    kind: Hashable


class FairQueue(Generic[K]):
    """Items of any number of tenants."""

    def __init__(self) -> None:
        self._tenants: Final[dict[str, _Tenant]] = {}
        self._items: Final[dict[K, _Item]] = {}
        self._kinds: Final[dict[Hashable, dict[str, _Tenant]]] = {}
        """The tenants that have items of each kind."""
        self._numbers = self._services = 0
        self._time = 0.0
        """The earliest start of all tenants that wait; it never falls."""
        self._fair = 0.0
        """The virtual time of a server that serves all at once, each tenant by its weight."""
        self._owing: list[tuple[float, int, _Tenant]] = []
        """Tenants without items that such a server would still serve, by when it is done."""
        self._weights = 0.0
        self._counted = 0
        self._order: list[tuple[float, float, int, _Tenant]] = []
        """Tenants with items by start, then by when they were served. It keeps outdated entries,
        and passes over them."""
        self._puts = 0
        self._forgets_at = _MOST_IDLE_TENANTS

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def push(
        self, share: Share, key: K, *, work: float, rank: Rank = (), kind: Hashable = None
    ) -> None:
        """Let an item wait; `key` is new. The lowest rank of a tenant is first."""
        tenant = self._tenants.get(share.tenant)
        if tenant is None:
            tenant = self._new(share)
        tenant.weight = share.weight
        if not tenant.items:
            fair = self._fair * (1 - _ROUNDING)  # equal starts are not told apart by sums
            tenant.start = max(tenant.start, self.virtual_time, fair)
        self._numbers += 1
        placed = (rank, self._numbers, key)
        self._items[key] = _Item(tenant, work, placed, kind)
        insort(tenant.items, placed)
        if kind is not None:
            self._add_kind(tenant, kind, placed)
        self._changed(tenant)

    def cancel(self, key: K) -> None:
        """Forget an item; its tenant does not pay for it. Unknown ones are ignored."""
        item = self._items.pop(key, None)
        if item is None:
            return
        tenant, placed = item.tenant, item.placed
        del tenant.items[bisect_left(tenant.items, placed)]
        if item.kind is not None:
            self._drop_kind(tenant, item.kind, placed)
        self._changed(tenant)

    def move(self, key: K, rank: Rank, kind: Hashable = None) -> None:
        """Give an item another rank, and another kind where one is given.

        The turn of its tenant stays. Unknown ones are ignored.
        """
        item = self._items.get(key)
        if item is None:
            return
        tenant, (_, number, _) = item.tenant, item.placed
        placed = (rank, number, key)
        del tenant.items[bisect_left(tenant.items, item.placed)]
        insort(tenant.items, placed)
        if item.kind is not None:
            self._drop_kind(tenant, item.kind, item.placed)
        kind = item.kind if kind is None else kind
        if kind is not None:
            self._add_kind(tenant, kind, placed)
        self._items[key] = item._replace(placed=placed, kind=kind)

    def leave(self, key: K) -> None:
        """An item is served: its tenant pays for it. Unknown ones are ignored."""
        item = self._items.get(key)
        if item is None:
            return
        # Before it is gone, or the weight of its tenant would not count.
        self.charge(item.tenant.name, item.work)
        self.serves(item.tenant.name)
        self.cancel(key)

    def charge(self, name: str, work: float) -> None:
        """A tenant pays for more work, or for less. Unknown ones are ignored."""
        tenant = self._tenants.get(name)
        if tenant is None:
            return
        tenant.start += work / tenant.weight
        self._changed(tenant)
        self._pass(work)

    def serves(self, name: str) -> None:
        """A tenant is served just now: among tenants with equal starts it is last."""
        tenant = self._tenants.get(name)
        if tenant is not None:
            self._services += 1
            tenant.served = float(self._services)
            self._changed(tenant)

    def first(self) -> K | None:
        """The item whose turn it is."""
        tenant = self._earliest()
        return None if tenant is None else tenant.items[0][2]

    def last(self, name: str) -> K | None:
        """The item of a tenant with the highest rank."""
        tenant = self._tenants.get(name)
        return tenant.items[-1][2] if tenant is not None and tenant.items else None

    def heads(self, most: int) -> list[K]:
        """The first item of each of so many tenants, in the order of their turns."""
        first = self.first()
        if first is None or most == 1:
            return [] if first is None else [first]
        heads: list[K] = []
        order, names = list(self._order), set[str]()
        while order and len(heads) < most:
            start, served, _, tenant = heappop(order)
            is_current = tenant.items and (tenant.start, tenant.served) == (start, served)
            if is_current and tenant.name not in names:
                names.add(tenant.name)
                heads.append(tenant.items[0][2])
        return heads

    def kind_of(self, key: K) -> Hashable:
        """The kind of an item, which must wait."""
        return self._items[key].kind

    def kinds(self, most: int) -> list[Hashable]:
        """At most so many kinds of tenants' first items, in the order of their turns."""
        self._earliest()
        kinds, order = dict[Hashable, None](), list(self._order)
        while order and len(kinds) < most:
            start, served, _, tenant = heappop(order)
            if tenant.items and (tenant.start, tenant.served) == (start, served):
                kinds[self._items[tenant.items[0][2]].kind] = None
        return list(kinds)

    def candidates(self, kind: Hashable, items: int) -> list[K]:
        """Items of a kind that may leave next, in fair order.

        They are about as many as fill a batch of so many items, or their work. None starts later
        than the first by more than its tenant's part of that work, or twice as much where there
        would be too few: so an item that is never chosen is the only candidate in the end.
        """
        tenants = self._kinds.get(kind)
        if tenants is None:
            return []
        # Of thousands of tenants that have equally little these are more than are candidates.
        next_ones = nsmallest(2 * items, tenants.values(), key=_turn)
        order = [(one.start, one.served, at, 0, one) for at, one in enumerate(next_ones)]
        first = order[0][0]
        works = [self._items[one.by_kind[kind][0][2]].work for one in next_ones]
        ahead = items * sum(works, 0.0) / len(works)
        part = ahead / sum([tenant.weight for tenant in tenants.values()], 0.0)
        keys: list[K] = []
        work = 0.0
        while order:
            start, served, at, place, tenant = heappop(order)
            enough = len(keys) >= items and (work >= ahead or start >= first + part)
            if keys and (enough or start >= first + 2 * part):
                break
            mine = tenant.by_kind[kind]
            key = mine[place][2]
            keys.append(key)
            its_work = self._items[key].work
            work += its_work
            if place + 1 < len(mine):
                start += its_work / tenant.weight
                heappush(order, (start, served, at, place + 1, tenant))
        return keys

    def pass_over(self, keys: Iterable[K]) -> None:
        """These leave although others were before them, which were free to leave and wait.

        The others must not get all that is served meanwhile: from now on they start with these.
        """
        starts = [self._items[key].tenant.start for key in keys if key in self._items]
        begins = min(starts, default=self._time)
        while (tenant := self._earliest()) is not None and tenant.start < begins:
            tenant.start = begins
            self._changed(tenant)

    @property
    def virtual_time(self) -> float:
        """The earliest start of all tenants that wait."""
        tenant = self._earliest()
        if tenant is not None:
            self._time = max(self._time, tenant.start)
        return self._time

    def _add_kind(self, tenant: _Tenant, kind: Hashable, placed: _Placed) -> None:
        mine = tenant.by_kind.get(kind)
        if mine is None:
            mine = tenant.by_kind[kind] = []
            self._kinds.setdefault(kind, {})[tenant.name] = tenant
        insort(mine, placed)

    def _drop_kind(self, tenant: _Tenant, kind: Hashable, placed: _Placed) -> None:
        mine = tenant.by_kind[kind]
        del mine[bisect_left(mine, placed)]
        if not mine:
            del tenant.by_kind[kind]
            tenants = self._kinds[kind]
            del tenants[tenant.name]
            if not tenants:
                del self._kinds[kind]

    def _new(self, share: Share) -> _Tenant:
        if len(self._tenants) >= self._forgets_at:
            now = max(self.virtual_time, self._fair)
            for tenant in list(self._tenants.values()):
                if not tenant.items and tenant.start <= now:
                    tenant.start = -math.inf
                    self._count(tenant)
                    del self._tenants[tenant.name]
            self._forgets_at = _MOST_IDLE_TENANTS + 2 * len(self._tenants)
        # Of equal starts: those that wait for longer, then this one, then the one served last.
        tenant = _Tenant(share.tenant, share.weight, served=self._services - 0.5)
        self._tenants[share.tenant] = tenant
        return tenant

    def _earliest(self) -> _Tenant | None:
        while self._order:
            start, served, _, tenant = self._order[0]
            if tenant.items and tenant.start == start and tenant.served == served:
                return tenant
            heappop(self._order)
        return None

    def _pass(self, work: float) -> None:
        """So much was served: the virtual time of a server of all at once goes on."""
        while self._weights > 0:
            until = self._fair + work / self._weights
            if not self._owing or self._owing[0][0] > until:
                self._fair = until
                return
            start, _, tenant = heappop(self._owing)
            tenant.owes_until = -math.inf
            if start == tenant.start and not tenant.items:
                if start > self._fair:
                    work -= (start - self._fair) * self._weights
                    self._fair = start
                self._count(tenant)

    def _count(self, tenant: _Tenant) -> None:
        counted = tenant.weight if tenant.items or tenant.start > self._fair else 0.0
        self._counted += (counted > 0) - (tenant.counted > 0)
        # Where there is none, no rest of a sum of fractions is a weight.
        self._weights = self._weights + counted - tenant.counted if self._counted else 0.0
        tenant.counted = counted

    def _changed(self, tenant: _Tenant) -> None:
        """Its start, its turn or what waits of it is another."""
        self._count(tenant)
        self._puts += 1
        if not tenant.items:
            if tenant.counted and tenant.owes_until != tenant.start:
                tenant.owes_until = tenant.start
                heappush(self._owing, (tenant.start, self._puts, tenant))
            if not self._items:
                self._order.clear()
            return
        if len(self._order) > _MOST_IDLE_TENANTS + 4 * len(self._tenants):
            self._order = [
                (one.start, one.served, number, one)
                for number, one in enumerate(self._tenants.values(), self._puts)
                if one.items and one is not tenant
            ]
            heapify(self._order)
            self._puts += len(self._tenants)
        heappush(self._order, (tenant.start, tenant.served, self._puts, tenant))
