"""The requests that wait, in every order that is asked for: turns, deadlines, lateness, age.

Tenants take turns by device time and weight. Start-time fair queueing: each tenant has a virtual
time, the work it was given divided by its weight, and whoever is furthest behind is next. Who comes
after idling starts at the present virtual time. Late requests go when nobody on time waits, but one
of 16 turns is theirs.

An agent announces groups of calls; one is done when its last call is done. So once a call of a
group has left, its others come before calls of the same priority.
"""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_scheduling.batching.items import NEVER, Priority
from batchedmodel_scheduling.generation.estimates import Estimates
from batchedmodel_scheduling.generation.requests import GenerationRequest, Place, Shed, Waiting
from batchedmodel_scheduling.queue.shared_room import SharedRoom

_LATE_TURNS: Final = 16
_MOST_RESTING: Final = 64
"""Keys."""
_FEW: Final = 64
N = TypeVar("N", bound=Hashable)
V = TypeVar("V")
Key = tuple[float, ...]


class Ordered(Generic[N, V]):
    """Named values in order of keys that may change, lowest first; of equal ones the first put.

    All is O(log n), but for tidying up.
    """

    __slots__ = ("_heap", "_live", "_puts")

    def __init__(self) -> None:
        self._heap: list[tuple[Key, int, N, V]] = []
        """What left or moved stays until it comes first, or until there is too much of it."""
        self._live: dict[N, int] = {}
        """The number of the put that counts, by name."""
        self._puts = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, name: object) -> bool:
        return name in self._live

    def put(self, name: N, key: Key, value: V) -> None:
        """Let a value be here with this key, whether or not it was here before."""
        self._puts += 1
        self._live[name] = self._puts
        if len(self._heap) > _FEW + 2 * len(self._live):
            self._tidy()
        heappush(self._heap, (key, self._puts, name, value))

    def discard(self, name: N) -> None:
        """Forget a value if it is here."""
        if self._live.pop(name, None) is None:
            return
        if not self._live:
            self._heap.clear()
        elif len(self._heap) > _FEW + 2 * len(self._live):
            self._tidy()

    def first(self) -> V | None:
        """The value with the lowest key."""
        self._pass_over()
        return self._heap[0][3] if self._heap else None

    def first_key(self) -> Key | None:
        """The lowest key."""
        self._pass_over()
        return self._heap[0][0] if self._heap else None

    def _pass_over(self) -> None:
        heap, live = self._heap, self._live
        while heap and live.get(heap[0][2]) != heap[0][1]:
            heappop(heap)

    def _tidy(self) -> None:
        live = self._live
        self._heap = [entry for entry in self._heap if live.get(entry[2]) == entry[1]]
        heapify(self._heap)


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


class _Group:
    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, Waiting] = {}
        self.running = 0


class StartedGroups:
    """The groups that have members here; a group is one tenant's."""

    def __init__(self) -> None:
        self._groups: Final[dict[tuple[str, Hashable], _Group]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def arrived(self, waiting: Waiting) -> None:
        """A request begins to wait."""
        if waiting.request.group is None:
            return
        key = _key_of(waiting.request)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
        group.waiting[waiting.request.id] = waiting
        waiting.group_started = group.running > 0

    def released(self, waiting: Waiting) -> list[Waiting]:
        """A request goes to the server; returns those that now come earlier."""
        if waiting.request.group is None:
            return []
        group = self._groups[_key_of(waiting.request)]
        del group.waiting[waiting.request.id]
        group.running += 1
        moved = [other for other in group.waiting.values() if not other.group_started]
        for other in moved:
            other.group_started = True
        return moved

    def withdrawn(self, request: GenerationRequest) -> None:
        """A request waits no more, and was not released."""
        if request.group is not None and (group := self._groups.get(_key_of(request))) is not None:
            group.waiting.pop(request.id, None)
            self._forget(request, group)

    def ended(self, request: GenerationRequest) -> None:
        """A released request ended."""
        if request.group is not None and (group := self._groups.get(_key_of(request))) is not None:
            group.running -= 1
            self._forget(request, group)

    def _forget(self, request: GenerationRequest, group: _Group) -> None:
        if not group.waiting and group.running <= 0:
            del self._groups[_key_of(request)]


def _key_of(request: GenerationRequest) -> tuple[str, Hashable]:
    assert request.group is not None
    return request.share.tenant, request.group.id


class Rests:
    """Keys that the server refused a moment ago, and the requests that wait for them meanwhile.

    At most 64 keys rest; of more, the one whose rest ends first may go at once.
    """

    def __init__(self) -> None:
        self._until: Final[dict[Hashable, float]] = {}
        self._parked: Final[dict[Hashable, dict[int, Waiting]]] = {}
        self.next_end = NEVER
        """When the next rest ends."""

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, key: object) -> bool:
        return key in self._until

    def rest(self, key: Hashable, until: float) -> list[Waiting]:
        """Let a key rest at least so long; returns those that another no longer keeps."""
        freed: list[Waiting] = []
        if key not in self._until and len(self._until) >= _MOST_RESTING:
            freed = self._end(min(self._until, key=self._until.__getitem__))
        self._until[key] = max(until, self._until.get(key, until))
        self.next_end = min(self._until.values())
        return freed

    def ended(self, now: float) -> list[Waiting]:
        """Those whose keys rest no more; they wait here no more."""
        freed: list[Waiting] = []
        if self.next_end <= now:
            for key in [key for key, until in self._until.items() if until <= now]:
                freed += self._end(key)
            self.next_end = min(self._until.values(), default=NEVER)
        return freed

    def park(self, waiting: Waiting) -> None:
        """A request waits until its key, which rests, may be asked again."""
        self._parked.setdefault(waiting.request.key, {})[waiting.request.id] = waiting

    def discard(self, waiting: Waiting) -> None:
        """Forget a parked request."""
        parked = self._parked.get(waiting.request.key)
        if parked is not None and parked.pop(waiting.request.id, None) is not None and not parked:
            del self._parked[waiting.request.key]

    def _end(self, key: Hashable) -> list[Waiting]:
        del self._until[key]
        return list(self._parked.pop(key, {}).values())


class WaitingSet:
    """Who waits, who is late, who is parked, and who was given up."""

    def __init__(self, size: int, turns: FairTurns, estimates: Estimates) -> None:
        """What the estimates say changes with time."""
        self.turns: Final = turns
        self.rests: Final = Rests()
        self.groups: Final = StartedGroups()
        self.work = 0.0
        """Expected of all that wait."""
        self.refuses_late = False
        """Whether late requests are shed; otherwise they are served when there is room."""
        self._estimates: Final = estimates
        self._room: Final = SharedRoom(size)
        self._waiting: Final[dict[int, Waiting]] = {}
        self._deadlines: Final = Ordered[int, Waiting]()
        self._late_at: Final = Ordered[int, Waiting]()
        """Those on time, by when they are late."""
        self._short_at: Final = Ordered[int, Waiting]()
        """Those that are answered in one piece, by when their time was to run short when that was
        last looked at. It is looked at anew before anything follows from it."""
        self._ages: Final = Ordered[int, Waiting]()
        self._shed: list[Shed] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def refusal(self, share: Share) -> Rejection | None:
        """Why there is no place for one more of this tenant, even in place of a late one."""
        reason = self._room.refusal(share, 1)
        return None if self.turns.last_late(share.tenant) is not None else reason

    def oldest_age(self, now: float) -> float:
        """Seconds since the oldest came."""
        first = self._ages.first_key()
        return 0.0 if first is None else max(0.0, now - first[0])

    def next_event(self) -> float:
        """When time alone changes something."""
        first = self._deadlines.first_key()
        at = min(NEVER if first is None else first[0], self.rests.next_end)
        if (short := self._short_at.first_key()) is not None:
            at = min(at, short[0])
        late = self._late_at.first_key() if self.refuses_late else None
        return at if late is None else min(at, late[0])

    def enter(self, waiting: Waiting) -> None:
        """A request waits. Where there is no room, a late one of its tenant is given up for it."""
        request = waiting.request
        if not waiting.returned and self._room.refusal(request.share, 1) is not None:
            evicted = self.turns.last_late(request.share.tenant)
            if evicted is not None:
                self._give_up(evicted, Outcome.EVICTED)
        self._waiting[request.id] = waiting
        self.work += waiting.work
        self._room.take(request.share, 1)
        self._deadlines.put(request.id, (request.deadline,), waiting)
        self._ages.put(request.id, (request.arrived,), waiting)
        self._late_at.put(request.id, (self._estimates.late_from(waiting),), waiting)
        if request.whole:
            self._short_at.put(
                request.id, (self._estimates.begin_by(waiting.request).surely,), waiting
            )
        self.groups.arrived(waiting)
        if request.key in self.rests:
            waiting.place = Place.PARKED
            self.rests.park(waiting)
        else:
            waiting.place = Place.READY
            self.turns.add(waiting)

    def withdraw(self, request_id: int) -> None:
        """Forget a request; unknown ones are ignored."""
        waiting = self._waiting.get(request_id)
        if waiting is not None:
            self._leave(waiting)
            self.groups.withdrawn(waiting.request)
        elif self._shed:
            self._shed = [shed for shed in self._shed if shed.request_id != request_id]

    def release(self, waiting: Waiting) -> None:
        """A request has had its turn. The others of its group now come earlier."""
        self.turns.release(waiting)
        self._leave(waiting)
        for other in self.groups.released(waiting):
            if other.place is not Place.PARKED:
                self.turns.add(other)

    def next(self, now: float) -> Waiting | None:
        """The request whose turn it is, if any may go."""
        while (waiting := self.turns.next()) is not None:
            if waiting.request.key in self.rests:
                self.turns.discard(waiting)
                waiting.place = Place.PARKED
                self.rests.park(waiting)
            elif waiting.place is Place.READY and self._estimates.late_from(waiting) <= now:
                self._become_late(waiting)
            elif waiting.request.whole and self._runs_short(waiting, now):
                continue
            else:
                return waiting
        return None

    def pass_time(self, now: float) -> None:
        """End rests, give up whom nobody waits for, part the late from those on time."""
        self._unpark(self.rests.ended(now), now)
        while (key := self._deadlines.first_key()) is not None and key[0] <= now:
            waiting = self._deadlines.first()
            assert waiting is not None
            self._give_up(waiting, Outcome.EXPIRED)
        while (key := self._short_at.first_key()) is not None and key[0] <= now:
            waiting = self._short_at.first()
            assert waiting is not None
            self._runs_short(waiting, now)
        while (key := self._late_at.first_key()) is not None and key[0] <= now:
            waiting = self._late_at.first()
            assert waiting is not None
            self._become_late(waiting)

    def rest(self, waiting: Waiting, until: float, now: float) -> None:
        """A released request waits again, first of its tenant, and its key rests."""
        self._unpark(self.rests.rest(waiting.request.key, until), now)
        waiting.returned = True
        self.enter(waiting)

    def configure(self, size: int, target: float | None, *, refuses_late: bool) -> None:
        """Other settings: whether a request is late is looked at anew."""
        self._room.size, self._room.spare = size, size // 8
        self.refuses_late = refuses_late
        for waiting in self._waiting.values():
            if waiting.place is not Place.PARKED:
                self.turns.discard(waiting)
            waiting.aim(target)
            self._late_at.put(waiting.request.id, (self._estimates.late_from(waiting),), waiting)
            if waiting.place is not Place.PARKED:
                waiting.place = Place.READY
                self.turns.add(waiting)

    def take_shed(self) -> tuple[Shed, ...]:
        """Those given up since it was asked last."""
        shed, self._shed = tuple(self._shed), []
        return shed

    def _leave(self, waiting: Waiting) -> None:
        """Out of everything that knows waiting requests, but for their groups."""
        request = waiting.request
        del self._waiting[request.id]
        self.work = max(0.0, self.work - waiting.work) if self._waiting else 0.0
        self._room.give_back(request.share.tenant, 1)
        self._deadlines.discard(request.id)
        self._ages.discard(request.id)
        self._late_at.discard(request.id)
        self._short_at.discard(request.id)
        if waiting.place is Place.PARKED:
            self.rests.discard(waiting)
        else:
            self.turns.discard(waiting)

    def _give_up(self, waiting: Waiting, outcome: Outcome) -> None:
        self._leave(waiting)
        self.groups.withdrawn(waiting.request)
        self._shed.append(Shed(waiting.request.id, outcome))

    def _runs_short(self, waiting: Waiting, now: float) -> bool:
        """Whether the time of one that must be whole has run short, so that others go first, or
        has run out, so that it is given up."""
        by = self._estimates.begin_by(waiting.request)
        if by.likely <= now:
            self._give_up(waiting, Outcome.SHED)
            return True
        is_late = by.surely <= now
        self._short_at.put(waiting.request.id, (by.likely if is_late else by.surely,), waiting)
        if not is_late or waiting.place is not Place.READY:
            return False
        self._serve_late(waiting)
        return True

    def _become_late(self, waiting: Waiting) -> None:
        self._late_at.discard(waiting.request.id)
        if self.refuses_late:
            self._give_up(waiting, Outcome.SHED)
        elif waiting.place is Place.READY:
            self._serve_late(waiting)

    def _serve_late(self, waiting: Waiting) -> None:
        self.turns.discard(waiting)
        waiting.place = Place.LATE
        self.turns.add(waiting)

    def _unpark(self, freed: list[Waiting], now: float) -> None:
        for waiting in freed:
            waiting.place = Place.READY if self._estimates.late_from(waiting) > now else Place.LATE
            self.turns.add(waiting)
