"""How the server behind is: known by what becomes of batches, and else by a probe.

A probe is a request of one row that the server answered a while ago, sent once more with nobody
waiting for it. `CircuitBreaker` decides when; this shell keeps such requests and sends one at a
time.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Hashable
from typing import Final

from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_scheduling.core.base import BasePolicy
from batchedmodel_scheduling.core.policy import Batch
from batchedmodel_sidecar.answers import RawBatch
from batchedmodel_sidecar.backends.base import Infer
from batchedmodel_sidecar.batching.batch_reply import RawReply
from batchedmodel_sidecar.batching.circuit_breaker import CircuitBreaker
from batchedmodel_sidecar.batching.in_flight import InFlight, Sent, patience, replied
from batchedmodel_sidecar.batching.isolation import Alone, Standing
from batchedmodel_sidecar.calls import Call, Row, Value, request_of
from batchedmodel_sidecar.errors import Busy, Lost, Unserved
from batchedmodel_sidecar.model import ReadyModel, take

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
        told: Callable[[], None],
        *,
        idempotent: bool,
    ) -> None:
        """`told` is called when a probe has ended, which may have changed the circuit.

        Without `idempotent` nothing is sent twice, and there are no probes.
        """
        self.circuit: Final = CircuitBreaker()
        self.standing: Final = Standing()
        """Of the server's callers."""
        self._infer = infer
        self._clock = clock
        self._in_flight = in_flight
        self._told = told
        self._idempotent = idempotent
        self._kept: dict[tuple[str, Hashable], Call] = {}
        """By caller and key a call of one row that was answered; the newest last."""
        self._keeps_at = 0.0
        self._probe: asyncio.Task[None] | None = None

    def replied(self, sent: Sent, reply: BatchReply) -> None:
        """A batch that has not ended has a reply."""
        self.circuit.replied(reply, self._clock(), since=sent.began, callers=sent.callers)

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
        # What ends connections for one who goes apart ends them for nobody else.
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
            self._kept.pop((caller, call.key), None)
            self._kept[caller, call.key] = _copy(call)
            if len(self._kept) > _MOST_KEPT:
                # The oldest of whoever has most, so that others' stay.
                of = Counter(caller for caller, _ in self._kept)
                del self._kept[max(self._kept, key=lambda kept: of[kept[0]])]

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
            for (caller, _), call in self._kept.items()
            if take(call, *models) and not rests(call.key, caller)
        ]
        now = self._clock()
        if not calls or not self.circuit.probe_due(now):
            return
        key, seconds = failed.items[0].key, patience(failed, settings, now, policy.pipeline)
        # Stable: of these the newest is last.
        calls.sort(key=lambda kept: (kept[0] not in callers, kept[1].key != key))
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
            # A server that dies beside others' batches may have died of those.
            self.circuit.probe_failed(reply, self._clock())
        outcome = type(reply).__name__ if isinstance(reply, Unserved) else "answered"
        logger.info("the model was asked what it answered before: %s", outcome)
        self._told()


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
