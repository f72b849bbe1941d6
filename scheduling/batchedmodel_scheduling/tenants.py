"""The order in which items of tenants are seen.

`FairQueue` is start-time fair queueing. Each tenant has a virtual time: the work that it was shown,
divided by its weight. The tenant that is furthest behind shows its next item, which is its item of
lowest rank. No tenant gets further ahead than a horizon of the item that has been seen the longest.
So no order that a policy prefers keeps a shown item waiting for longer. Items of different kinds
share no batch, so there must be enough to show of each kind. The horizon grows with the number of
kinds. A tenant counts with the kind of its newest item only, so it cannot move the horizon by
sending many kinds. Work is in seconds of the device, or any other unit.

Pure.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, Final, Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
_FEW: Final = 64
_EQUAL: Final = 0.5
"""Of what is shown of a tenant: who is behind another by less has had as much."""


def length_class(length: int) -> int:
    """Rows of which lengths may share a batch while tenants take turns: of 2 to 7, of 8 to 31, ...

    Padded batches of unlike lengths take longer together than apart, and packed ones gain little.
    Where nobody measured the device, what rows take is only learnt where they are apart.
    """
    return (length.bit_length() + 2) // 2


@dataclass(slots=True)
class _Tenant:
    """What waits of one tenant; `start` is the virtual time at which its next item starts."""

    weight: float
    start: float
    kind: Hashable
    unseen: list[tuple[float, int, Any]] = field(default_factory=list)
    shown: int = 0
    shown_work: float = 0.0
    """Of what is shown, divided by the weight: its first item starts so much before `start`."""
    had: int = 0
    """When it was served last, in the order of services."""
    counted: float = 0.0
    """Its part of the weights of all that have items here."""
    counted_kind: Hashable = None


@dataclass(frozen=True, slots=True)
class _Entry:
    tenant: Hashable
    work: float
    rank: float
    number: int
    kind: Hashable


class _Shown(NamedTuple):
    entry: _Entry
    start: float
    part: float
    """Its work, divided by its tenant's weight when it was shown."""


class FairQueue(Generic[K]):
    """Items of any number of tenants, each unseen, or shown and not gone."""

    def __init__(self) -> None:
        self._tenants: Final[dict[Hashable, _Tenant]] = {}
        self._unseen: Final[dict[K, _Entry]] = {}
        self._shown: Final[dict[K, _Shown]] = {}
        self._numbers = 0
        self._services = 0
        self._time = 0.0
        """The virtual time: nobody who comes now starts before it."""
        self._fair = 0.0
        """What each of those who wait would have had if all were served at once, by weight. Who
        comes now starts no earlier either, or a stream of newcomers would keep all others back."""
        self._before_last = 0
        """Services before the batch that left last."""
        # Both keep outdated entries and pass over them: so a look costs the same with many tenants.
        self._order: list[tuple[float, int, _Tenant]] = []
        """Tenants with unseen items, the furthest behind first."""
        self._starts: list[tuple[float, int, K]] = []
        """Shown items by their starts."""
        self._pushes = 0
        self._debtors: set[Hashable] = set()
        """Tenants that were charged since items were shown last."""
        self._weights = 0.0
        self._kinds: Final[Counter[Hashable]] = Counter()
        """How many tenants with items here have each kind."""
        self._forgets_at = _FEW
        """How many tenants there are when idle ones are forgotten."""

    @property
    def unseen(self) -> int:
        """How many items no policy has seen."""
        return len(self._unseen)

    def add(
        self,
        tenant: Hashable,
        key: K,
        *,
        work: float,
        rank: float,
        weight: float = 1.0,
        kind: Hashable = None,
    ) -> None:
        """Let an item wait; `key` is new. The lowest rank of a tenant is shown first."""
        waits = self._tenants.get(tenant)
        if waits is None:
            if len(self._tenants) >= self._forgets_at:
                self._forget_idle()
            # Behind it is who was served in the last batch, and before it who waits for longer.
            waits = self._tenants[tenant] = _Tenant(weight, 0.0, kind, had=self._before_last)
        waits.weight, waits.kind = weight, kind
        if not waits.unseen:
            waits.start = max(waits.start, self._now(), self._fair)
        self._numbers += 1
        heappush(waits.unseen, (rank, self._numbers, key))
        self._unseen[key] = _Entry(tenant, work, rank, self._numbers, kind)
        self._changed(waits)

    def show(self, ahead: float, least: int = 1) -> list[K]:
        """The items whose turn it is, until about `ahead` work is shown of all tenants together.

        At most twice as much where it would be fewer than `least` items. Both are for each kind.
        """
        self._move_debtors()
        shown: list[K] = []
        ahead, least = ahead * len(self._kinds), least * len(self._kinds)
        now = self._now()  # what is shown starts no earlier, so it stays
        while (behind := self._furthest_behind()) is not None:
            # Where an item starts counts: so `ahead` is passed by at most one item of each tenant.
            by = behind.start - now
            enough = len(self._shown) >= least and by >= ahead / self._weights
            if self._shown and (enough or by >= 2 * ahead / self._weights):
                break
            _, _, key = heappop(behind.unseen)
            entry = self._unseen.pop(key)
            self._drop_discarded(behind)
            self._pushes += 1
            heappush(self._starts, (behind.start, self._pushes, key))
            part = entry.work / behind.weight
            self._shown[key] = _Shown(entry, behind.start, part)
            behind.start += part
            behind.shown += 1
            behind.shown_work += part
            self._changed(behind)
            shown.append(key)
        return shown

    @property
    def overtaken(self) -> bool:
        """Whether an unseen item is before a shown one."""
        behind = self._furthest_behind()
        latest = max((shown.start for shown in self._shown.values()), default=self._time)
        return behind is not None and behind.start < latest

    def take_back(self) -> list[K]:
        """The shown items, unseen again."""
        back = list(self._shown)
        self.hide(back)
        self._starts.clear()
        return back

    def hide(self, keys: Iterable[K]) -> None:
        """Shown items are unseen again."""
        theirs = dict[Hashable, _Tenant]()
        for key in keys:
            entry, _, part = self._shown.pop(key)
            tenant = self._tenants[entry.tenant]
            tenant.start -= part
            tenant.shown -= 1
            tenant.shown_work = max(0.0, tenant.shown_work - part)
            heappush(tenant.unseen, (entry.rank, entry.number, key))
            self._unseen[key] = entry
            theirs[entry.tenant] = tenant
        for tenant in theirs.values():
            self._changed(tenant)

    def turn(self) -> Hashable:
        """The kind of shown items whose turn it is; there must be one.

        A batch is of one kind, and which goes first is no policy's choice while tenants take turns.
        Of tenants that have had equally much, the one that was served longest ago is first.
        """
        # Who shows nothing is behind nobody who does.
        first: dict[Hashable, _Entry] = {}
        for entry, _, _ in self._shown.values():
            other = first.get(entry.tenant)
            if other is None or (entry.rank, entry.number) < (other.rank, other.number):
                first[entry.tenant] = entry
        tenants = [self._tenants[name] for name in first]
        begins = [tenant.start - tenant.shown_work for tenant in tenants]
        equal = min(begins) + _EQUAL * max([tenant.shown_work for tenant in tenants])
        turns = zip(begins, tenants, first.values(), strict=True)
        _, _, turn = min(
            [(tenant.had, entry.number, entry) for at, tenant, entry in turns if at <= equal]
        )
        return turn.kind

    def _move_debtors(self) -> None:
        """What is shown of who was charged since starts no earlier than if it were shown now.

        It would hold the virtual time, and so keep back what is to be shown of others.
        """
        debtors, self._debtors = self._debtors, set()
        if not debtors:
            return
        for key, shown in list(self._shown.items()):
            if shown.entry.tenant in debtors:
                tenant = self._tenants[shown.entry.tenant]
                self._start_at(key, shown, tenant.start - tenant.shown_work)

    def _start_at(self, key: K, shown: _Shown, begins: float) -> None:
        if shown.start < begins:
            self._shown[key] = shown._replace(start=begins)
            self._pushes += 1
            heappush(self._starts, (begins, self._pushes, key))

    def pass_over(self) -> bool:
        """What is shown waits although it could leave: others need not; whether any are next.

        The virtual time goes on to the next turn. Who was passed over has as much as whoever comes
        now: it waits of its own accord, and must not get all that others were served meanwhile.
        """
        following = self._furthest_behind()
        if following is None:
            return False
        begins = following.start
        passed = [(key, shown) for key, shown in self._shown.items() if shown.start < begins]
        for key, shown in passed:
            self._start_at(key, shown, begins)
        for name in {shown.entry.tenant for _, shown in passed}:
            tenant = self._tenants[name]
            if tenant is not following:
                tenant.start = max(tenant.start, begins + tenant.shown_work)
                self._changed(tenant)
        return bool(passed)

    def leave_together(self, keys: Iterable[K], *, padded: bool) -> float:
        """These leave as one batch; returns the work that their tenants pay for it.

        `padded`: each item costs what the costliest does, and the tenant of the costliest pays for
        the padding. Unknown items are ignored.
        """
        self._before_last = self._services
        entries = [self._shown[key].entry for key in keys if key in self._shown]
        if not entries:
            return 0.0
        paid = sum([entry.work for entry in entries])
        if not padded:
            return paid
        costliest = max(entries, key=lambda entry: entry.work)
        whole = len(entries) * costliest.work
        self.charge(costliest.tenant, whole - paid)
        return whole

    def charge(self, tenant: Hashable, work: float) -> None:
        """A tenant pays for work beside its items. Ignored when none of its items is known."""
        waits = self._tenants.get(tenant)
        if waits is not None:
            waits.start += work / waits.weight
            self._debtors.add(tenant)
            self._fair += work / self._weights if self._weights > 0 else 0.0
            self._changed(waits)

    def left(self, key: K) -> None:
        """A shown item was served: its tenant has had it. Unknown ones are ignored."""
        weights = self._weights
        gone = self._gone(key)
        if gone is not None:
            self._fair += gone.entry.work / weights
            self.served(gone.entry.tenant)

    def served(self, tenant: Hashable) -> None:
        """A tenant was served just now. Ignored when none of its items is known."""
        if (waits := self._tenants.get(tenant)) is not None:
            self._services += 1
            waits.had = self._services

    def discard(self, key: K) -> None:
        """An item ended unserved: its tenant does not pay for it. Unknown ones are ignored."""
        if (entry := self._unseen.pop(key, None)) is not None:
            self._prune(entry.tenant)
        elif (gone := self._gone(key)) is not None and gone.entry.tenant in self._tenants:
            tenant = self._tenants[gone.entry.tenant]
            tenant.start = max(self._time, tenant.start - gone.part)
            self._changed(tenant)

    def _gone(self, key: K) -> _Shown | None:
        self._now()
        gone = self._shown.pop(key, None)
        if gone is not None:
            tenant = self._tenants[gone.entry.tenant]
            tenant.shown -= 1
            tenant.shown_work = max(0.0, tenant.shown_work - gone.part)
            self._prune(gone.entry.tenant)
        return gone

    def _prune(self, name: Hashable) -> None:
        """Forget what was discarded at the head, and everything once nothing waits."""
        tenant = self._tenants[name]
        self._drop_discarded(tenant)
        self._changed(tenant)
        if not self._unseen and not self._shown:
            self._tenants.clear()
            self._order.clear()
            self._starts.clear()
            self._kinds.clear()
            self._debtors.clear()
            self._time = self._fair = self._weights = 0.0
            self._forgets_at = _FEW

    def _drop_discarded(self, tenant: _Tenant) -> None:
        while tenant.unseen and tenant.unseen[0][2] not in self._unseen:
            heappop(tenant.unseen)

    def _forget_idle(self) -> None:
        """Forget tenants that have nothing here and are ahead of nobody, as new ones are."""
        now = self._now()
        for name, tenant in list(self._tenants.items()):
            if not tenant.unseen and not tenant.shown and tenant.start <= now:
                del self._tenants[name]
        self._debtors.intersection_update(self._tenants)
        self._forgets_at = _FEW + 2 * len(self._tenants)

    def _furthest_behind(self) -> _Tenant | None:
        while self._order:
            start, _, tenant = self._order[0]
            if tenant.unseen and tenant.start == start:
                return tenant
            heappop(self._order)
        return None

    def _now(self) -> float:
        while self._starts:
            start, _, key = self._starts[0]
            if (shown := self._shown.get(key)) is not None and shown.start == start:
                break
            heappop(self._starts)
        behind = self._furthest_behind()
        starts = [start for start, _, _ in self._starts[:1]]
        starts += [behind.start] if behind is not None else []
        self._time = max(self._time, min(starts, default=self._time))
        return self._time

    def _changed(self, tenant: _Tenant) -> None:
        """Its start, or what it has here, is another."""
        counted = tenant.weight if tenant.unseen or tenant.shown else 0.0
        self._weights += counted - tenant.counted
        self._count_kind(tenant, before=tenant.counted > 0, now=counted > 0)
        tenant.counted = counted
        if not tenant.unseen:
            return
        if len(self._order) > _FEW + 4 * len(self._tenants):
            live = [one for one in self._tenants.values() if one.unseen and one is not tenant]
            self._order = [(one.start, self._pushes + n, one) for n, one in enumerate(live, 1)]
            heapify(self._order)
            self._pushes += len(live)
        self._pushes += 1
        heappush(self._order, (tenant.start, self._pushes, tenant))

    def _count_kind(self, tenant: _Tenant, *, before: bool, now: bool) -> None:
        if before and now and tenant.counted_kind == tenant.kind:
            return
        if before:
            self._kinds[tenant.counted_kind] -= 1
            if not self._kinds[tenant.counted_kind]:
                del self._kinds[tenant.counted_kind]
        if now:
            self._kinds[tenant.kind] += 1
            tenant.counted_kind = tenant.kind
