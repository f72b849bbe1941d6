"""How the server behind is: known by what becomes of batches, and else by a probe.

A probe is a request of one row that the server answered a while ago, sent once more without a
caller. `CircuitBreaker` decides when; `Health` keeps such requests and sends one at a time.
`Standing` knows the callers whose calls go by themselves: what a server says of a whole batch says
nothing of each row, so one caller's bad requests would slow all others down.

The circuit opens after several whole batches in a row that the server could not answer: nothing is
sent for a pause that doubles, then one batch tries (half open), and its success closes the circuit
(Nygard, Release It!, 2007). A batch that ran while another one failed is no new evidence: a server
that dies takes all its batches with it, and has died once. The evidence comes from several callers:
what one of them meets again and again may be its own doing, and counts for half of what is needed
at most. Where all that fails is one caller's, a probe tells whether the server is ill. Of refused
calls a small batch weighs little, so that one bad call that is sent often hurts no other caller.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Final

from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_scheduling.batching.decisions import Batch
from batchedmodel_scheduling.batching.policy import BasePolicy
from batchedmodel_scheduling.queue.keys import Alone, Apart
from batchedmodel_sidecar.batching.in_flight import InFlight, Sent, patience, replied
from batchedmodel_sidecar.calls import Answer, Call, RawBatch, RawReply, Row, Value, request_of
from batchedmodel_sidecar.errors import Busy, CallError, Fatal, Lost, Unserved
from batchedmodel_sidecar.model import Infer, ReadyModel, take

_FAILURES: Final = 5
_SEVERAL: Final = 4
"""Refused calls that weigh as much as a batch that failed as a whole."""
_OF_ONE_CALLER: Final = _FAILURES / 2
_MOST_CALLERS_NOTED: Final = 64
_ROUNDING: Final = 1e-6
_PROBES_APART: Final = 1.0  # seconds
_FIRST_PAUSE: Final = 1.0  # seconds
_LONGEST_PAUSE: Final = 30.0
_AFTER_A_LOSS: Final = 0.2  # seconds
# Seconds, whatever the server asks for. Not a pair: see docs/adr/0019.
_SHORTEST_REST: Final = 0.05
_LONGEST_REST: Final = 5.0


class CircuitBreaker:
    """One server's; times are monotonic seconds."""

    def __init__(self) -> None:
        self._evidence: dict[str, float] = {}
        """By caller the weight of the batches that failed since one was answered; a batch's callers
        share its weight. Of callers beyond `_MOST_CALLERS_NOTED` nothing is noted."""
        self._weight = 0.0
        """The weight of all these batches."""
        self.wants_probe = False
        """Whether the last batch gave reason for one."""
        self._probed_at = -math.inf
        self._open = False
        self._pauses = 0
        """Since it opened."""
        self._failed_at = -math.inf
        """When the last batch failed."""
        self._pauses_until = -math.inf
        """Because the circuit is open or the server died: then a batch tries, or a server comes."""
        self._rests_until = -math.inf
        """Because the server asked for it: it is sound, and what its batches say counts."""
        self._is_absent = False
        """Whether the server seems to have died."""

    def closed_to_callers(self, now: float) -> str | None:
        """Why no call is taken now; None when one is, if only as a trial.

        After the pause callers are let in again: without them there would be nothing to try.
        """
        if not self._open or now >= self._resumes_at:
            return None
        return "the model answered none of the last batches; it is tried again soon"

    def back(self) -> None:
        """The server is there again: one that had gone has started anew, and is tried at once."""
        if self._is_absent:
            self._is_absent = False
            self._pauses_until = self._rests_until = -math.inf

    def replied(
        self, reply: BatchReply, now: float, *, since: float, callers: Iterable[str]
    ) -> None:
        """A batch has a reply, in which an upstream server may have answered no row at all.

        The server had it `since` then; `callers` are those whose rows it had.
        """
        if not isinstance(reply, RawReply) or reply.answered:
            self.succeeded(now)
        elif reply.refused:
            self._fail(min(1.0, reply.refused / _SEVERAL), now, since, callers)

    def succeeded(self, now: float) -> None:
        """A batch was answered."""
        if now >= self._pauses_until:  # a batch that left before the pause does not end it
            self._heal()

    def probe_due(self, now: float) -> bool:
        """Whether to ask the server something that it answered before; if so that is noted.

        There are three reasons: enough has failed, but it was all one caller's; a trial failed,
        and its rows may have been bad; the server asked that one key rests.
        """
        wants_probe, self.wants_probe = self.wants_probe, False
        if not wants_probe or now < self._probed_at + _PROBES_APART or now < self._rests_until:
            return False
        self._probed_at = now
        return True

    def probe_answered(self) -> None:
        """The server is well: what failed were the requests."""
        self._pauses_until = -math.inf
        self._heal()

    def probe_failed(self, error: Unserved, now: float) -> None:
        """What the server answered before it does not answer now."""
        if isinstance(error, Busy):
            self.rest(now, error.seconds)
        elif error.status >= 500 and self._weight >= _FAILURES - _ROUNDING and not self._open:
            self._open = True
            self._pause(now)

    def unserved(
        self,
        error: Unserved,
        now: float,
        *,
        since: float,
        callers: Iterable[str],
        pauses: bool = True,
    ) -> None:
        """A batch that the server had `since` then has no answer, or not for all of its rows.

        `pauses`: whether a connection that broke says that the server may have gone.
        """
        if isinstance(error, Busy):
            self.rest(now, error.seconds)
        elif error.status >= 500:
            # A whole batch, and none of its members is to blame.
            self._fail(1.0, now, since, callers)
        if isinstance(error, Lost) and pauses:
            # The link hears of it a little later; a batch sent before that would be lost as well.
            self._pauses_until = max(self._pauses_until, now + _AFTER_A_LOSS)
            self._is_absent = True

    def rest(self, now: float, seconds: float) -> None:
        """The server asked not to be asked for so long."""
        self._rests_until = max(self._rests_until, self._rest_ends(now, seconds))

    def rest_of_key(self, now: float, seconds: float) -> float:
        """The server asked for a rest from one kind of request; returns the rest's end."""
        self.wants_probe = True
        return self._rest_ends(now, seconds)

    @staticmethod
    def _rest_ends(now: float, seconds: float) -> float:
        """The end of a rest that the server asked for; it may ask for nonsense."""
        return now + min(_LONGEST_REST, max(_SHORTEST_REST, seconds))

    def depth(self, depth: int, now: float, *, slow: int = 0) -> int:
        """How many batches the server may hold, of `depth` that it can.

        `slow`: how many of its batches are overdue. A trial does not wait for them.
        """
        if now < self._resumes_at:
            return 0
        return min(depth, slow + 1) if self._open else depth

    def changes_at(self, now: float) -> float:
        """When to look again; infinity when only an event can change anything."""
        return self._resumes_at if now < self._resumes_at else math.inf

    @property
    def _resumes_at(self) -> float:
        return max(self._pauses_until, self._rests_until)

    def _fail(self, weight: float, now: float, since: float, callers: Iterable[str]) -> None:
        if now < self._pauses_until or since < self._failed_at:
            return  # it ran while the last one failed, so it is no new evidence
        self._failed_at = now
        self._is_absent = False  # this batch was sent to a server that was there
        several = set(callers)
        for caller in several:
            if caller in self._evidence or len(self._evidence) < _MOST_CALLERS_NOTED:
                of_caller = self._evidence.get(caller, 0.0) + weight / len(several)
                self._evidence[caller] = min(_OF_ONE_CALLER, of_caller)
        self._weight += weight
        self.wants_probe = self._open or self._weight >= _FAILURES - _ROUNDING
        if not self._open and sum(self._evidence.values()) >= _FAILURES - _ROUNDING:
            self._open, self.wants_probe = True, False
        if self._open:
            self._pause(now)

    def _heal(self) -> None:
        self._evidence.clear()
        self._weight = 0.0
        self._open, self._pauses = False, 0
        self._is_absent = self.wants_probe = False

    def _pause(self, now: float) -> None:
        pause = _FIRST_PAUSE * 2 ** min(self._pauses, 10)
        self._pauses += 1
        self._pauses_until = now + min(_LONGEST_PAUSE, pause)


_FROM: Final = 3.0
"""Refusals, less what answers made good, from which a caller goes apart."""
_MOST: Final = 10.0
_MADE_GOOD: Final = 0.1
"""By an answer."""
_MOST_CALLERS: Final = 1_024


@dataclass(slots=True, kw_only=True)
class _Record:
    refused: float = 0.0
    answered: int = 0
    """Calls of its own, since there is this record."""
    others: int = -1
    """Calls of others that had been answered when a refusal counted last; -1: none has."""


class Standing:
    """How callers fared lately; of too many the first are forgotten.

    A caller that is refused more often than about every tenth time goes apart: each of its calls is
    sent by itself. A refusal counts only if others were answered since the last one that counted:
    where a server refuses everybody, no caller is to blame. A caller over whose row alone a server
    died goes apart at once.
    """

    def __init__(self) -> None:
        self._answered = 0
        self._numbers = count(1)
        self._records: dict[str, _Record] = {}

    def __len__(self) -> int:
        """How many callers there is a record of."""
        return len(self._records)

    def placed(self, call: Call, caller: str) -> Call:
        """The call, with a key of its own if its caller goes apart."""
        if not self.goes_apart(caller):
            return call
        return call.apart(Apart(call.key, caller, next(self._numbers)))

    def goes_apart(self, caller: str) -> bool:
        """Whether a caller's calls share no batch with others'."""
        record = self._records.get(caller)
        return record is not None and record.refused >= _FROM

    def parts(self, caller: str, result: Answer | CallError | None) -> bool:
        """A call of this caller has ended so; whether the caller goes apart from now on."""
        if isinstance(result, Answer):
            self._was_answered(caller)
            return False
        if not isinstance(result, Unserved) or not result.answered:
            return False
        went = self.goes_apart(caller)
        self._was_refused(caller, _FROM if isinstance(result, Fatal) else 1.0)
        return self.goes_apart(caller) and not went

    def _was_answered(self, caller: str) -> None:
        self._answered += 1
        record = self._records.get(caller)
        if record is None:
            return  # nothing bad is known of it, as of nearly everybody
        record.answered += 1
        record.refused -= _MADE_GOOD
        if record.refused <= 0:
            del self._records[caller]

    def _was_refused(self, caller: str, weight: float) -> None:
        if caller not in self._records and len(self._records) >= _MOST_CALLERS:
            del self._records[next(iter(self._records))]
        record = self._records.setdefault(caller, _Record())
        if self._answered - record.answered > record.others:
            record.others = self._answered - record.answered
            record.refused = min(_MOST, record.refused + weight)


logger: Final = logging.getLogger(__name__)

_MOST_BYTES: Final = 65_536
"""Of the rows and parameters of a request that is kept; its envelope has a bound of its own."""
_MOST_KEPT: Final = 4
_KEPT_APART: Final = 1.0  # seconds


class Health:
    """One server's; times are monotonic seconds."""

    def __init__(
        self,
        infer: Infer,
        clock: Callable[[], float],
        in_flight: InFlight,
        on_probe_end: Callable[[], None],
        *,
        idempotent: bool,
    ) -> None:
        """`on_probe_end` is called when a probe has ended, which may have changed the circuit.

        Without `idempotent` nothing is sent twice, and there are no probes.
        """
        self.circuit: Final = CircuitBreaker()
        self.standing: Final = Standing()
        """Of the server's callers."""
        self._infer = infer
        self._clock = clock
        self._in_flight = in_flight
        self._on_probe_end = on_probe_end
        self._idempotent = idempotent
        self._samples: dict[tuple[str, Hashable], Call] = {}
        """By caller and key a call of one row that was answered; the newest last."""
        self._keeps_at = 0.0
        self._probe: asyncio.Task[None] | None = None

    def unserved(self, batch: Batch, sent: Sent, error: Unserved) -> float | None:
        """A batch that has not ended has no answer; until when its key is to rest, if it is.

        It rests for the one caller whose rows the batch had: others may fare better with that key.
        """
        now = self._clock()
        if isinstance(error, Busy) and error.answered:
            rest_ends = self.circuit.rest_of_key(now, error.seconds)
            if sent.shared:
                return None  # the rows of each caller are tried again by themselves
            if not isinstance(batch.items[0].key, Alone):
                return rest_ends
        # A caller that goes apart and ends connections ends its own alone.
        own = all(map(self.standing.goes_apart, sent.callers))
        self.circuit.unserved(error, now, since=sent.began, callers=sent.callers, pauses=not own)
        return None

    def keep(self, caller: str, call: Call) -> None:
        """Remember a caller's call that was answered, if it is small and may be sent again."""
        now = self._clock()
        if now < self._keeps_at or len(call.rows) != 1:
            return
        self._keeps_at = now + _KEPT_APART
        small = call.size + len(repr(call.params)) <= _MOST_BYTES
        if small and self._idempotent and call.description.idempotent:
            self._samples.pop((caller, call.key), None)
            self._samples[caller, call.key] = _copy(call)
            if len(self._samples) > _MOST_KEPT:
                # The oldest of the caller that has most, so that others' stay.
                of = Counter(caller for caller, _ in self._samples)
                del self._samples[max(self._samples, key=lambda sample: of[sample[0]])]

    def probe_if_due(
        self,
        failed: Batch,
        callers: Collection[str],
        models: tuple[ReadyModel, ...],
        settings: BatchSettings,
        policy: BasePolicy,
        rests: Callable[[Hashable, str], bool],
    ) -> None:
        """Send a probe if the circuit wants one, best of another caller or key than what failed.

        It has as much time as the batch that failed. No probe has a key that `rests`: what the
        server would say to it is known.
        """
        if self._probe is not None or not self.circuit.wants_probe:
            return
        calls = [
            (caller, call)
            for (caller, _), call in self._samples.items()
            if take(call, *models) and not rests(call.key, caller)
        ]
        now = self._clock()
        if not calls or not self.circuit.probe_due(now):
            return
        key, seconds = failed.items[0].key, patience(failed, settings, now, policy.pipeline)
        # Stable: of these the newest is last.
        calls.sort(key=lambda sample: (sample[0] not in callers, sample[1].key != key))
        asking = self._ask(*calls[-1], seconds)
        self._probe = asyncio.get_running_loop().create_task(asking, name="probe")

    async def close(self) -> None:
        """End a probe that is under way."""
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)

    async def _ask(self, caller: str, call: Call, seconds: float) -> None:
        alone = not self._in_flight.any
        request = _probe_of(caller, call, self._clock() + seconds, seconds)
        try:
            reply = await replied(lambda: self._infer(request, seconds))
        finally:
            self._probe = None
        if isinstance(reply, RawReply):
            if reply.fault is not None:
                reply = reply.fault
            elif not reply.answered:
                status = 500 if reply.refused else 400
                reply = Unserved("the model refused what it answered before", status=status)
        if not isinstance(reply, Unserved):
            self.circuit.probe_answered()
        elif not isinstance(reply, Lost) or (alone and not self._in_flight.any):
            # A server that dies beside others' batches may have died of their rows.
            self.circuit.probe_failed(reply, self._clock())
        outcome = type(reply).__name__ if isinstance(reply, Unserved) else "answered"
        logger.info("the model was asked what it answered before: %s", outcome)
        self._on_probe_end()


def _copy(call: Call) -> Call:
    """The call with rows of its own: those that came lie in their request's body."""
    rows = tuple(
        Row(tuple(Value(value.shape, bytes(value.data)) for value in row.values), row.length)
        for row in call.rows
    )
    return call.with_rows(rows)


def _probe_of(caller: str, call: Call, deadline: float, seconds: float) -> BatchRequest:
    if call.envelope is None:
        params = [call.params] if call.description.params else ()
        adapters = [call.adapter] * len(call.rows) if call.adapter else ()
        return request_of(call.rows, call.description, seconds, params, adapters)
    return RawBatch(
        inputs=(),
        rows=call.rows,
        envelope=call.envelope,
        owners=(0,),
        callers=(caller,),
        traces=((),),
        deadlines=(deadline,),
    )
