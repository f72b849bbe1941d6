"""Fair turns between tenants, by device time and weight.

Start-time fair queueing: each tenant has a virtual time, the work it was given divided by its
weight, and whoever is furthest behind is next. Who comes after idling starts at the present virtual
time. Late requests go when nobody on time waits, but one of 16 turns is theirs.
"""

from typing import Final

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.batching.items import Priority
from batchedmodel_scheduling.generation.ordered import Ordered
from batchedmodel_scheduling.generation.requests import Place, Waiting

_LATE_TURNS: Final = 16
_FEW: Final = 64


class _Tenant:
    __slots__ = (
        "ages",
        "last",
        "late",
        "late_turn",
        "name",
        "present",
        "ready",
        "running",
        "start",
        "waits",
        "weight",
        "work",
    )

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.weight = 1.0
        self.start = 0.0
        """The virtual time at which its next request starts."""
        self.running = 0
        self.waits = self.present = 0.0
        """Its weight as it was counted."""
        self.late_turn = 0
        """When a late one of it was last given a turn, in the order of turns."""
        self.ready: Final = Ordered[int, Waiting]()
        self.late: Final = Ordered[int, Waiting]()
        self.ages: Final = Ordered[int, Waiting]()
        """The late ones by arrival."""
        self.last: Final = Ordered[int, Waiting]()
        """The late ones, the newest of the lowest priority first."""
        self.work: Final = [0.0] * (len(Priority) + 1)
        """Of the ready ones, by priority."""

    def work_until(self, priority: Priority) -> float:
        return sum(self.work[: priority + 1])


class FairTurns:
    """Requests that wait, of any number of tenants, and whose turn it is."""

    def __init__(self) -> None:
        self.virtual = 0.0
        """Where the furthest behind was when it was last given its turn; it never falls."""
        self._fair = 0.0
        """What each tenant here would have had if all were served at once, by weight. Who comes
        now starts no earlier, or a stream of newcomers would keep all others back."""
        self._weights = self._present = 0.0
        """Of tenants that wait, and of those that wait or run."""
        self._waiters = self._here = 0
        """How many these are: where there is none, no rest of a sum of fractions is a weight."""
        self._ready_work = 0.0
        self._tenants: Final[dict[str, _Tenant]] = {}
        self._ready: Final = Ordered[str, _Tenant]()
        self._late: Final = Ordered[str, _Tenant]()
        self._late_turns: Final = Ordered[str, _Tenant]()
        self._held: dict[str, None] = {}
        self._since_late = 0
        self._turns = 0
        self._forgets_at = _FEW

    def places(self, share: Share, limit: int) -> float:
        """How many of so many places would be a tenant's if all that are here used theirs."""
        tenant = self._tenants.get(share.tenant)
        present = self._present + (share.weight if tenant is None or not tenant.present else 0.0)
        return limit * share.weight / present

    def running(self, share: Share) -> int:
        """Places of a tenant's released requests that have not ended."""
        tenant = self._tenants.get(share.tenant)
        return 0 if tenant is None else tenant.running

    @property
    def shared(self) -> bool:
        """Whether several tenants wait or run."""
        return self._here > 1

    def __bool__(self) -> bool:
        return bool(len(self._ready) or len(self._late))

    def ahead(self, share: Share, priority: Priority) -> float:
        """Work that goes before a request which comes now, about."""
        tenant = self._tenants.get(share.tenant)
        own = 0.0 if tenant is None else tenant.work_until(priority)
        weights = self._weights + (0.0 if self._waits(tenant) else share.weight)
        ahead = min(self._ready_work, own * weights / share.weight)
        return ahead * _LATE_TURNS / (_LATE_TURNS - 1) if len(self._late) else ahead

    def add(self, waiting: Waiting) -> None:
        """Let a request wait, on time or late, or give one that waits another place."""
        request = waiting.request
        tenant = self._tenants.get(request.share.tenant)
        if tenant is None:
            tenant = self._new_tenant(request.share.tenant)
        tenant.weight = request.share.weight
        if not self._waits(tenant) or (waiting.place is Place.READY and not len(tenant.ready)):
            tenant.start = max(tenant.start, self.virtual, self._fair)
        if waiting.place is Place.READY:
            if request.id not in tenant.ready:
                tenant.work[request.priority] += waiting.work
                self._ready_work += waiting.work
            tenant.ready.put(request.id, waiting.rank(), waiting)
        else:
            tenant.late.put(request.id, waiting.rank(), waiting)
            tenant.ages.put(request.id, (request.arrived,), waiting)
            tenant.last.put(request.id, (-request.priority, -request.arrived), waiting)
        self._changed(tenant)

    def discard(self, waiting: Waiting) -> None:
        """Forget a request that waits here. Its tenant does not pay for it."""
        request = waiting.request
        tenant = self._tenants.get(request.share.tenant)
        if tenant is None:
            return
        if request.id in tenant.ready:
            tenant.ready.discard(request.id)
            alone = not len(tenant.ready)
            left = 0.0 if alone else tenant.work[request.priority] - waiting.work
            tenant.work[request.priority] = max(0.0, left)
            self._ready_work = max(0.0, self._ready_work - waiting.work)
        elif request.id in tenant.late:
            tenant.late.discard(request.id)
            tenant.ages.discard(request.id)
            tenant.last.discard(request.id)
        self._changed(tenant)
        if not self:
            self._ready_work = 0.0

    def next(self) -> Waiting | None:
        """The request whose turn it is."""
        if not len(self._ready):
            spare = self._late.first()
            return None if spare is None else spare.late.first()
        if self._since_late >= _LATE_TURNS - 1 and (kept := self._late_turns.first()) is not None:
            return kept.ages.first()
        tenant = self._ready.first()
        return None if tenant is None else tenant.ready.first()

    def hold(self, name: str) -> bool:
        """Pass over a tenant until all are let go; False if it was held already."""
        if name in self._held:
            return False
        self._held[name] = None
        self._ready.discard(name)
        self._late.discard(name)
        self._late_turns.discard(name)
        return True

    def let_go(self) -> None:
        """Those that were held have turns again."""
        held, self._held = self._held, {}
        for name in held:
            self._changed(self._tenants[name])

    def release(self, waiting: Waiting) -> None:
        """The request has its turn; its tenant pays for it."""
        tenant = self._tenants[waiting.request.share.tenant]
        self._turns += 1
        if waiting.place is Place.LATE:
            self._since_late = 0
            tenant.late_turn = self._turns
        else:
            self._since_late += 1
            self.virtual = max(self.virtual, tenant.start)
        self._fair += waiting.work / self._weights
        tenant.start += waiting.work / tenant.weight
        tenant.running += waiting.places
        self.discard(waiting)

    def settle(self, waiting: Waiting, work: float) -> None:
        """A released request ended, or came back, and has cost so much."""
        tenant = self._tenants.get(waiting.request.share.tenant)
        if tenant is not None:
            tenant.running -= waiting.places
            self._charge(tenant, work - waiting.work)

    def found(self, waiting: Waiting, work: float) -> None:
        """A released request costs so much less than was expected of it."""
        tenant = self._tenants.get(waiting.request.share.tenant)
        if tenant is not None:
            self._charge(tenant, -work)

    def last_late(self, name: str) -> Waiting | None:
        """The late request of a tenant that is given up first."""
        tenant = self._tenants.get(name)
        return None if tenant is None else tenant.last.first()

    def _charge(self, tenant: _Tenant, more: float) -> None:
        tenant.start += more / tenant.weight
        if self._weights > 0:
            self._fair += more / self._weights
        self._changed(tenant)

    def _waits(self, tenant: _Tenant | None) -> bool:
        return tenant is not None and bool(len(tenant.ready) or len(tenant.late))

    def _new_tenant(self, name: str) -> _Tenant:
        if len(self._tenants) >= self._forgets_at:
            now = max(self.virtual, self._fair)
            for tenant in list(self._tenants.values()):
                if not self._waits(tenant) and not tenant.running and tenant.start <= now:
                    del self._tenants[tenant.name]
            self._forgets_at = _FEW + 2 * len(self._tenants)
        tenant = self._tenants[name] = _Tenant(name)
        return tenant

    def _changed(self, tenant: _Tenant) -> None:
        """Its start, or what it has here, is another."""
        waits = tenant.weight if self._waits(tenant) else 0.0
        present = tenant.weight if waits or tenant.running else 0.0
        self._waiters += (waits > 0) - (tenant.waits > 0)
        self._here += (present > 0) - (tenant.present > 0)
        self._weights = self._weights + waits - tenant.waits if self._waiters else 0.0
        self._present = self._present + present - tenant.present if self._here else 0.0
        tenant.waits, tenant.present = waits, present
        if tenant.name in self._held:
            return
        for order, lane, key in (
            (self._ready, tenant.ready, tenant.start),
            (self._late, tenant.late, tenant.start),
            (self._late_turns, tenant.late, float(tenant.late_turn)),
        ):
            if len(lane):
                order.put(tenant.name, (key,), tenant)
            else:
                order.discard(tenant.name)
