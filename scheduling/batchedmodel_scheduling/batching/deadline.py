"""`Deadline`: as many in time as can be, and the lone one not a moment later than it must.

At each decision it gives up what cannot be in time any more and plans for the rest (`next_batch`).
It holds the first batch back only if company is about to come (`Gaps`, `RequestGroups`);
otherwise the batch leaves. What the device costs is learnt by the pipeline. An item that was given
up but is still wanted waits for time that is left over (`ready_queue`).

An item that is due at its deadline is refused or shed as soon as it would miss it. Others are late.
"""

import bisect
import math
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from batchedmodel_contract.manifest.batching import BatchSettings, Lateness
from batchedmodel_contract.outcomes import HoldReason, Outcome, Rejection, ReleaseReason
from batchedmodel_scheduling.batching.decisions import Decision, Event, Slots
from batchedmodel_scheduling.batching.next_batch import (
    Plan,
    Situation,
    by_adapter,
    plan,
    quick,
    together,
    within,
)
from batchedmodel_scheduling.batching.policy import BasePolicy, Pipeline, leaves_early
from batchedmodel_scheduling.queue.item_queue import ItemQueue
from batchedmodel_scheduling.queue.items import NEVER, Item, ItemId, Refusal, RequestGroup, Shed
from batchedmodel_scheduling.queue.ready_queue import (
    QueuedItem,
    ReadyQueue,
    StarvationGuard,
    entry_of,
)

_REMEMBERED: Final = 256
_ENOUGH: Final = 16
_KEYS_REMEMBERED: Final = 256
_RENEWED_AFTER: Final = 8  # gaps
_HORIZONS: Final = (0.00025, 0.0005, 0.001, 0.002, 0.004)  # seconds
_LEAST_THETA: Final = 0.5
_RATE_SECONDS: Final = 0.2
_TARGET_WEIGHT: Final = 1 / 64  # of the newest item: a few batches of items are remembered
_SHORTEST_TARGET_SECONDS: Final = 0.001  # as settings allow
PATIENCE_SECONDS: Final = 0.005
"""How long a batch is held from one member of a group to the next."""
CREDIT_SECONDS: Final = 1.0
"""How long no other group of its key is waited for while one stays incomplete."""
_GROUPS_REMEMBERED: Final = (
    4096  # groups, and keys; callers choose both, so they must not fill the memory
)
_PRIORITY_STEP: Final = 1.0
"""Seconds between two priorities, or the target if that is shorter."""
_PROFILE_BELIEVED: Final = 10.0  # seconds of refusals
_LEFT_OF_TARGET: Final = 0.75
"""For what waits: a batch takes half of the target, so the one in work has a quarter to go."""
# Looked up once: Python 3.11 takes as long for a member of an enum as for a call.
_EXPIRED: Final = Outcome.EXPIRED
_SHED: Final = Outcome.SHED


class Gaps:
    """The gaps between arrivals that could share a batch."""

    def __init__(self) -> None:
        self._gaps: deque[float] = deque(maxlen=_REMEMBERED)
        self._last: float | None = None
        self._sorted: list[float] = []
        self._sums: list[float] = [0.0]
        self._new = 0

    def observe(self, now: float) -> None:
        """Something arrived."""
        if self._last is not None:
            self._gaps.append(now - self._last)
            self._new += 1
        self._last = now

    def worth_waiting(
        self, now: float, items: int, *, saved: float, load: float, until: float
    ) -> float | None:
        """Until when to hold `items` for one more, at most `until`; None when it does not pay.

        `saved`: seconds that one more member of this batch costs less than a batch of its own.
        `load`: what arrives, as a part of what the device can do.
        """
        if self._last is None or len(self._gaps) < _ENOUGH or until <= now:
            return None
        if self._new >= _RENEWED_AFTER or not self._sorted:
            self._new = 0
            self._sorted = sorted(self._gaps)
            self._sums = [0.0, *accumulate(self._sorted)]
        gaps, sums = self._sorted, self._sums
        since = now - self._last
        begin = bisect.bisect_right(gaps, since)
        longer = len(gaps) - begin
        if longer == 0:
            return None
        gain = saved * max(_LEAST_THETA, min(1.0, load))
        for horizon in _HORIZONS:
            wait = min(horizon, until - now)
            end = bisect.bisect_right(gaps, since + wait)
            come = end - begin
            delay = (sums[end] - sums[begin] - come * since) + (longer - come) * wait
            if come * gain > items * delay:
                return now + wait
            if wait < horizon:
                break
        return None


class GapsByKey:
    """The gaps of each compatibility key. Of many keys it forgets those met longest ago."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, Gaps] = {}

    def of(self, key: Hashable) -> Gaps:
        """Those of one key."""
        gaps = self._by_key.pop(key, None)
        if gaps is None:
            if len(self._by_key) >= _KEYS_REMEMBERED:
                del self._by_key[next(iter(self._by_key))]
            gaps = Gaps()
        self._by_key[key] = gaps
        return gaps


class ArrivalRate:
    """Arrivals per second over the last moments, by an exponential average."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._at = 0.0

    def observe(self, now: float) -> None:
        """Something arrived."""
        self._rate = self.at(now) + 1 / _RATE_SECONDS
        self._at = now

    def at(self, now: float) -> float:
        """The rate at this time."""
        return self._rate * math.exp(-max(0.0, now - self._at) / _RATE_SECONDS)


class UsualTarget:
    """Seconds from arrival to due time of recent items: their harmonic mean, as callers may differ.

    Urgent items count most in it: a batch that is short enough for them keeps patient ones waiting
    for no longer, but one that is as long as those can wait makes urgent ones late.
    """

    def __init__(self) -> None:
        self._hurry = 0.0  # mean of 1 / seconds

    @property
    def seconds(self) -> float | None:
        """None as long as nothing has arrived."""
        return 1 / self._hurry if self._hurry else None

    def observe(self, seconds: float) -> None:
        """An item arrived that is due so many seconds later."""
        hurry = 1 / max(_SHORTEST_TARGET_SECONDS, seconds)
        self._hurry += (hurry - self._hurry) * (_TARGET_WEIGHT if self._hurry else 1.0)


class _Came(NamedTuple):
    members: int
    size: int
    """The largest that a member announced: a smaller one does not complete the group."""
    last: float
    """When the newest member arrived."""
    begun: bool = False
    """Whether some of them have left: the rest is not waited for."""


class _Credit(NamedTuple):
    group: Hashable
    until: float


class RequestGroups:
    """How many members of each group have come. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, _Came] = {}
        self._credits: dict[Hashable, _Credit] = {}
        """By key, the group that a batch was held for and that is not complete yet."""

    def observe(self, item: Item) -> None:
        """An item came, which may be a member of a group."""
        announced = item.request_group
        if announced is None:
            return
        before = self._seen.pop(announced.id, None)
        seen = 1 if before is None else before.members + 1
        size = announced.size if before is None else max(before.size, announced.size)
        if seen >= size:
            credit = self._credits.get(item.key)
            if credit is not None and credit.group == announced.id:
                del self._credits[item.key]
            return
        begun = before is not None and before.begun
        self._seen[announced.id] = _Came(seen, size, item.arrived, begun)
        if len(self._seen) > _GROUPS_REMEMBERED:
            del self._seen[next(iter(self._seen))]

    def complete(self, entries: Iterable[QueuedItem]) -> bool:
        """Whether some of these are members of groups, and all their groups are complete."""
        groups = [
            entry.item.request_group for entry in entries if entry.item.request_group is not None
        ]
        return bool(groups) and not any(self._lacks(group) for group in groups)

    def awaited(self, entries: Iterable[QueuedItem], now: float) -> float | None:
        """Until when to hold these for the rest of one of their groups; None when not to."""
        if not self._seen:
            return None
        for item in (entry.item for entry in entries):
            if item.request_group is None or not self._lacks(item.request_group):
                continue
            until = self._seen[item.request_group.id].last + PATIENCE_SECONDS
            if until > now and self._has_credit(item.key, item.request_group.id, now):
                return until
        return None

    def left(self, items: Iterable[Item]) -> None:
        """These left: the rest of their groups is not waited for any more."""
        if self._seen:
            for item in items:
                group = item.request_group
                if group is not None and group.id in self._seen:
                    self._seen[group.id] = self._seen[group.id]._replace(begun=True)

    def _lacks(self, group: RequestGroup) -> bool:
        """Whether members are still to come that are worth waiting for."""
        came = self._seen.get(group.id)
        return came is not None and not came.begun

    def _has_credit(self, key: Hashable, group: Hashable, now: float) -> bool:
        """Whether this group may be waited for, as no other one of its key is just now."""
        credit = self._credits.get(key)
        if credit is not None and credit.until > now:
            return credit.group == group
        self._credits.pop(key, None)
        if len(self._credits) >= _GROUPS_REMEMBERED:
            del self._credits[next(iter(self._credits))]
        self._credits[key] = _Credit(group, now + CREDIT_SECONDS)
        return True


class Deadline(BasePolicy):
    """Orders items by due time and priority; see the module."""

    def __init__(self, settings: BatchSettings, pipeline: Pipeline, queue: ItemQueue) -> None:
        super().__init__(settings, pipeline, queue)
        self._guard = StarvationGuard()
        self._groups = RequestGroups()
        for item in queue:
            self._groups.observe(item)
        self._rate = ArrivalRate()
        self._usual_target = UsualTarget()
        self._gaps = GapsByKey()
        self._refusing_since = NEVER  # for what the profile says alone
        self._early = False  # something has filled up since the last plan
        self._unswept = False  # a batch has left or an edit come since the last look
        self._gathered = False  # what waits has been held back for company
        self._timer = NEVER  # the last wake asked for, until something else happens
        self._held = Decision(release=None, shed=(), wake_at=NEVER, reason=HoldReason.EMPTY)

    def offer_call(self, items: Sequence[Item], now: float) -> Refusal | None:
        """Refuse what would be late and is not wanted then, and what finds no room.

        Nobody is refused for what was learnt on a server that has not run for a second, nor for its
        own profile after some seconds of refusals: one batch must go through then, or a wrong
        estimate would never be corrected. In a full queue a late item makes room
        for one in time, of the same tenant, once it is certain that this one is taken.
        """
        self._timer = NEVER
        # Refused ones as well, so that nobody waits for them.
        for item in items:
            self._groups.observe(item)
        first, room = items[0], self.queue.room
        reason = room.refusal(first.share, len(items))
        if reason is None:
            return super().offer_call(items, now)
        alone = self._seconds_alone(max([item.length for item in items]))
        if self.pipeline.starts_at(now) + alone > first.due:
            return Refusal(reason=reason, retry_after=self.retry_after(room.in_use))
        evictions = len(items) - room.most_now(first.share)
        refusal = super().offer_call(items, now)
        if refusal is None:
            for _ in range(evictions):
                self.queue.evict(first.share.tenant)
        return refusal

    def _late_in_turn(self, items: Sequence[Item], now: float) -> Refusal | None:
        """Refuse a call that is no use when late, if its turns come too late or it is too long."""
        first, room, queue = items[0], self.queue.room, self.queue
        tenant = first.share.tenant
        if first.due < first.deadline or not self.pipeline.times.counts_seconds:
            return None
        before = len(items) + room.in_use
        if queue.competes(tenant, len(items)):
            # Most tenants may have an item or two: it waits for no more than what is here.
            tenants = len(room) + (not room.of(tenant))
            before = min(before, tenants * (len(items) + room.of(tenant)))
        elif len(items) <= 2 * queue.next_items:
            return None
        work = sum([self.charges.work(item.length) for item in items])
        seconds = before * work / len(items) / self.pipeline.workers
        if now + seconds <= first.deadline:
            return None
        return Refusal(reason=Rejection.PREDICTED_LATE, retry_after=self.retry_after(room.in_use))

    def _admit(self, item: Item, now: float) -> Refusal | None:
        start = self.pipeline.starts_at(now)
        alone = start + self._seconds_alone(item.length)
        entry = self.entry(item)
        if alone > item.deadline or self._one_too_many(entry, start):
            if not (self.pipeline.unproven(now) and self._worth_a_try(item, now)):
                return self._predicted_late(item)
            self.pipeline.doubted = True
        self._add(entry)
        self._rate.observe(now)
        self._usual_target.observe(item.due - item.arrived)
        self._gaps.of(item.key).observe(now)
        return None

    def come_back(self, item: Item) -> None:
        """An item that left waits again."""
        super().come_back(item)
        self._early = True

    def _add(self, entry: QueuedItem) -> None:
        lane = self.queue.push(entry)
        if lane is None:
            self._early = True
            return
        full = self.limits.rows_of(lane.longest)
        if len(lane.entries) == full or self.queue.on_time == self.limits.rows:
            self._early = True

    def withdraw(self, item_id: ItemId, now: float) -> None:
        """Forget a waiting item."""
        self._timer = NEVER
        super().withdraw(item_id, now)

    def observe(self, event: Event, now: float) -> None:
        """Learn what became of a released batch, or what the server holds."""
        self._timer = NEVER
        super().observe(event, now)

    def configure(self, settings: BatchSettings, now: float) -> None:
        """Use other settings from now on."""
        super().configure(settings, now)
        self._early = self._unswept = True

    def poll(self, now: float, slots: Slots) -> Decision:
        """Release the first batch of the plan, or say until when it is held."""
        if now >= self._timer:
            # Nothing has happened since: this is the timer, and that late.
            self.pipeline.woken(now - self._timer)
        return super().poll(now, slots)

    def _choose(
        self, ready: ReadyQueue, now: float, opens: float, slots: Slots, shed: list[Shed]
    ) -> Decision:
        if not len(self.queue):
            return self._hold(NEVER, HoldReason.EMPTY, shed)
        if opens > now and not (self._early and leaves_early(slots, opens)):
            if self._unswept:
                # Those that the batch which has just left makes late are told now.
                shed += self._hopeless(ready, self.pipeline.starts_at(now), now)
                if not len(self.queue):
                    return self._hold(NEVER, HoldReason.EMPTY, shed)
            return self._hold(opens, HoldReason.BUSY, shed)
        self._early = False
        start = self.pipeline.starts_at(now)
        before = len(ready)
        shed += self._hopeless(ready, start, now)
        while len(ready) < before and self.queue.has_turns:
            # Others have the places of those that were given up.
            others = self.queue.candidates(self._offer)
            if others is None:
                break
            ready, before = others, len(others)
            shed += self._hopeless(ready, start, now)
        late = [] if self._offer else self.queue.late_in_turn(now)
        if late or not len(ready):
            return self._serve_late(ready, late, now, opens, shed)
        # A plan may give up everything but one item; it never fails to find one.
        situation = self._situation(ready, now)
        chosen = plan(ready, situation)
        shed += self._give_up(ready, chosen.given_up, now)
        return self._act(ready, chosen, situation, now, opens, slots, shed)

    def _act(
        self,
        ready: ReadyQueue,
        chosen: Plan,
        situation: Situation,
        now: float,
        opens: float,
        slots: Slots,
        shed: list[Shed],
    ) -> Decision:
        """Release the planned batch unless there is a reason to hold it."""
        batch = chosen.batch
        full = self.limits.full([entry.length for entry in batch])
        whole = not (full or chosen.pressed) and self._groups.complete(batch)
        if opens > now and (chosen.pressed or not full):
            return self._hold(opens, HoldReason.BUSY, shed)
        overdue = self._guard.overdue()
        if overdue is not None:
            turn = ready.led_by(overdue, self.limits)
            if turn:
                return self._release(ready, quick(turn, situation), ReleaseReason.FLOOR, now, shed)
        late: list[QueuedItem] = []
        if not chosen.pressed and self.queue.late.entries:
            late = self.queue.late.company(batch, self.limits, chosen.room, now)
            late = _beside(batch, late)
            first = self._late_first(chosen, situation, now)
            if first and first[0] not in late:
                return self._release(ready, [], ReleaseReason.SPARE, now, shed, first)
        elif not full and not chosen.pressed and not whole:
            wait = self._wait(ready, chosen, now)
            if wait is not None:
                # A full batch need not wait until another one is complete.
                behind = self._full_behind(chosen)
                if not behind:
                    self._gathered = True
                    return self._hold(wait, HoldReason.GATHERING, shed)
                return self._release(ready, behind, ReleaseReason.FULL, now, shed)
        reason = self._reason(chosen, full, whole, slots)
        return self._release(ready, batch, reason, now, shed, late)

    def _reason(self, chosen: Plan, full: bool, whole: bool, slots: Slots) -> ReleaseReason:
        if chosen.pressed:
            return ReleaseReason.PRESSURE
        if full:
            return ReleaseReason.FULL
        if whole:
            return ReleaseReason.GROUP_COMPLETE
        if slots.in_flight >= self.pipeline.workers:
            return ReleaseReason.JUST_IN_TIME
        return ReleaseReason.DELAY if self._gathered else ReleaseReason.IDLE

    def _wait(self, ready: ReadyQueue, chosen: Plan, now: float) -> float | None:
        """Until when to hold the batch for company; None to let it go."""
        if not self.settings.max_wait_seconds:
            return None
        batch, table = chosen.batch, chosen.table
        items = len(batch)
        one_more = table[items + 1] if items + 1 < len(table) else table[items]
        until = now + chosen.slack - (one_more - table[items])
        if until <= now:
            return None
        wait = self._groups.awaited(batch, now)
        if wait is None:
            saved = table[items] + table[1] - one_more
            gaps = self._gaps.of(batch[0].item.key)
            wait = gaps.worth_waiting(now, items, saved=saved, load=chosen.load, until=until)
        if wait is None:
            return None
        # Another key's wait is not longer for that of this one. It is looked for last, among all.
        wait = min(wait, until, ready.oldest() + self.settings.max_wait_seconds)
        return wait if wait > now else None

    def _full_behind(self, chosen: Plan) -> list[QueuedItem]:
        """A full batch of another kind that can run before the chosen one and make nobody late."""
        for other in chosen.behind:
            lengths = [entry.length for entry in other.entries]
            if other.seconds <= chosen.slack and self.limits.full(lengths):
                return other.entries
        return []

    def _late_first(self, chosen: Plan, situation: Situation, now: float) -> list[QueuedItem]:
        """Late ones that can run before the planned batch and make nobody late."""
        late = self.queue.late.alike(now)
        if not late:
            return []
        return within(self._together(late, situation), chosen.slack, situation)

    def _serve_late(
        self,
        ready: ReadyQueue,
        late: list[QueuedItem],
        now: float,
        opens: float,
        shed: list[Shed],
    ) -> Decision:
        """It is the turn of these late ones, or nothing on time waits: let late ones go."""
        for item in self.queue.late.expired(now):
            self.queue.cancel(item.id)
            shed.append(Shed(item, _EXPIRED))
        late = late or self.queue.late.alike(now)
        if not late:
            return self._hold(NEVER, HoldReason.EMPTY, shed)
        if opens > now:
            return self._hold(opens, HoldReason.BUSY, shed)
        batch = self._together(late, self._situation(ready, now))
        return self._release(ready, [], ReleaseReason.SPARE, now, shed, batch)

    def _release(
        self,
        ready: ReadyQueue,
        batch: list[QueuedItem],
        reason: ReleaseReason,
        now: float,
        shed: list[Shed],
        late: Sequence[QueuedItem] = (),
    ) -> Decision:
        if self.pipeline.adapters.slots and batch:
            batch = by_adapter(batch, ready, self._companions, self.limits, now)
            late = _beside(batch, late)
        released = self._released(batch, reason, now, late)
        if self.queue.has_turns:
            ready.take(batch)  # these candidates were a choice of what waits
        self._groups.left(released.items)
        self._guard.released({item.priority for item in released.items}, ready.priorities)
        self._timer = self._refusing_since = NEVER
        self._unswept, self._gathered = True, False
        # What is left may fill the next slot; under pressure nothing is decided before it must be.
        self._early = reason is not ReleaseReason.PRESSURE
        return Decision(release=released, shed=tuple(shed), wake_at=now, reason=reason)

    def _together(self, late: list[QueuedItem], now: Situation) -> list[QueuedItem]:
        """Late items of one key that share a batch, by their lengths and adapters."""
        if self.pipeline.adapters.slots:
            places = self._companions([entry.item for entry in late], len(late), now.start)
            late = [late[at] for at in places]
        return together(late, self.settings.length_buckets, now)

    def _hold(self, until: float, reason: HoldReason, shed: list[Shed]) -> Decision:
        """Most decisions are to go on holding: those cost no new object."""
        self._timer = until
        held = self._held
        if shed:
            return Decision(release=None, shed=tuple(shed), wake_at=until, reason=reason)
        if held.wake_at != until or held.reason is not reason:
            held = self._held = Decision(release=None, shed=(), wake_at=until, reason=reason)
        return held

    def _hopeless(self, ready: ReadyQueue, start: float, now: float) -> list[Shed]:
        """Give up what would be late even alone; on a server that is unproven, what is late."""
        if self.pipeline.unproven(now):
            return self._give_up(ready, ready.due_by(now), now)
        self._unswept = False
        gone: list[QueuedItem] = []
        in_order, hurried = ready.by_due, self._hurried()
        for lanes in ready.by_key():
            for lane in lanes:
                # The lane's longest decides for the lane; each is judged by its own length.
                alone = start + self._seconds_alone(lane.longest)
                for entry in lane.entries:
                    if alone <= entry.due and entry.item.deadline > now:
                        if in_order:
                            break
                        continue
                    late = start + self._seconds_alone(entry.length) > entry.due or entry.due <= now
                    matters = hurried or entry.due == entry.item.deadline
                    if (late and matters) or entry.item.deadline <= now:
                        gone.append(entry)
        return self._give_up(ready, gone, now)

    def _give_up(self, ready: ReadyQueue, entries: Sequence[QueuedItem], now: float) -> list[Shed]:
        """Items will be late: those that are still wanted then wait on, the others end here."""
        shed: list[Shed] = []
        for entry in entries:
            item = entry.item
            if item.due < item.deadline and item.deadline > now:
                self.queue.becomes_late(entry)
            else:
                self.queue.cancel(entry.id)
                shed.append(Shed(item, _EXPIRED if item.deadline <= now else _SHED))
            ready.discard(entry.id)
        return shed

    def _situation(self, ready: ReadyQueue, now: float) -> Situation:
        hurried = self._hurried()
        aims = hurried and self.settings.target_seconds is not None
        return Situation(
            free=self.pipeline.free_from(now),
            start_spread=self.pipeline.unsure_by(),
            rate=self._rate.at(now),
            target=self._usual_target.seconds if aims else None,
            times=self.pipeline.times,
            limits=self.limits,
            by_due=ready.by_due,
            hurried=hurried,
        )

    def _hurried(self) -> bool:
        """Whether small batches are worth their cost, as they bring more answers in time.

        They are not where late answers are wanted and two single rows in a row miss the target:
        then no rate can be served in time, and small batches would make everybody later.
        """
        target = self.settings.target_seconds
        if target is None or self.settings.lateness is Lateness.REFUSE:
            return True
        return 2 * self._seconds_alone(max(1, round(self.recent.length))) <= target

    def _one_too_many(self, entry: QueuedItem, start: float) -> bool:
        """Whether somebody must be given up if it came, even if all batches were full.

        Then it is the newcomer, if those that wait are like it: of others the plan chooses. Only
        where a late answer is of no use, and work is counted in seconds.
        """
        if entry.due < entry.item.deadline or not self.pipeline.times.counts_seconds:
            return False
        competes = self.queue.competes(entry.item.share.tenant, 1)
        ready = None if competes else self.queue.candidates()
        if ready is None:
            return False  # the turns of its tenant say when it leaves
        # Seconds that all workers take for a second of work.
        pace = self.pipeline.times.drift.scale / self.pipeline.workers
        return ready.like_all(entry) and not ready.feasible(entry, start, pace)

    def _usual_rows(self) -> int:
        """How many items like those of recent batches can be in time, in one batch at most."""
        rows, target = super()._usual_rows(), self._usual_target.seconds
        if target is None or not self._hurried():
            return rows
        table = self.pipeline.times.upper_table(round(self.recent.length), rows)
        return max(1, bisect.bisect_right(table, _LEFT_OF_TARGET * target) - 1)

    def _worth_a_try(self, item: Item, now: float) -> bool:
        """Whether an item that would be late goes to an idle server; its profile lasts longer."""
        times = self.pipeline.times
        if not times.profiled or now + times.table(item.length, 1)[1] <= item.deadline:
            return True
        self._refusing_since = min(self._refusing_since, now)
        return now - self._refusing_since >= _PROFILE_BELIEVED

    def _predicted_late(self, item: Item) -> Refusal:
        """Trying again makes sense once what waits is served; hardly for what is late alone."""
        alone = self.pipeline.hand_off + self._seconds_alone(item.length)
        waits = max(1, len(self.queue))
        rows = waits if item.arrived + alone <= item.deadline else None
        return Refusal(reason=Rejection.PREDICTED_LATE, retry_after=self.retry_after(rows))

    def _seconds_alone(self, length: int) -> float:
        """Seconds that an item needs by itself: the middle, as giving up on a guess is final."""
        times = self.pipeline.times
        # The whole table at once, which orders and plans ask for as well.
        return times.table(length, self.settings.max_batch_size)[1] * times.drift.scale

    def entry(self, item: Item) -> QueuedItem:
        """In order of due time and priority."""
        step = min(_PRIORITY_STEP, self.settings.target_seconds or _PRIORITY_STEP)
        rows = self.settings.max_batch_size
        full = self.pipeline.times.table(item.length, rows)[rows]
        return entry_of(item, (full or 1.0) / rows, step, self.settings.objective)


def _beside(batch: Sequence[QueuedItem], late: Sequence[QueuedItem]) -> list[QueuedItem]:
    """The late items that may go along with a batch: none for which another adapter is copied."""
    adapters = {0, *[entry.item.adapter for entry in batch]}
    return [entry for entry in late if entry.item.adapter in adapters]
