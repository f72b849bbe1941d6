"""The batches that are on their way: who wants them, which had company, and what becomes of rows.

Owned by the batcher. A batch without a caller is dropped. A batch that takes several
times as long as was expected is slow: it may hang, and with several workers the others go on
without it.

A row over which the server died is tried once more with nothing beside it, so that a row that kills
servers takes no other with it the second time. It is blamed only for a death with nothing beside
it.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final

from batchedmodel_contract.inference.batch import BatchReply
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.processes.logs import about
from batchedmodel_http.eager_coroutine import EagerCoroutine
from batchedmodel_scheduling.batching.decisions import Batch, BatchId, Slots
from batchedmodel_scheduling.batching.policy import BasePolicy, Pipeline
from batchedmodel_scheduling.queue.items import Item, ItemId
from batchedmodel_scheduling.queue.keys import Alone, apart
from batchedmodel_sidecar.batching.pending_request import Members, PendingRequest
from batchedmodel_sidecar.calls import UncutReply
from batchedmodel_sidecar.errors import Busy, Fatal, Lost, Unserved
from batchedmodel_sidecar.telemetry.ledger import Durations, Ledger

logger: Final = logging.getLogger(__name__)

_GRACE: Final = 5.0  # seconds beyond the time that a caller has
_SLOW: Final = 4.0  # times what was expected
_SLOW_SECONDS: Final = 1.0  # more, for the unforeseen
_SLOW_UNKNOWN: Final = 10.0  # seconds, of a server of which nothing is known yet


@dataclass(slots=True)
class Sent:
    """A batch that has left and not ended."""

    open_rows: int
    """Rows whose calls are not settled."""
    began: float
    """When a worker had it."""
    behind: bool
    """Whether all workers had another when it left."""
    slow_at: float
    alone: bool
    """Whether no other has been beside it."""
    callers: Collection[str]
    """Whose rows it has, each once."""
    carrying: EagerCoroutine[None] | None = None
    """What sends it, and settles its rows."""
    is_noted: bool = False
    """Whether all that follows from its release is noted."""
    left_at: float = math.inf
    """When the server was done with it, though its answer is still being cut."""

    @property
    def off(self) -> bool:
        """Whether the server is done with it."""
        return self.left_at < math.inf

    @property
    def uncharged_since(self) -> float:
        """From when on its time has not been charged to a tenant."""
        return self.left_at if self.off else self.began

    @property
    def shared(self) -> bool:
        """Whether it has rows of several callers."""
        return len(self.callers) > 1


class InFlight:
    """What carries batches, by batch."""

    def __init__(self) -> None:
        """Nothing is on its way."""
        self._in_flight: dict[BatchId, Sent] = {}
        self._ended_last: Collection[str] = ()
        """Whose rows the batch had that ended last."""
        self._empty = asyncio.Event()
        self._empty.set()

    def slots(self, depth: int, waiting: Collection[str]) -> Slots:
        """How much of a server that can hold `depth` batches is taken; see `Slots`.

        `waiting`: the callers whose rows wait. While several callers have rows here, or had until
        now, full batches leave just in time: one that left early would go
        without the rows that come meanwhile.
        """
        several = len(waiting) > 1  # mostly known without a look at each, of whom there may be many
        if not several:
            callers = [flight.callers for flight in self._in_flight.values()]
            several = len(set(waiting).union(self._ended_last, *callers)) > 1
        return Slots(depth=depth, in_flight=self._at_server, just_in_time=several)

    def start(self, batch: Batch, now: float, pipeline: Pipeline, callers: Collection[str]) -> Sent:
        """A batch leaves, and is here until `ended`."""
        for other in self._in_flight.values():
            other.alone = other.alone and other.off
        workers, slow_at = pipeline.most_workers, math.inf
        if workers > 1:
            expected = pipeline.times.predict([item.length for item in batch.items])
            slow_at = now + (
                _SLOW_UNKNOWN if expected is None else _SLOW_SECONDS + _SLOW * expected
            )
        sent = self._in_flight[batch.id] = Sent(
            open_rows=len(batch.items),
            began=now,
            behind=self._at_server >= workers,
            slow_at=slow_at,
            alone=not self._at_server,
            callers=callers,
        )
        self._empty.clear()
        return sent

    def carry(self, sent: Sent, work: Coroutine[Any, Any, None]) -> None:
        """Send a batch by a coroutine, which calls `ended`, also where it is cancelled."""
        sent.carrying = EagerCoroutine(work, _unheard, asyncio.get_running_loop())

    @property
    def any(self) -> bool:
        """Whether the server has a batch."""
        return self._at_server > 0

    @property
    def _at_server(self) -> int:
        return sum([not flight.off for flight in self._in_flight.values()])

    def has(self, batch: Batch | None) -> bool:
        """Whether a batch has left and not ended."""
        return batch is not None and batch.id in self._in_flight

    def sent(self, batch: Batch) -> Sent:
        """What is known of a batch that has not ended."""
        return self._in_flight[batch.id]

    def slow(self, now: float) -> int:
        """How many are overdue."""
        return sum(flight.slow_at <= now for flight in self._in_flight.values())

    def next_slow(self, now: float) -> float:
        """When one more will be; infinity when none can."""
        slow_times = [one.slow_at for one in self._in_flight.values() if one.slow_at > now]
        return min(slow_times, default=math.inf)

    def ended(self, batch: Batch) -> Collection[str]:
        """A batch that left the server has its answer, or was dropped; says whose rows it had."""
        self._ended_last = self._in_flight.pop(batch.id).callers
        if not self._in_flight:
            self._empty.set()
        return self._ended_last

    def off_server(self, batch: Batch, now: float) -> None:
        """The server is done with a batch."""
        sent = self._in_flight[batch.id]
        sent.left_at, sent.behind, sent.slow_at = now, False, math.inf
        for other in self._in_flight.values():
            if other.behind:
                other.began, other.behind = now, False

    def unwanted(self, batches: Iterable[BatchId]) -> None:
        """A row in each of these is no longer wanted; a batch without any that is ends now."""
        for batch in batches:
            flight = self._in_flight.get(batch)
            if flight is not None:
                flight.open_rows -= 1
                if not flight.open_rows and flight.carrying is not None:
                    flight.carrying.cancel()

    async def cancel_all(self) -> None:
        """End everything, and return when it has ended."""
        for flight in list(self._in_flight.values()):
            if flight.carrying is not None:
                flight.carrying.cancel()
        await self._empty.wait()


def patience(batch: Batch, settings: BatchSettings, now: float, pipeline: Pipeline) -> float:
    """Seconds for which a batch is awaited: as long as a caller is, or as such a batch may take.

    Its members' deadlines never shorten that: under overload all that leaves is near its deadline,
    and a time-out that a sound server cannot meet would be no evidence that this one hangs.
    """
    expected = pipeline.times.predict([item.length for item in batch.items])
    usual = 0.0 if expected is None else _SLOW_SECONDS + _SLOW * expected
    last = max([item.deadline for item in batch.items]) - now
    return max(settings.request_timeout_seconds, usual, last) + _GRACE


async def replied(
    ask: Callable[[], Awaitable[BatchReply]], leaves: Callable[[BatchReply], None] | None = None
) -> BatchReply | Unserved:
    """The reply to a batch, or why there is none; whatever `ask` raises is such a reason.

    `leaves` is told when the server is done with a batch whose answer is still to be cut.
    """
    try:
        reply = await ask()
        if isinstance(reply, UncutReply):
            if leaves is not None:
                leaves(reply)
            return await reply.cut()
        return reply
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        # A traceback keeps what the batch consists of, in a cycle where the error is a future's.
        return our_bug(error).with_traceback(None)


def _unheard(_: None, error: BaseException | None) -> None:
    """Whatever it meets a batch tells its rows' callers."""


def noted(tell: Callable[..., object], *what: object) -> None:
    """Tell the policy something; if it fails over that, no caller suffers for it."""
    try:
        tell(*what)
    except Exception:
        logger.exception("the policy failed over what it was told")


def our_bug(bug: BaseException) -> Unserved:
    """The error for whatever was not foreseen, so that no caller waits for ever."""
    if isinstance(bug, Unserved):
        return bug
    logger.error("a batch failed in the sidecar", exc_info=bug)
    return Unserved(f"error in the sidecar: {bug!r}", status=500)


class BatchCounts:
    """What ledger, histograms and log are told of each batch of one batcher."""

    def __init__(self, ledger: Ledger, durations: Durations) -> None:
        self._ledger = ledger
        self._durations = durations

    def leaves(self, batch: Batch, members: Members, now: float) -> None:
        """A batch leaves: its rows wait no more."""
        for item, (pending, _) in zip(batch.items, members, strict=True):
            self._ledger.leave(len(pending.call.rows), pending.waiting)
            pending.leaves(batch.id, len(batch.items), now)
            self._durations.queue.observe(now - item.arrived)
        self._ledger.batch_leaves(batch.reason, len(batch.items), now)
        self._durations.batch_size.observe(len(batch.items))
        if logger.isEnabledFor(logging.DEBUG):
            # By these ids the logs of its callers are found.
            traces = sorted({pending.terms.trace or "-" for pending, _ in members})
            logger.debug(
                "batch %d: %d rows, %s, traces %s",
                *(batch.id, len(members), batch.reason, traces),
                extra=about(reason=batch.reason, trace=" ".join(traces)),
            )

    def ends(self, batch: Batch, reply: BatchReply | None, now: float) -> None:
        """A batch is off the server, with a reply or without one."""
        self._ledger.batch_ends(len(batch.items), now)
        if reply is not None:
            self._ledger.computed(reply.tokens, reply.padded_tokens, reply.long_rows)
            self._durations.model.observe(reply.compute_seconds)


_MOST_RESTS: Final = 3  # per row of a call


def again(
    pending: PendingRequest,
    item: Item,
    error: Unserved,
    *,
    idempotent: bool,
    alone: bool,
    shared: bool,
) -> Item | Unserved:
    """The row of a batch as it is tried again, or the error that ends its call.

    `idempotent`: the settings let a row be sent again when its outcome is unknown; the
    model may forbid it. `alone`: the server had nothing beside the batch, and `shared`: the batch
    had rows of several callers, of whom one may have caused that the server is busy.
    """
    row = item._replace(request_group=None)  # the model knows its group already
    if isinstance(error, Busy):
        # Nothing was done for it, so it may be sent again in any case.
        if shared and error.answered:
            return apart(row)
        pending.rests += 1
        return row if pending.rests <= _MOST_RESTS * len(pending.call.rows) else error
    if not (isinstance(error, Lost) and idempotent and pending.call.description.idempotent):
        return error
    if isinstance(item.key, Alone):
        return Fatal() if alone else error
    return row._replace(key=Alone(item.id))


class Quarantine:
    """Rows over which the server died, each of which is tried once more by itself.

    No policy sees them: they wait here, and leave before all others as soon as the server has
    nothing. No other batch leaves until then, and while one of them runs. But when a batch is slow
    it may hang: then other batches share the workers that are left, and only these rows wait.
    """

    def __init__(self, in_flight: InFlight, relieved: Callable[[], None]) -> None:
        """`relieved` is called when the last row that waits here was discarded."""
        self._in_flight = in_flight
        self._relieved = relieved
        self._waiting: dict[ItemId, Item] = {}
        self._trial: Batch | None = None
        """The last one that left."""

    def takes(self, item: Item) -> bool:
        """Whether a row that is tried again is one of these; it waits here then."""
        if not isinstance(item.key, Alone):
            return False
        self._waiting[item.id] = item
        return True

    def discard(self, item_id: ItemId) -> None:
        """A row waits no more, if it did."""
        if self._waiting.pop(item_id, None) is not None and not self._waiting:
            self._relieved()

    @property
    def can_leave(self) -> bool:
        """Whether a row waits and the server has nothing."""
        return bool(self._waiting) and not self._in_flight.any

    def leave(self, policy: BasePolicy) -> Batch:
        """Release the row that is due first."""
        first = min(self._waiting.values(), key=lambda item: item.due)
        del self._waiting[first.id]
        self._trial = policy.release_again(first)
        return self._trial

    def depth(self, depth: int, now: float) -> int:
        """How many batches the server may hold, of `depth` that it can."""
        if self._in_flight.slow(now) or not (self._waiting or self._in_flight.has(self._trial)):
            return depth
        return min(depth, 1)
