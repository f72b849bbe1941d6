"""The asyncio shell around a batch policy: it owns calls and one timer, and decides nothing.

The rows of calls wait in the policy's queue, and the link to the server carries those that leave. A
caller that leaves withdraws its call. `_settle` ends each call exactly once.

All times are monotonic seconds. An event loop's own timers are too coarse for batches of a few
milliseconds: uvloop rounds to whole milliseconds and may fire early, asyncio is up to 2 ms late. A
timerfd read through the loop comes 25 to 100 us after its time. Early and late wake-ups stay normal
input.
"""

import asyncio
import ctypes
import heapq
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from itertools import count
from typing import Final, Generic, Protocol, TypeVar

from batchedmodel_contract.inference.batch import BatchReply
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_contract.outcomes import Outcome
from batchedmodel_scheduling.batching import policies
from batchedmodel_scheduling.batching.decisions import Batch, HandedOver, MemoryCap
from batchedmodel_scheduling.queue.items import Item, ItemId
from batchedmodel_sidecar.batching.health import Health
from batchedmodel_sidecar.batching.in_flight import (
    BatchCounts,
    InFlight,
    Quarantine,
    again,
    noted,
    our_bug,
    patience,
    replied,
)
from batchedmodel_sidecar.batching.pending_request import (
    MODEL_GONE,
    Members,
    PendingRequest,
    Replied,
    Result,
    batch_of,
    dealt,
    ended,
    finished,
    is_served,
    no_room_for_answer,
    other_model,
    refuse_unfit,
    refused,
    refused_for_another_model,
    rejected,
)
from batchedmodel_sidecar.calls import Call, RawReply, RowFailure
from batchedmodel_sidecar.errors import Rejected, Unserved
from batchedmodel_sidecar.model import Infer, ReadyModel, still_needed, take
from batchedmodel_sidecar.protocols.headers import NO_OPTIONS, RequestOptions, agreed, in_force
from batchedmodel_sidecar.telemetry.ledger import (
    Durations,
    Ledger,
    OfferedWork,
    RecentArrivals,
    RecentCallers,
)

logger: Final = logging.getLogger(__name__)

Entry = TypeVar("Entry")

_CLOCK_MONOTONIC: Final = 1
_ABSOLUTE: Final = 1
_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC
_SOON: Final = 1  # nanosecond: a time of zero would disarm instead of firing
_SWEEP_ABOVE: Final = 64
_PAUSE: Final = 1.0  # seconds until the next decision after one that failed
_MOST_FAILURES: Final = 3
_MOST_LATE: Final = 5.0  # seconds
_COMPLETED: Final = Outcome.COMPLETED  # an enum finds its members by Python's code


class Timer(Protocol):
    """Calls back once when a time is reached."""

    def arm(self, at: float) -> None:
        """Replace the time of the next call; infinity means none."""

    def close(self) -> None:
        """Never call again."""


_Itimerspec: Final = ctypes.c_long * 4  # interval and time, each in seconds and nanoseconds
_libc: Final = ctypes.CDLL(None, use_errno=True)


class TimerFd:
    """A `Timer` on the kernel's clock, read through the running loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        callback: Callable[[], None],
        late: Callable[[float], None] | None = None,
    ) -> None:
        """`late` is told how many seconds after its time each call comes."""
        self._loop = loop
        self._callback = callback
        self._late = late
        self._due = 0.0
        self._armed_for = math.inf
        self._fd = _libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        loop.add_reader(self._fd, self._fired)

    def arm(self, at: float) -> None:
        """Replace the time of the next call; a time that has passed calls as soon as possible."""
        if at == self._armed_for:
            return
        self._armed_for = at
        self._due = max(at, time.monotonic())
        nanoseconds = 0 if at == math.inf else max(_SOON, round(at * 1e9))
        spec = _Itimerspec(0, 0, *divmod(nanoseconds, 1_000_000_000))
        if _libc.timerfd_settime(self._fd, _ABSOLUTE, spec, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _fired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # armed anew between the wake-up and this call
        self._armed_for = math.inf
        if self._late is not None:
            self._late(time.monotonic() - self._due)
        self._callback()


class Expiries(Generic[Entry]):
    """Entries by time, until they are due or discarded.

    What was discarded is not kept until its time, with its body and its answer.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        """Times and numbers, also of entries that were discarded."""
        self._entries: dict[int, Entry] = {}
        self._number = 0

    def add(self, deadline: float, entry: Entry) -> int:
        """Remember an entry; returns the number by which it is discarded."""
        self._number += 1
        self._entries[self._number] = entry
        heapq.heappush(self._heap, (deadline, self._number))
        if len(self._heap) > 2 * len(self._entries) + _SWEEP_ABOVE:
            self._heap = [item for item in self._heap if item[1] in self._entries]
            heapq.heapify(self._heap)
        return self._number

    def discard(self, number: int) -> None:
        """Forget an entry, if it is there."""
        self._entries.pop(number, None)

    def due(self, now: float) -> list[Entry]:
        """Remove and return the entries whose time has come."""
        entries: list[Entry] = []
        while self._heap and (self._heap[0][0] <= now or self._heap[0][1] not in self._entries):
            _, number = heapq.heappop(self._heap)
            if number in self._entries:
                entries.append(self._entries.pop(number))
        return entries

    def next(self) -> float:
        """When to look again; infinity when there is nothing to look for."""
        return self._heap[0][0] if self._heap else math.inf


class DecisionWatchdog:
    """Says for the liveness probe whether the batcher still decides.

    A decision that fails is tried again after a moment. A sidecar whose decisions go on failing, or
    stop, must be restarted: its callers would wait for ever, and its probes would be well. So must
    one whose policy does not know that a batch has ended: to it the server is busy for ever.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._next = math.inf
        self._astray = False

    def decided(self, next_at: float) -> None:
        """A decision was made; the next one is due then."""
        self._failures = 0
        self._next = next_at

    def stumbled(self, now: float) -> float:
        """A decision failed; returns when to try again."""
        self._failures += 1
        self._next = now + _PAUSE
        return self._next

    def lost_track(self) -> None:
        """The policy goes on following a batch that has ended."""
        self._astray = True

    def ailment(self, now: float) -> str | None:
        """What is wrong; None while nothing is."""
        if self._failures >= _MOST_FAILURES:
            return f"the last {self._failures} decisions failed"
        if self._astray:
            return "the policy does not know that a batch has ended"
        late = now - self._next
        return f"a decision is {late:.0f} s late" if late > _MOST_LATE else None


class Decisions:
    """When decisions are made: once for all that comes in a turn of the loop, and when one is due.

    After a decision that fails others follow.
    """

    def __init__(
        self,
        decide: Callable[[float], float],
        clock: Callable[[], float],
        timer: Callable[[Callable[[], None]], Timer],
    ) -> None:
        """`decide` is told the time, and returns when the next decision is due."""
        self._decide = decide
        self._clock = clock
        self._timer = timer(self.make)
        self._is_due = self._closed = False
        self.watchdog: Final = DecisionWatchdog()

    def ask(self) -> None:
        """One is made in the next turn of the loop."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.make)

    def make(self) -> None:
        """Decide now what is to be decided."""
        self._is_due = False
        if self._closed:
            return
        now = self._clock()
        try:
            wakes_at = self._decide(now)
            self.watchdog.decided(wakes_at)
        except Exception:
            logger.exception("a decision failed")
            wakes_at = self.watchdog.stumbled(now)
        self._timer.arm(wakes_at)

    def close(self) -> None:
        """Make no more."""
        self._closed = True
        self._timer.close()


class Batcher:
    """Forms batches of submitted calls and hands them to the model behind."""

    def __init__(
        self,
        settings: BatchSettings,
        *,
        infer: Infer,
        clock: Callable[[], float],
        timer: Callable[[Callable[[], None]], Timer],
        ledger: Ledger,
        durations: Durations,
        recorder: RecentArrivals,
        idempotent: bool = True,
        one_by_one: bool = False,
        adapter_slots: int = 0,
    ) -> None:
        """`idempotent`: a row may be sent again when its outcome is unknown; `one_by_one`:
        the server runs no batches side by side, whatever the settings say. `adapter_slots`: its.
        """
        self.settings = settings  # in force
        self._terms = agreed(NO_OPTIONS, settings)  # of most calls
        self._idempotent = idempotent
        self._one_by_one = one_by_one
        used = in_force(settings, one_by_one=one_by_one)
        self.policy = policies.new_policy(  # at present
            used, None, adapter_slots=adapter_slots, room=ledger.tenants.room
        )
        self._infer = infer
        self._clock = clock
        self._decisions = Decisions(self._decide, clock, timer)
        self._ledger = ledger
        self._durations = durations
        self._counts = BatchCounts(ledger, durations)
        self._recorder = recorder
        self.offered: Final = OfferedWork(ledger, clock())
        self.model: ReadyModel | None = None  # the one that new calls go to
        self._older: tuple[ReadyModel, ...] = ()  # that it replaced, and that calls need
        self._flushing = False
        self._ids = count(1)
        self._rows: dict[ItemId, tuple[PendingRequest, int]] = {}
        self._expiries: Expiries[PendingRequest] = Expiries()
        self._recent = RecentCallers()
        self._in_flight = InFlight()
        ask = self._decisions.ask
        self._quarantine = Quarantine(self._in_flight, ask)
        self._health = Health(infer, clock, self._in_flight, ask, idempotent=idempotent)
        self._unsettled = 0
        """Accepted calls. The ledger counts texts as well."""
        self._idle = asyncio.Event()
        self._idle.set()

    def most_rows(self, share: Share) -> int:
        """How many rows the next call of a tenant may have at present."""
        room = self.policy.queue.room
        if not room.has_others(share.tenant):
            return self.settings.max_queue_size
        return room.most_now(share)

    def refusal(self, share: Share = NOBODY, rows: int = 1) -> Rejected | None:
        """Why a call of so many rows or more is refused unread; then it counts as offered."""
        if (refusal := self.policy.refusal(share, rows)) is None:
            return None
        self._ledger.tenants.refused(share.tenant, rows)
        self.offered.add_unseen(rows, self._clock())
        return rejected(refusal, self.settings, rows=rows)

    @property
    def closed(self) -> str | None:
        """Why the server behind is not to be relied on, though it says that it is ready."""
        return self._health.circuit.closed_to_callers(self._clock())

    def ailment(self) -> str | None:
        """Why this process should be restarted: it decides no more; None while it does."""
        return self._decisions.watchdog.ailment(self._clock())

    def oldest_age(self) -> float:
        """Seconds for which the oldest call that waits has waited; 0 when none does."""
        since = [pending.accepted_at for pending, _ in self._rows.values() if pending.waiting]
        return self._clock() - min(since) if since else 0.0

    def asking(self) -> Collection[Share]:
        """Whose calls are not settled, or were offered within the last second."""
        waiting = (pending.share for pending, _ in self._rows.values())
        return {*self._recent.at(self._clock()), *waiting}

    def adapters(self) -> tuple[set[str], set[str]]:
        """Those of calls with rows at the server, and those of calls with rows that wait."""
        running: set[str] = set()
        waiting: set[str] = set()
        for call in {pending for pending, _ in self._rows.values() if pending.call.adapter}:
            name = call.call.adapter_name or ""
            running.update((name,) if call.at_server else ())
            waiting.update((name,) if call.waiting else ())
        return running, waiting

    def offer(
        self,
        call: Call,
        arrived: float | None = None,
        options: RequestOptions = NO_OPTIONS,
        share: Share = NOBODY,
    ) -> PendingRequest:
        """Accept a call, which is to be awaited; raises `Rejected`.

        Its time counts from `arrived`, by default from now.
        """
        now = self._clock()
        self._recent.asks(share, now)
        terms = self._terms if options is NO_OPTIONS else agreed(options, self.settings)
        self._ledger.untrusted_priorities += options.priority not in (None, terms.priority)
        call = self._health.standing.placed(call, share.tenant)
        pending = PendingRequest(call, now, arrived, terms, share, self._withdraw)
        try:
            self._accept(pending, now)
        except Rejected as refused:
            self._recorder.refused(call.lengths, terms.priority, refused.reason, now)
            self._decisions.ask()  # its rows may have cost others their place
            raise
        return pending

    def _withdraw(self, pending: PendingRequest) -> None:
        """The caller of an accepted call has left."""
        self._settle(pending, Outcome.CANCELLED, None)

    def attach(self, model: ReadyModel) -> None:
        """A server is ready, or another version beside the one that was not lost."""
        self._older = still_needed(self.model, *self._older)
        self.model = model
        self._health.circuit.back()
        for pending in {pending for pending, _ in self._rows.values()}:
            if not take(pending.call, model, *self._older):
                self._settle(pending, Outcome.FAILED, other_model())
        self._relearn(model)

    def expect(self, model: ReadyModel) -> None:
        """The server has measured more of this model, which it serves unless it was lost."""
        if self.model is not None:
            self.model = model
            self._relearn(model)

    def _relearn(self, model: ReadyModel) -> None:
        profile = model.profile
        counted_seconds = self.policy.pipeline.times.counts_seconds
        self.policy = policies.relearning(self.policy, profile)
        if profile is not None and profile.max_cost is not None:
            self.policy.observe(MemoryCap(cost=profile.max_cost), self._clock())
        if self.policy.pipeline.times.counts_seconds is not counted_seconds:
            self.offered.start_over(self._clock())
        self._decisions.ask()

    def bound(self, cap: MemoryCap) -> None:
        """The server's memory holds so much, as far as is known."""
        self.policy.observe(cap, self._clock())

    def detach(self) -> None:
        """The server is gone: calls that wait go on waiting, and those in flight will fail."""
        self.model, self._older = None, ()

    def configure(self, settings: BatchSettings) -> None:
        """Use other settings from the next decision on; what was accepted stays accepted."""
        self.settings = settings
        self._terms = agreed(NO_OPTIONS, settings)
        followed = in_force(settings, one_by_one=self._one_by_one, flushing=self._flushing)
        self.policy = policies.reconfigured(self.policy, followed, self._clock())
        self._decisions.ask()

    def flush(self, flushing: bool) -> None:
        """While flushing nothing is held for company that will not come."""
        self._flushing = flushing
        self.configure(self.settings)

    async def idle(self) -> None:
        """Return once no accepted call is unsettled."""
        await self._idle.wait()

    def give_up(self, reason: str, *, in_flight: bool = True) -> None:
        """Answer accepted calls with 503; without `in_flight` only those that wait."""
        for pending in {one for one, _ in self._rows.values() if in_flight or not one.at_server}:
            self._settle(pending, Outcome.FAILED, Unserved(reason, status=503, retry_after=1.0))

    async def close(self) -> None:
        """Settle what is left and stop."""
        self._decisions.close()
        self.give_up("the service is stopping")
        await self._in_flight.cancel_all()
        await self._health.close()

    def _accept(self, pending: PendingRequest, now: float) -> None:
        """Offer all rows or none: a call is refused whole."""
        call, lengths, rows = pending.call, pending.call.lengths, len(pending.call.lengths)
        self._ledger.rows_offered += rows
        if (model := self.model) and not (model.takes(call) or take(call, *self._older)):
            raise refused_for_another_model()
        refuse_unfit(rows, pending.deadline - now, pending.terms, self.settings)
        pending.work = sum([self.policy.charges.work(length) for length in lengths])
        self.offered.add(pending.work, rows, now)
        items = pending.items(self._ids, self.policy)
        if refusal := self.policy.offer_call(items, now):
            self._ledger.refused_rows(pending.tenant, call.adapter_name, rows)
            raise rejected(refusal, self.settings, pending.terms.limit)
        for index, item_id in enumerate(pending.ids):
            self._rows[item_id] = (pending, index)
        pending.recorded = self._recorder.accepted(lengths, pending.terms.priority, now)
        self._ledger.accept(rows, pending.work, now)
        if not self._unsettled:
            self._idle.clear()
        self._unsettled += 1
        pending.expiry = self._expiries.add(pending.deadline, pending)
        self._decisions.ask()

    def _decide(self, now: float) -> float:
        """Expire, release as long as the policy releases; returns when something is due."""
        for pending in self._expiries.due(now):
            self._give_up(pending, Outcome.EXPIRED)
        if self._quarantine.can_leave and self._depth(now):
            self._release(self._quarantine.leave(self.policy), now)
        while True:
            waiting = self.policy.queue.room.tenants
            slots = self._in_flight.slots(self._depth(now), waiting)
            decision = self.policy.poll(now, slots)
            if decision.release is not None:
                self._release(decision.release, now)
            # Behind the release, which may carry another row of a call that ends here.
            for shed in decision.shed:
                if shed.item.id in self._rows:
                    self._give_up(self._rows[shed.item.id][0], shed.outcome)
            if decision.release is None:
                break
        at = min(self._health.circuit.changes_at(now), self._in_flight.next_slow(now))
        return min(decision.wake_at, at, self._expiries.next())

    def _depth(self, now: float) -> int:
        server_depth = 0 if self.model is None else self.model.holds(self.policy.settings)
        depth = self._health.circuit.depth(server_depth, now, slow=self._in_flight.slow(now))
        return self._quarantine.depth(depth, now)

    def _give_up(self, pending: PendingRequest, outcome: Outcome) -> None:
        """End a call for which its time, or the policy, leaves no room."""
        delay = self.policy.retry_after(self._ledger.rows_waiting)
        failure = ended(outcome, seconds=pending.terms.limit, retry_after=delay)
        self._settle(pending, outcome, failure)

    def _release(self, batch: Batch, now: float) -> None:
        members = [self._rows[item.id] for item in batch.items]
        self._counts.leaves(batch, members, now)
        # It is sent before the rest is noted: the device may be idle.
        limit = patience(batch, self.settings, now, self.policy.pipeline)
        callers = {pending.tenant for pending, _ in members}
        sent = self._in_flight.start(batch, now, self.policy.pipeline, callers)
        ask = partial(self._ask, members, now, limit)
        self._in_flight.carry(sent, self._carry(batch, members, ask))
        noted(self.policy.observe, HandedOver(batch=batch.id), now)
        sent.is_noted = True

    def _ask(self, members: Members, now: float, limit: float) -> Awaitable[BatchReply]:
        return self._infer(batch_of(members, now), limit)

    async def _carry(
        self, batch: Batch, members: Members, ask: Callable[[], Awaitable[BatchReply]]
    ) -> None:
        """Send one batch, await its reply and settle its members, whatever happens."""
        try:
            reply = await replied(ask, partial(self._off_server, batch))
            if not self._in_flight.sent(batch).is_noted:
                await asyncio.sleep(0)  # it had its reply before it was noted that it left
        except asyncio.CancelledError:
            self._dropped(batch)
            raise
        try:
            self._charge(batch, reply)
            answered = self._arrived(batch, reply)
            if answered is not None:
                if self._in_flight.any:
                    await asyncio.sleep(0)  # the next batch is sent first: the device is idle
                self._deliver(batch, answered)
        except BaseException as error:
            failure = our_bug(error)
            for pending, _ in members:
                self._settle(pending, Outcome.FAILED, failure)
            if self._in_flight.has(batch):
                self._dropped(batch)
        if self._flushing and self.model is None and not isinstance(reply, Unserved):
            self.give_up(MODEL_GONE, in_flight=False)

    def _arrived(self, batch: Batch, reply: Replied) -> BatchReply | None:
        """A batch is off the server; the reply to deliver. If this fails, its task's end tells."""
        if isinstance(reply, Unserved):
            self._unserved(batch, batch.items, reply)
            self._finish(batch, None)
            return None
        if isinstance(reply, RawReply) and reply.fault is not None:
            self._unserved(batch, reply.left(batch.items), reply.fault)
        else:
            sent, now = self._in_flight.sent(batch), self._clock()
            self._health.circuit.replied(reply, now, since=sent.began, callers=sent.callers)
        self._finish(batch, reply)
        return reply

    def _unserved(self, batch: Batch, items: Sequence[Item], error: Unserved) -> None:
        """Items of a batch have no answer: they fail, or wait for another try."""
        now, sent = self._clock(), self._in_flight.sent(batch)
        if (rests_until := self._health.unserved(batch, sent, error)) is not None:
            (caller,) = sent.callers  # several are tried again apart instead
            self.policy.queue.rest(batch.items[0].key, caller, rests_until)
        over = self._flushing and self.model is None  # no other will come in time for what waits
        alone = sent.alone and not self._ledger.passing
        for item in items:
            if (entry := self._rows.get(item.id)) is None:
                continue  # no longer wanted, or its call ended with another row
            pending = entry[0]
            tried: Item | Unserved = error
            if not over:
                tried = again(
                    pending,
                    item,
                    error,
                    idempotent=self._idempotent,
                    alone=alone,
                    shared=sent.shared,
                )
            if isinstance(tried, Unserved):
                self._settle(pending, Outcome.FAILED, tried)
                continue
            pending.waiting += 1
            self._ledger.come_back(len(pending.call.rows), pending.waiting, now)
            if not self._quarantine.takes(tried):
                self.policy.come_back(tried)

    def _charge(self, batch: Batch, reply: Replied) -> None:
        """Its tenants pay for what a batch took beyond what was expected."""
        charges, items = self.policy.charges, batch.items
        if isinstance(reply, BatchReply) and is_served(reply):
            seconds = reply.compute_seconds if reply.passes == 1 else None
            noted(charges.served, batch, seconds)
            return
        took = self._clock() - self._in_flight.sent(batch).uncharged_since
        lost = isinstance(reply, Unserved) and not reply.answered
        noted(partial(charges.refused, lost=lost), batch, refused(reply, items), took)

    def _dropped(self, batch: Batch) -> None:
        sent = self._in_flight.sent(batch)
        noted(self.policy.charges.dropped, batch, self._clock() - sent.uncharged_since)
        self._finish(batch, None)

    def _off_server(self, batch: Batch, reply: BatchReply) -> None:
        """A batch is off the server, and its answer is still to be cut: the next may go."""
        self._charge(batch, reply)
        self._note_off_server(batch, reply)
        self._decisions.make()

    def _note_off_server(self, batch: Batch, reply: BatchReply | None) -> None:
        """Tell the policy that a batch is off the server."""
        now = self._clock()
        self._in_flight.off_server(batch, now)
        self._counts.ends(batch, reply, now)
        noted(self.policy.observe, finished(batch, reply), now)
        if self.policy.pipeline.follows(batch.id):
            self._decisions.watchdog.lost_track()

    def _finish(self, batch: Batch, reply: BatchReply | None) -> None:
        """A batch is over: act on its answer at once."""
        if not self._in_flight.sent(batch).off:
            self._note_off_server(batch, reply)
        callers = self._in_flight.ended(batch)
        models = (self.model, *self._older) if self.model is not None else ()
        policy, rests = self.policy, self.policy.queue.resting.rests
        self._health.probe_if_due(batch, callers, models, self.settings, policy, rests)
        self._decisions.make()

    def _deliver(self, batch: Batch, reply: BatchReply) -> None:
        outputs, answers = dealt(reply, len(batch.items))
        partly: list[tuple[PendingRequest, int]] = []
        for item, answer in zip(batch.items, answers, strict=True):
            if answer is None or (entry := self._rows.pop(item.id, None)) is None:
                continue  # it met the reply's fault; or it expired, left, or failed by another row
            pending, index = entry
            if isinstance(answer, RowFailure):
                self._settle(pending, Outcome.FAILED, answer.for_row(index, len(pending.call.rows)))
            elif answered := pending.answer(index, outputs, answer, reply.compute_seconds):
                self._settle(pending, _COMPLETED, answered)
                self._health.keep(pending.tenant, pending.call)
            else:
                partly.append(entry)
        for pending, index in partly:
            if not pending.keeps_alone(index):
                self._settle(pending, Outcome.FAILED, no_room_for_answer())

    def _settle(self, pending: PendingRequest, outcome: Outcome, result: Result) -> None:
        """The one place where a call ends; later endings of the same call change nothing."""
        if pending.missing < 0:
            return
        pending.missing = -1
        # First: what fails below leaves neither a drain nor the caller waiting.
        self._unsettled -= 1
        if self._unsettled == 0:
            self._idle.set()
        pending.tell(result, outcome)
        self._expiries.discard(pending.expiry)
        now, rows = self._clock(), len(pending.call.rows)
        if self._health.standing.parts(pending.tenant, result):
            self.policy.queue.part(pending.tenant)
        self._ledger.settle(outcome, rows, pending.work, now, waiting=pending.waiting)
        self._ledger.late += outcome is _COMPLETED and now > pending.due
        self._recorder.settled(pending.recorded, rows, outcome)
        if outcome is _COMPLETED:
            self._ledger.answered_rows(pending.tenant, pending.call.adapter_name, rows)
        self._durations.request.observe(now - pending.accepted_at)
        for item_id in pending.ids:
            if self._rows.pop(item_id, None) is not None and pending.waiting:
                noted(self.policy.withdraw, item_id, now)
                self._quarantine.discard(item_id)
        if result is None:
            # Not when calls expire: the server may hang, which only its batch can show.
            self._in_flight.unwanted(pending.in_flight)
            self._decisions.ask()
