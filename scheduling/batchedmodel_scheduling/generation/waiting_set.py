"""The requests that wait, in every order that is asked for: turns, deadlines, lateness, age."""

from collections.abc import Callable
from typing import Final

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_scheduling.batching.items import NEVER
from batchedmodel_scheduling.generation.fair_turns import FairTurns
from batchedmodel_scheduling.generation.groups import StartedGroups
from batchedmodel_scheduling.generation.ordered import Ordered
from batchedmodel_scheduling.generation.requests import Place, Shed, Waiting
from batchedmodel_scheduling.generation.rests import Rests
from batchedmodel_scheduling.generation.whole_answers import BeginBy
from batchedmodel_scheduling.tenants import SharedRoom


class WaitingSet:
    """Who waits, who is late, who is parked, and who was given up."""

    def __init__(
        self,
        size: int,
        late_from: Callable[[Waiting], float],
        begin_by: Callable[[Waiting], BeginBy],
    ) -> None:
        """`late_from` says from when on a request misses its target if it has not gone, `begin_by`
        until when its answer would be whole in its time. What they say changes with time."""
        self.turns: Final = FairTurns()
        self.rests: Final = Rests()
        self.groups: Final = StartedGroups()
        self.work = 0.0
        """Expected of all that wait."""
        self.refuses_late = False
        """Whether late requests are shed; otherwise they are served when there is room."""
        self._late_from: Final = late_from
        self._room: Final = SharedRoom(size)
        self._waiting: Final[dict[int, Waiting]] = {}
        self._deadlines: Final = Ordered[int, Waiting]()
        self._late_at: Final = Ordered[int, Waiting]()
        """Those on time, by when they are late."""
        self._begin_by: Final = begin_by
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
        self._late_at.put(request.id, (self._late_from(waiting),), waiting)
        if request.whole:
            self._short_at.put(request.id, (self._begin_by(waiting).surely,), waiting)
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
            elif waiting.place is Place.READY and self._late_from(waiting) <= now:
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
            self._late_at.put(waiting.request.id, (self._late_from(waiting),), waiting)
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
        by = self._begin_by(waiting)
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
            waiting.place = Place.READY if self._late_from(waiting) > now else Place.LATE
            self.turns.add(waiting)
