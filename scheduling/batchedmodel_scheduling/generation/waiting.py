"""The requests that wait: whose turn it is, and what time changes of them.

The shared `FairQueue` has those that may go, by device time. What they may be beside on time are
states: late, first, in a group that has started, resting; `Waiting.rank` has their order. One of 16
turns of a tenant is that of its late ones. A request whose tenant's key rests, as the server
refused it a moment ago, is in no queue meanwhile.

An agent announces groups of calls; one is done when its last call is done. So once a call of a
group has left, its others come before calls of the same priority.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_scheduling.generation.estimates import Estimates
from batchedmodel_scheduling.generation.requests import GenerationRequest, Shed, Waiting
from batchedmodel_scheduling.queue.fair_queue import FairQueue
from batchedmodel_scheduling.queue.items import NEVER, Priority
from batchedmodel_scheduling.queue.set_aside import RestingItems
from batchedmodel_scheduling.queue.shared_room import SharedRoom

_LATE_TURNS: Final = 16
"""Of so many turns of a tenant one is that of its late requests."""
_FEW: Final = 64
"""Outdated reviews that are not worth to be tidied up."""


@dataclass(slots=True)
class _Tenant:
    """What a tenant has in the queue."""

    items: int = 0
    work: list[float] = field(default_factory=lambda: [0.0] * (len(Priority) + 1))
    """Of requests on time, by priority."""
    late: dict[int, Waiting] = field(default_factory=dict)
    """The first one is late for longest."""
    turns: int = 0
    """Since a late one had its own, or since there are any."""


@dataclass(slots=True)
class _Group:
    waiting: dict[int, Waiting] = field(default_factory=dict)
    running: int = 0


class WaitingSet:
    """All that wait, and those that were given up."""

    def __init__(self, size: int, estimates: Estimates, here: SharedRoom) -> None:
        """What the estimates say changes with time. `here` counts those that wait as well."""
        self.queue: Final[FairQueue[int]] = FairQueue()
        """Those that may go."""
        self.work = 0.0
        """Expected of all that wait."""
        self.refuses_late = False
        """Whether late requests are shed; otherwise they are served when there is room."""
        self._estimates: Final = estimates
        self._here: Final = here
        self._room: Final = SharedRoom(size)
        self._waiting: Final[dict[int, Waiting]] = {}
        self._tenants: Final[dict[str, _Tenant]] = {}
        self._groups: Final[dict[tuple[str, Hashable], _Group]] = {}
        self._resting: Final = RestingItems[GenerationRequest]()
        self._shed: list[Shed] = []
        self._reviews: list[tuple[float, int]] = []
        """When to look at a request; one that is not its newest is passed over."""

    def __len__(self) -> int:
        return len(self._waiting)

    def refusal(self, share: Share) -> Rejection | None:
        """Why there is no place for one more of this tenant, even in place of a late one."""
        reason = self._room.refusal(share, 1)
        return None if reason is None or self._last_late(share.tenant) is not None else reason

    def oldest_age(self, now: float) -> float:
        """Seconds since the oldest came."""
        arrived = min([one.request.arrived for one in self._waiting.values()], default=now)
        return max(0.0, now - arrived)

    def ahead(self, share: Share, priority: Priority) -> float:
        """Work that goes before a request which comes now, about."""
        tenant = self._tenants.get(share.tenant)
        own = 0.0 if tenant is None else sum(tenant.work[: priority + 1])
        return min(self.work, own * self._room.size / self._room.part(share))

    def next_event(self) -> float:
        """When time alone changes something."""
        while self._reviews and self._outdated(self._reviews[0]):
            heappop(self._reviews)
        at = self._resting.changes_at()
        return min(at, self._reviews[0][0]) if self._reviews else at

    def enter(self, waiting: Waiting) -> None:
        """A request waits. Where there is no room, a late one of its tenant is given up for it."""
        request = waiting.request
        if not waiting.first and self._room.refusal(request.share, 1) is not None:
            evicted = self._last_late(request.share.tenant)
            if evicted is not None:
                self._give_up(evicted, Outcome.EVICTED)
        self._waiting[request.id] = waiting
        self.work += waiting.work
        self._room.take(request.share, 1)
        self._here.take(request.share, 1)
        self._join_group(waiting)
        if not self._resting.takes(request):
            self._push(waiting)
        self._review_later(waiting)

    def withdraw(self, request_id: int) -> None:
        """Forget a request; unknown ones are ignored."""
        waiting = self._waiting.get(request_id)
        if waiting is not None:
            self._withdraw(waiting)
        elif self._shed:
            self._shed = [shed for shed in self._shed if shed.request_id != request_id]

    def heads(self, most: int, now: float) -> list[Waiting]:
        """The first request of each of so many tenants, in the order of their turns."""
        while True:
            keys = self.queue.heads(most)
            heads = [self._waiting[key] for key in keys]
            changed = [one for one in heads if self._resting.takes(one.request)]
            for one in changed:
                self._pull(one)
            changed += [one for one in heads if self._reviewed(one, now)]
            if not changed:
                return heads

    def release(self, waiting: Waiting) -> None:
        """A request has had its turn. The others of its group now come earlier."""
        request = waiting.request
        tenant = self._tenants[request.share.tenant]
        tenant.turns += 1
        self.queue.leave(request.id)
        self._leave(waiting)
        if tenant.late and tenant.turns >= _LATE_TURNS:
            tenant.turns = 0
            oldest = next(iter(tenant.late.values()))
            oldest.late, oldest.first = False, True
            self._move(oldest)
        if request.group is not None:
            group = self._groups[request.share.tenant, request.group.id]
            del group.waiting[request.id]
            group.running += 1
            for other in group.waiting.values():
                if not other.group_started:
                    other.group_started = True
                    self.queue.move(other.request.id, other.rank())

    def ended(self, waiting: Waiting, work: float) -> None:
        """A released request ended, or came back, and has cost so much."""
        request = waiting.request
        self.queue.charge(request.share.tenant, work - waiting.work)
        if request.group is not None:
            group = self._groups.get((request.share.tenant, request.group.id))
            if group is not None:
                group.running -= 1
                self._forget_group(waiting, group)

    def pass_time(self, now: float) -> None:
        """End rests, give up those for which it is too late, part the late from those on time."""
        for request in self._resting.woken(now):
            self._push(self._waiting[request.id])
        while self._reviews and self._reviews[0][0] <= now:
            review = heappop(self._reviews)
            if not self._outdated(review):
                waiting = self._waiting[review[1]]
                self._reviewed(waiting, now)
                if review[1] in self._waiting:
                    self._review_later(waiting)

    def rest(self, waiting: Waiting, until: float) -> None:
        """A released request waits again, first of its tenant, whose key rests."""
        self._resting.rest(waiting.request.key, waiting.request.share.tenant, until)
        waiting.first, waiting.late = True, False
        self.enter(waiting)

    def configure(self, size: int, target: float | None, *, refuses_late: bool) -> None:
        """Other settings: whether a request is late is looked at anew."""
        self._room.size, self._room.spare = size, size // 8
        self.refuses_late = refuses_late
        for waiting in self._waiting.values():
            waiting.aim(target)
            waiting.late = False
            self._move(waiting)
            self._review_later(waiting)

    def take_shed(self) -> tuple[Shed, ...]:
        """Those given up since it was asked last."""
        shed, self._shed = tuple(self._shed), []
        return shed

    # States

    def _reviewed(self, waiting: Waiting, now: float) -> bool:
        """Whether time has changed something of a request."""
        by = self._estimates.begin_by(waiting)
        is_late = self._late_from(waiting) <= now
        if waiting.request.deadline <= now:
            self._give_up(waiting, Outcome.EXPIRED)
        elif by.likely <= now or (is_late and self.refuses_late):
            self._give_up(waiting, Outcome.SHED)
        elif is_late or (by.surely <= now and not waiting.late and not waiting.first):
            waiting.late = True
            self._move(waiting)
        else:
            return False
        return True

    def _outdated(self, review: tuple[float, int]) -> bool:
        waiting = self._waiting.get(review[1])
        return waiting is None or waiting.review_at != review[0]

    def _review_later(self, waiting: Waiting) -> None:
        request, by = waiting.request, self._estimates.begin_by(waiting)
        at = min(request.deadline, by.likely, self._late_from(waiting))
        if not waiting.late and not waiting.first:
            at = min(at, by.surely)
        waiting.review_at = at
        heappush(self._reviews, (at, request.id))
        if len(self._reviews) > _FEW + 2 * len(self._waiting):
            self._reviews = [(one.review_at, one.request.id) for one in self._waiting.values()]
            heapify(self._reviews)

    def _late_from(self, waiting: Waiting) -> float:
        """From when it counts as late that does not yet."""
        if waiting.late or (waiting.first and not self.refuses_late):
            return NEVER
        return self._estimates.late_from(waiting)

    def _give_up(self, waiting: Waiting, outcome: Outcome) -> None:
        self._withdraw(waiting)
        self._shed.append(Shed(waiting.request.id, outcome))

    def _withdraw(self, waiting: Waiting) -> None:
        self._leave(waiting)
        self._leave_group(waiting)

    def _leave(self, waiting: Waiting) -> None:
        """Out of everything that knows waiting requests, but for their groups."""
        request = waiting.request
        del self._waiting[request.id]
        self.work = max(0.0, self.work - waiting.work) if self._waiting else 0.0
        self._room.give_back(request.share.tenant, 1)
        self._here.give_back(request.share.tenant, 1)
        if self._resting.discard(request.id) is None:
            self._pull(waiting)

    # The queue

    def _push(self, waiting: Waiting) -> None:
        request = waiting.request
        self.queue.push(request.share, request.id, work=waiting.work, rank=waiting.rank())
        tenant = self._tenants.setdefault(request.share.tenant, _Tenant())
        tenant.items += 1
        self._count(tenant, waiting)

    def _pull(self, waiting: Waiting) -> None:
        name = waiting.request.share.tenant
        self.queue.cancel(waiting.request.id)
        tenant = self._tenants[name]
        tenant.items -= 1
        self._uncount(tenant, waiting)
        if not tenant.items:
            del self._tenants[name]

    def _move(self, waiting: Waiting) -> None:
        """Its state has changed."""
        request = waiting.request
        if request.id in self.queue:
            tenant = self._tenants[request.share.tenant]
            self._uncount(tenant, waiting)
            self._count(tenant, waiting)
            self.queue.move(request.id, waiting.rank())

    def _count(self, tenant: _Tenant, waiting: Waiting) -> None:
        if waiting.late:
            tenant.late[waiting.request.id] = waiting
        else:
            tenant.work[waiting.request.priority] += waiting.work

    def _uncount(self, tenant: _Tenant, waiting: Waiting) -> None:
        if tenant.late.pop(waiting.request.id, None) is None:
            left = tenant.work[waiting.request.priority] - waiting.work
            tenant.work[waiting.request.priority] = max(0.0, left)

    def _last_late(self, name: str) -> Waiting | None:
        """The late request of a tenant that is given up first."""
        key = self.queue.last(name)
        waiting = None if key is None else self._waiting[key]
        return waiting if waiting is not None and waiting.late else None

    # Groups

    def _join_group(self, waiting: Waiting) -> None:
        request = waiting.request
        if request.group is not None:
            key = (request.share.tenant, request.group.id)
            group = self._groups.setdefault(key, _Group())
            group.waiting[request.id] = waiting
            waiting.group_started = group.running > 0

    def _leave_group(self, waiting: Waiting) -> None:
        request = waiting.request
        if request.group is not None:
            group = self._groups[request.share.tenant, request.group.id]
            del group.waiting[request.id]
            self._forget_group(waiting, group)

    def _forget_group(self, waiting: Waiting, group: _Group) -> None:
        request = waiting.request
        if request.group is not None and not group.waiting and group.running <= 0:
            del self._groups[request.share.tenant, request.group.id]
