"""The batches that are on their way: who still wants them, which had company, and their end.

Owned by the batcher. A batch that nobody wants any more is dropped; the server hears of it by the
end of its connection. A batch that takes several times as long as was expected is slow: it may
hang, and with several workers the others go on without it.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final

from batchedmodel_contract.inference.batch import BatchReply
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_http.eager_coroutine import EagerCoroutine
from batchedmodel_scheduling.core.pipeline import Pipeline
from batchedmodel_scheduling.core.policy import Batch, BatchId, Slots
from batchedmodel_sidecar.batching.batch_reply import UncutReply
from batchedmodel_sidecar.errors import Unserved

logger: Final = logging.getLogger(__name__)

_GRACE: Final = 5.0  # seconds beyond the time that a caller has
_SLOW: Final = 4.0  # times what was expected
_SLOW_SECONDS: Final = 1.0  # more, for what nobody can expect
_SLOW_UNKNOWN: Final = 10.0  # seconds, of a server of which nothing is known yet


@dataclass(slots=True)
class Sent:
    """A batch that has left and not ended."""

    wanted: int
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
    noted: bool = False
    """Whether all that follows from its release is noted."""
    left: float = math.inf
    """When the server was done with it, though its answer is still being cut."""

    @property
    def off(self) -> bool:
        """Whether the server is done with it."""
        return self.left < math.inf

    @property
    def uncharged_since(self) -> float:
        """From when on its time has not been charged to anybody."""
        return self.left if self.off else self.began

    @property
    def shared(self) -> bool:
        """Whether it has rows of several callers."""
        return len(self.callers) > 1


class InFlight:
    """What carries batches, by batch."""

    def __init__(self) -> None:
        """Nothing is on its way."""
        self._in_flight: dict[BatchId, Sent] = {}
        self._off = 0
        """How many of them the server is done with."""
        self._ended_last: Collection[str] = ()
        """Whose rows the batch had that ended last."""
        self._empty = asyncio.Event()
        self._empty.set()

    def slots(self, depth: int, waiting: Collection[str]) -> Slots:
        """How much of a server that can hold `depth` batches is taken; see `Slots`.

        `waiting`: the callers whose rows wait. While several callers have rows here, or had until
        now, full batches leave just in time: one that left early could take nobody along who comes
        meanwhile.
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
            wanted=len(batch.items),
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
        return len(self._in_flight) - self._off

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
        found = [one.slow_at for one in self._in_flight.values() if one.slow_at > now]
        return min(found, default=math.inf)

    def ended(self, batch: Batch) -> Collection[str]:
        """A batch that left the server has its answer, or was dropped; says whose rows it had."""
        self._off -= 1
        self._ended_last = self._in_flight.pop(batch.id).callers
        if not self._in_flight:
            self._empty.set()
        return self._ended_last

    def leaves(self, batch: Batch, now: float) -> None:
        """The server is done with a batch."""
        sent = self._in_flight[batch.id]
        sent.left, sent.behind, sent.slow_at = now, False, math.inf
        self._off += 1
        for other in self._in_flight.values():
            if other.behind:
                other.began, other.behind = now, False

    def unwanted(self, batches: Iterable[BatchId]) -> None:
        """A row in each of these is no longer wanted; a batch without any that is ends now."""
        for batch in batches:
            flight = self._in_flight.get(batch)
            if flight is not None:
                flight.wanted -= 1
                if not flight.wanted and flight.carrying is not None:
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
