"""The asyncio shell around a batch policy: it owns futures and one timer, and decides nothing.

The front submits calls and awaits them; a caller's departure is the cancellation of `submit`. The
policy says which rows leave; the model link carries them. Each call is settled exactly once, by
`_settle`, whoever left in between.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from typing import Final

from batchedmodel_contract.batch_wire import BatchReply, BatchRequest
from batchedmodel_contract.batching import BatchSettings
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_contract.stats import SidecarStats
from batchedmodel_scheduling import policies
from batchedmodel_scheduling.policy import (
    Batch,
    BatchId,
    Finished,
    HandedOver,
    ItemId,
    MemoryCap,
    Refusal,
    Slots,
)
from batchedmodel_scheduling.signals import Signals
from batchedmodel_sidecar.calls import Answer, Call, request_of
from batchedmodel_sidecar.deadlines import Deadlines
from batchedmodel_sidecar.errors import CallError, Rejected, TooLate, Unserved
from batchedmodel_sidecar.ledger import Ledger
from batchedmodel_sidecar.live_call import LiveCall
from batchedmodel_sidecar.metrics import Durations
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.recorder import FlightRecorder
from batchedmodel_sidecar.replies import RowFailure, dealt
from batchedmodel_sidecar.terms import NO_WISHES, Wishes, agreed
from batchedmodel_sidecar.timer import Timer
from batchedmodel_sidecar.verdicts import ended, rejected
from batchedmodel_sidecar.work_meter import WorkMeter

logger: Final = logging.getLogger(__name__)

Infer = Callable[[BatchRequest, float], Awaitable[BatchReply]]
"""Carries one batch to the server within so many seconds; raises `Unserved`."""

_GRACE: Final = 5.0  # seconds that a batch is awaited after its last member's time is over


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
        recorder: FlightRecorder,
    ) -> None:
        self._settings = settings
        self._policy = policies.new_policy(settings, None)
        self._infer = infer
        self._clock = clock
        self._timer = timer(self._step)
        self._ledger = ledger
        self._durations = durations
        self._recorder = recorder
        self._meter = WorkMeter(clock())
        self._instance = uuid.uuid4().hex
        self._model: ReadyModel | None = None
        self._flushing = False
        self._closed = False
        self._step_is_due = False
        self._item_ids = count(1)
        self._rows: dict[ItemId, tuple[LiveCall, int]] = {}
        self._deadlines: Deadlines[LiveCall] = Deadlines(lambda live: not live.future.done())
        self._in_flight: dict[BatchId, asyncio.Task[None]] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def settings(self) -> BatchSettings:
        """The settings in force."""
        return self._settings

    def refusal(self) -> Rejected | None:
        """What one more call would be told now, before its body is read."""
        refusal = self._policy.refusal()
        if refusal is None:
            return None
        return self._rejection(refusal, self._settings.request_timeout_seconds)

    def signals(self) -> Signals:
        """How the policy behaves at present, for metrics."""
        return self._policy.signals()

    def count_unseen(self) -> None:
        """A call was refused unread for want of room: it was offered work all the same."""
        self._ledger.rows_offered += 1  # it had one at least
        self._meter.add_unseen(self._clock())

    def stats(self, *, draining: bool) -> SidecarStats:
        """What the autoscaler is told."""
        now = self._clock()
        return SidecarStats(
            instance=self._instance,
            model_ready=self._model is not None,
            draining=draining,
            profile_known=self._policy.pipeline.times.profiled,
            offered_work=self._meter.buckets(now),
            age_seconds=self._meter.age(now),
            backlog_work=max(0.0, self._ledger.work_live),
            queue_length=self._ledger.rows_waiting,
            outstanding=self._ledger.rows_live,
            settings_hash=self._settings.digest(),
            max_batch_size=self._settings.max_batch_size,
        )

    async def submit(
        self, call: Call, arrived: float | None = None, wishes: Wishes = NO_WISHES
    ) -> Answer:
        """The answer to a call; raises `Rejected`, `Unserved`, `Expired` or `GivenUp`.

        Its time counts from `arrived`, by default from now. Cancelling the await withdraws it.
        """
        now = self._clock()
        terms = agreed(wishes, self._settings)
        self._ledger.untrusted_priorities += wishes.priority not in (None, terms.priority)
        live = LiveCall(call, now, now if arrived is None else arrived, terms)
        try:
            self._accept(live, now)
        except Rejected as refused:
            self._recorder.refused(call.lengths, terms.priority, refused.reason, now)
            # Its rows that were offered may have cost others their place.
            self._request_step()
            raise
        try:
            return await live.future
        except asyncio.CancelledError:
            self._leave(live)
            raise

    def attach(self, model: ReadyModel) -> None:
        """A server is ready: what waits may go to it, if it takes such rows at all."""
        knew = self._policy.pipeline.times.profiled
        self._model = model
        for live in {live for live, _ in self._rows.values()}:
            if live.call.description != model.description:
                self._settle(live, Outcome.FAILED, _other_model())
        self._policy = policies.relearning(self._policy, model.profile)
        if model.profile is not None and model.profile.max_cost is not None:
            self._policy.observe(MemoryCap(cost=model.profile.max_cost), self._clock())
        if self._policy.pipeline.times.profiled is not knew:
            # Seconds and full batches must not be added up.
            self._meter = WorkMeter(self._clock())
        self._request_step()

    def detach(self) -> None:
        """The server is gone: what waits goes on waiting, what is in flight fails by itself."""
        self._model = None

    def configure(self, settings: BatchSettings) -> None:
        """Use other settings from the next decision on; what was accepted stays accepted."""
        self._settings = settings
        in_force = replace(settings, max_wait_seconds=0.0) if self._flushing else settings
        self._policy = policies.reconfigured(self._policy, in_force, self._clock())
        self._request_step()

    def flush(self, flushing: bool) -> None:
        """While flushing nothing is held for company that will not come."""
        self._flushing = flushing
        self.configure(self._settings)

    async def idle(self) -> None:
        """Return once no accepted call is unsettled."""
        await self._idle.wait()

    def give_up(self, reason: str) -> None:
        """Answer everything accepted with 503: nobody is left to serve it."""
        for live in {live for live, _ in self._rows.values()}:
            self._settle(live, Outcome.FAILED, Unserved(reason, status=503, retry_after=1.0))

    async def close(self) -> None:
        """Settle what is left and stop."""
        self._closed = True
        self._timer.close()
        self.give_up("the service is stopping")
        tasks = list(self._in_flight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, live: LiveCall, now: float) -> None:
        """Offer all rows or none: a call is refused whole."""
        rows = live.call.rows
        self._ledger.rows_offered += len(rows)
        if self._model is not None and live.call.description != self._model.description:
            other = _other_model()
            raise Rejected(Rejection.NOT_READY, other.message, retry_after=other.retry_after)
        if len(rows) > self._settings.max_queue_size:
            limit = self._settings.max_queue_size
            message = f"{len(rows)} rows in one request are more than the queue holds ({limit})"
            raise Rejected(Rejection.TOO_LARGE, message)
        if live.deadline <= now:
            raise TooLate(live.terms.limit)
        live.work = sum(self._policy.work(row.length) for row in rows)
        self._meter.add(live.work, now)
        for row in rows:
            item = live.item(ItemId(next(self._item_ids)), row)
            refusal = self._policy.offer(item, now)
            if refusal is not None:
                for item_id in live.ids:
                    self._policy.withdraw(item_id, now)
                raise self._rejection(refusal, live.terms.limit)
            live.ids.append(item.id)
        for index, item_id in enumerate(live.ids):
            self._rows[item_id] = (live, index)
        live.recorded = self._recorder.accepted(live.call.lengths, live.terms.priority, now)
        self._ledger.accept(len(rows), live.work)
        self._idle.clear()
        self._deadlines.add(live.deadline, live, self._ledger.live)
        self._request_step()

    def _rejection(self, refusal: Refusal, seconds: float) -> Rejected:
        return rejected(refusal, queue=self._settings.max_queue_size, seconds=seconds)

    def _leave(self, live: LiveCall) -> None:
        self._settle(live, Outcome.CANCELLED, None)

    def _request_step(self) -> None:
        """Decide once for all that arrives in this turn of the loop."""
        if not self._step_is_due:
            self._step_is_due = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        """Expire, release as long as the policy releases, sleep until something is due."""
        self._step_is_due = False
        if self._closed:
            return
        now = self._clock()
        for live in self._deadlines.due(now):
            self._give_up(live, Outcome.EXPIRED)
        while True:
            decision = self._policy.poll(now, self._slots())
            if decision.release is not None:
                self._release(decision.release, now)
            # Behind the release, which may carry another row of a call that ends here: a call of
            # several rows is settled with the first of them that is shed.
            for shed in decision.shed:
                if shed.item.id in self._rows:
                    self._give_up(self._rows[shed.item.id][0], shed.outcome)
            if decision.release is None:
                break
        self._timer.arm(min(decision.wake_at, self._deadlines.next()))

    def _slots(self) -> Slots:
        depth = self._model.depth if self._model is not None else 0
        return Slots(depth=depth, in_flight=len(self._in_flight))

    def _give_up(self, live: LiveCall, outcome: Outcome) -> None:
        """End a call for which its time, or the policy, leaves no room."""
        delay = self._policy.retry_after(self._ledger.rows_waiting)
        self._settle(live, outcome, ended(outcome, seconds=live.terms.limit, retry_after=delay))

    def _release(self, batch: Batch, now: float) -> None:
        for item in batch.items:
            live, _ = self._rows[item.id]
            if live.waiting == len(live.call.rows):
                self._ledger.waiting -= 1
                self._ledger.in_flight += 1
            live.waiting -= 1
            self._durations.queue.observe(now - item.arrived)
        request, seconds = self._request(batch), self._patience(batch, now)
        self._ledger.rows_waiting -= len(batch.items)
        self._ledger.batches[batch.reason] += 1
        self._ledger.batches_in_flight += 1
        self._durations.batch_size.observe(len(batch.items))
        logger.debug("batch %d: %d rows, %s", batch.id, len(batch.items), batch.reason)
        self._policy.observe(HandedOver(batch=batch.id), now)
        task = asyncio.get_running_loop().create_task(self._carry(batch, request, seconds))
        self._in_flight[batch.id] = task

    def _patience(self, batch: Batch, now: float) -> float:
        # Not their deadlines alone: callers in a hurry must not make a slow server look dead.
        longest = self._settings.request_timeout_seconds
        return max(max(it.deadline, it.arrived + longest) for it in batch.items) - now + _GRACE

    def _request(self, batch: Batch) -> BatchRequest:
        assert self._model is not None, "a batch was released without a server: our bug"
        members = [self._rows[item.id] for item in batch.items]
        rows = [live.call.rows[index] for live, index in members]
        return request_of(rows, self._model.description)

    async def _carry(self, batch: Batch, request: BatchRequest, seconds: float) -> None:
        """Send one batch and settle its members, whatever happens."""
        try:
            reply = await self._infer(request, seconds)
        except Unserved as error:
            self._finish(batch, None)
            self._fail(batch, error)
            return
        except asyncio.CancelledError:
            self._finish(batch, None)
            raise
        except Exception as bug:
            self._finish(batch, None)
            self._fail(batch, self._bug(batch, bug))
            return
        # The next batch leaves before this one is dealt out: a device that waits costs everybody,
        # an answer that is some microseconds later costs one caller that.
        self._finish(batch, reply)
        try:
            self._deliver(batch, reply)
        except Unserved as error:
            self._fail(batch, error)
        except Exception as bug:
            self._fail(batch, self._bug(batch, bug))

    def _bug(self, batch: Batch, bug: Exception) -> Unserved:
        """Whatever it is, it is ours, and no caller may hang for it."""
        logger.error("batch %d failed in the sidecar", batch.id, exc_info=bug)
        return Unserved(f"error in the sidecar: {bug!r}", status=500)

    def _finish(self, batch: Batch, reply: BatchReply | None) -> None:
        """Tell the policy that a batch is off the server, and act on its answer at once."""
        del self._in_flight[batch.id]
        self._ledger.batches_in_flight -= 1
        compute, queued = None, 0.0
        if reply is not None:
            compute, queued = reply.compute_seconds, reply.queue_seconds
            self._durations.model.observe(compute)
        finished = Finished(batch=batch.id, compute_seconds=compute, queue_seconds=queued)
        self._policy.observe(finished, self._clock())
        self._step()

    def _deliver(self, batch: Batch, reply: BatchReply) -> None:
        outputs, answers = dealt(reply, len(batch.items))
        for item, answer in zip(batch.items, answers, strict=True):
            entry = self._rows.pop(item.id, None)
            if entry is None:
                continue  # settled meanwhile: expired, left, or failed by another of its rows
            live, index = entry
            if isinstance(answer, RowFailure):
                self._settle(live, Outcome.FAILED, answer.for_row(index, len(live.call.rows)))
                continue
            live.answers[index] = answer
            live.missing -= 1
            if live.missing == 0:
                rows = tuple(answer for answer in live.answers if answer is not None)
                self._settle(live, Outcome.COMPLETED, Answer(outputs=outputs, rows=rows))

    def _fail(self, batch: Batch, error: Unserved) -> None:
        for item in batch.items:
            entry = self._rows.get(item.id)
            if entry is not None:
                self._settle(entry[0], Outcome.FAILED, error)

    def _settle(self, live: LiveCall, outcome: Outcome, result: Answer | CallError | None) -> None:
        """The one place where a call ends; later endings of the same call change nothing."""
        if live.missing < 0:
            return
        live.missing = -1
        now = self._clock()
        rows = len(live.call.rows)
        self._ledger.settle(outcome, rows, live.work, waiting=live.waiting)
        self._recorder.settled(live.recorded, rows, outcome)
        if outcome is not Outcome.COMPLETED:
            logger.debug("call of %d rows: %s: %s", rows, outcome, result or "its caller left")
        self._durations.request.observe(now - live.accepted_at)
        for item_id in live.ids:
            if self._rows.pop(item_id, None) is not None and live.waiting:
                self._policy.withdraw(item_id, now)
        if not live.future.done():
            if isinstance(result, Answer):
                live.future.set_result(result)
            elif result is not None:
                live.future.set_exception(result)
        if self._ledger.live == 0:
            self._idle.set()


def _other_model() -> Unserved:
    """A model came back that takes other rows than the call was checked for."""
    message = "the model was replaced by one that takes other inputs; send the request again"
    return Unserved(message, status=503, retry_after=1.0)
