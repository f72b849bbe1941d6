"""The link to a server of somebody else's: its readiness, and the batches on their way to it.

Such a server has no events and no batch extension: it is asked for its readiness, and it has one
status for all rows of a request. `Bisection` cuts what it refuses into parts; this shell sends the
parts and keeps what came back for each row.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.inference.bisection import Bisection, Rows
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_scheduling.batching.decisions import MemoryCap
from batchedmodel_sidecar.backends.upstream.batch_result import (
    BatchResult,
    Evidence,
    MemoryRoom,
    Verdict,
    judged,
)
from batchedmodel_sidecar.backends.upstream.client import Client, Deaf
from batchedmodel_sidecar.backends.upstream.protocol import (
    BackendProtocol,
    BackendRequest,
    Deal,
    NotReady,
    Response,
    Subject,
)
from batchedmodel_sidecar.calls import RawBatch, UncutReply
from batchedmodel_sidecar.errors import Busy, Lost, Unserved
from batchedmodel_sidecar.model import LinkListener, LinkStatus, ReadyModel

logger: Final = logging.getLogger(__name__)

_CHECK_SECONDS: Final = 2.0  # between questions for readiness
_OFTEN_SECONDS: Final = 0.2  # while it is not ready, or may not be for long
_DOUBT_SECONDS: Final = 2.0  # after a broken connection: a server that stops may answer for a while
_ANSWER_WITHIN: Final = 5.0
_JUDGED_BYTES: Final = 16_384
_NONSENSE: Final = "nonsense"


@dataclass(slots=True)
class _Search:
    """What is known of one batch until each of its rows is settled."""

    batch: RawBatch
    subject: Subject | None
    bisection: Bisection
    started: float
    result: BatchResult
    seconds: float = 0.0
    """For how long the server had it, where its answer is divided behind that."""


class UpstreamLink:
    """Follows one server and carries batches to it in its own protocol."""

    def __init__(
        self,
        *,
        client: Client,
        protocol: BackendProtocol,
        deal: Deal,
        listener: LinkListener,
        idempotent: bool,
        workers: Callable[[], int],
    ) -> None:
        """Needs a running loop.

        `deal` cuts a response into rows; `idempotent` says whether a row may be sent again after
        its batch was refused; `workers`, how many batches the server may have at a time.
        """
        self._client = client
        self._protocol = protocol
        self._deal = deal
        self._listener = listener
        self._idempotent = idempotent
        self._model: ReadyModel | None = None
        self._reason = "the model has not been reached yet"
        self._stuck = False
        self._closely = False
        self._doubted_until = -math.inf
        self._ask_now = asyncio.Event()
        self._at_work = 0
        """Requests that the server has now, or that wait for it to be free; of any kind."""
        self._clock = asyncio.get_running_loop().time
        self._workers = workers
        self._places = asyncio.Semaphore(0)
        """One for each worker; a search may go on while the server has the next batch."""
        self._most = 0
        """How many places there are."""
        self._cutting = False
        """Whether a batch's answer is being divided while the server has the next."""
        self._room = MemoryRoom()
        self._evidence = Evidence()

    @property
    def status(self) -> LinkStatus:
        """Whether the model can be asked now."""
        return LinkStatus(model=self._model, reason=self._reason, stuck=self._stuck)

    async def follow(self) -> None:
        """Ask for readiness for ever: nothing else says when an upstream server comes or goes."""
        while True:
            self._ask_now.clear()
            try:
                async with asyncio.timeout(_ANSWER_WITHIN):
                    await self._check()
            except TimeoutError:
                # A server with one thread answers nothing while it computes, and that is no loss.
                if not self._at_work:
                    self._lose("the model does not answer the question for readiness")
            except (NotReady, InvalidInput) as error:
                self._lose(str(error))
            except Exception as bug:
                # What a server says must not end the process that stands in front of it.
                logger.error("check", exc_info=bug)
                self._lose(f"error in the sidecar: {type(bug).__name__}")
            doubted = self._clock() < self._doubted_until
            often = self._model is None or self._closely or doubted
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_OFTEN_SECONDS if often else _CHECK_SECONDS):
                    await self._ask_now.wait()

    async def infer(self, request: BatchRequest, seconds: float) -> BatchReply:
        """One request for the whole batch, and more if it is refused; raises `Unserved`."""
        assert isinstance(request, RawBatch), "a call without an envelope came here: our bug"
        await asyncio.sleep(0)  # what follows needs a task
        subject = self._protocol.subject(request.envelope, request.rows[0])
        result = BatchResult(request.owners)
        bisection = Bisection(
            request.owners,
            request.deadlines,
            idempotent=self._idempotent,
            callers=request.callers,
            # Where nothing is proven of the outputs, calls go alone until something is.
            fits=lambda rows: (
                result.of_one_call(rows) or not self._evidence.wants_trial(subject, len(rows))
            ),
        )
        search = _Search(request, subject, bisection, self._clock(), result)
        return await self._served(search, seconds)

    @contextmanager
    def working(self) -> Iterator[None]:
        """What passes through is the server's work while the block runs."""
        self._at_work += 1
        try:
            yield
        finally:
            self._at_work -= 1

    def watch(self, closely: bool) -> None:
        """See `Link`."""
        self._closely = closely
        self._ask_now.set()

    async def close(self) -> None:
        """Hang up."""
        await self._client.close()

    async def _served(self, search: _Search, seconds: float) -> BatchReply:
        """Send requests until every row of a batch is settled; raises `Unserved`.

        Each request has so many seconds, whatever earlier ones took. The search ends, because no
        row is sent again after its deadline.
        """
        clock = self._clock
        batch, bisection, result = search.batch, search.bisection, search.result
        while (rows := bisection.next(clock())) is not None:
            members = [batch.rows[row] for row in rows]
            request = self._protocol.backend_request(members, batch.envelope)
            if result.of_one_call(rows):
                request = replace(request, headers=(*request.headers, *batch.traces[rows[0]]))
            try:
                response = await self._post(request, seconds)
            except Unserved as fault:
                if fault.answered:
                    settled = bisection.refused(fault.message, by_caller=True)
                    if len(settled) == len(batch.rows):
                        raise
                    result.failed(settled, fault)
                    continue
                if bisection.calls == 1:
                    raise
                # It is no row's fault: what has no answer yet fares as a whole batch would.
                result.fault = fault
                break
            verdict = judged(response.status, bytes(response.body[:_JUDGED_BYTES]))
            if verdict is Verdict.FINE:
                first = bisection.calls == 1 and len(rows) == len(batch.rows)
                if first and response.memory is not None and not self._cutting:
                    return self._uncut(search, rows, response, seconds)
                await self._divide(search, rows, response)
            elif verdict is Verdict.OUTGROWN:
                result.refused(bisection.outgrown(), response)
            elif verdict is Verdict.BUSY:
                busy = result.refusal(bisection.whole(), response)
                if bisection.calls == 1:
                    raise busy
                result.fault = busy
            else:
                is_whole, words = verdict is Verdict.WHOLE, bytes(response.body)
                settled = bisection.refused((response.status, words), by_caller=is_whole)
                if bisection.broken or (is_whole and len(settled) == len(batch.rows)):
                    raise result.refusal(tuple(range(len(batch.rows))), response)
                result.refused(settled, response)
        result.failed(bisection.expired, Unserved("no time was left to try this alone", status=504))
        self._learn(bisection, clock())
        # One request that was refused took the time of nothing.
        passes = bisection.calls if bisection.largest_fine else 0
        return result.reply(search.seconds or clock() - search.started, passes=passes)

    def _uncut(self, search: _Search, rows: Rows, response: Response, seconds: float) -> UncutReply:
        """A large answer to a whole batch: the server may have the next while it is divided."""
        search.seconds = self._clock() - search.started

        async def cut() -> BatchReply:
            self._cutting = True
            try:
                await self._divide(search, rows, response)
            finally:
                self._cutting = False
            # Where it made no sense, the search goes on.
            return await self._served(search, seconds)

        return UncutReply(
            compute_seconds=search.seconds,
            tokens=len(rows),
            padded_tokens=len(rows),
            cut=cut,
        )

    async def _divide(self, search: _Search, rows: Rows, response: Response) -> None:
        """Give rows their parts of an answer; raises `Unserved` when the server is broken."""
        bisection, result, subject = search.bisection, search.result, search.subject
        members = [search.batch.rows[row] for row in rows]
        alone, unproven = result.of_one_call(rows), None
        try:
            dealt = await self._deal(self._protocol, response, members, alone)
            names = [output.name for output in dealt.outputs]
            unproven = self._evidence.saw(subject, names, len(rows))
            if unproven is not None and not alone:
                rule = (
                    f"is {len(rows)} long for {len(rows)} rows, which may be chance: "
                    "no other number was seen yet"
                )
                raise InvalidInput(f"outputs.{unproven}.shape", rule)
        except InvalidInput as error:
            if unproven is None:
                self._evidence.contradicted(subject)
            message = f"the model answers nonsense: {error}"
            nonsense = Unserved(message, status=502, answered=True)
            result.failed(bisection.refused(_NONSENSE), nonsense)
            if bisection.broken:
                raise nonsense from error
        except Unserved as failure:
            # The server did its part: neither it nor a row is to blame.
            bisection.fine()
            result.failed(rows, failure)
        else:
            bisection.fine()
            result.answered(rows, dealt, response)

    async def _post(self, request: BackendRequest, seconds: float) -> Response:
        """The answer to one request; how it ends may change the status. Raises `Unserved`."""
        if self._most != self._workers():
            self._most = self._workers()
            self._places = asyncio.Semaphore(self._most)
        self._at_work += 1
        try:
            async with self._places:
                response = await self._client.post(request, seconds)
        except Deaf:
            self._stuck = True
            raise
        except Busy as refused:
            if self._at_work > 1:
                self._doubt_it()  # it has other batches, so perhaps it is there
            else:
                self._lose(refused.message)
                self._ask_now.set()
            raise
        except Lost:
            # Perhaps only one worker or this connection died: ask before all callers are refused.
            self._doubt_it()
            raise
        finally:
            self._at_work -= 1
        self._stuck = False
        return response

    def _doubt_it(self) -> None:
        self._doubted_until = self._clock() + _DOUBT_SECONDS
        self._ask_now.set()

    def _learn(self, search: Bisection, now: float) -> None:
        """Pass on what the server's memory seems to hold."""
        if search.room is not None:
            self._room.outgrown(search.room, now)
            logger.warning("the model ran out of memory; at most %s rows", self._room.rows)
        elif not self._room.fine(search.largest_fine, now):
            return
        if self._room.rows is not None:
            self._listener.memory_bound(MemoryCap(cost=None, rows=self._room.rows))

    async def _check(self) -> None:
        await self._protocol.check_ready(self._client.ask)
        # It answers again: whatever it was stuck in is over.
        self._stuck = False
        if self._model is not None:
            return
        description = await self._protocol.describe(self._client.ask)
        self._room = MemoryRoom()
        self._evidence = Evidence()
        self._model = ReadyModel(
            description=description, profile=None, tokens=None, depth=1, rows_pad=False
        )
        self._reason = ""
        self._listener.model_ready(self._model)

    def _lose(self, reason: str) -> None:
        if reason != self._reason:
            logger.warning("model not ready: %s", reason)
        self._model = None
        self._reason = reason
        self._listener.model_lost(reason)
