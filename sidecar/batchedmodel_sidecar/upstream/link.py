"""The link to a server of somebody else's: its readiness, and one batch at a time.

Such a server has no events and no batch extension: it is asked for its readiness, and it has one
status for all rows of a request. What it refuses is cut in parts by `isolation`; this shell sends
the parts and keeps what came back for each row.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Sequence
from typing import Final

from batchedmodel_contract.batch_wire import BatchRequest
from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_sidecar.calls import Output, RawBatch, Row, RowAnswer, Said
from batchedmodel_sidecar.errors import Busy, Lost, Unserved
from batchedmodel_sidecar.isolation import (
    Isolation,
    MemoryRoom,
    Rows,
    Verdict,
    judged,
)
from batchedmodel_sidecar.link import LinkListener, LinkStatus
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.replies import RawReply, RowFailure
from batchedmodel_sidecar.upstream.client import Client, Deaf, Unreachable
from batchedmodel_sidecar.upstream.dialect import (
    Dealt,
    Dialect,
    NotReady,
    Posting,
    Probe,
    Response,
)
from batchedmodel_sidecar.upstream.headers import Headers, end_to_end, shared

logger: Final = logging.getLogger(__name__)

_CHECK_SECONDS: Final = 2.0  # between questions for readiness
_OFTEN_SECONDS: Final = 0.2  # while it is not ready, or may not be for long
_DOUBT_SECONDS: Final = 2.0  # after a broken connection: a server that stops may answer for a while
_ANSWER_WITHIN: Final = 5.0
_SHOWN_BYTES: Final = 500
_JUDGED_BYTES: Final = 16_384
_GROW_AFTER_SECONDS: Final = 60.0
_REST_SECONDS: Final = 1.0  # for a busy server that does not say how long
_MOST_DIGITS: Final = 9
_NONSENSE: Final = "nonsense"
_SERVER_ERROR: Final = 500


class ForeignLink:
    """Follows one server and carries batches to it in its own protocol."""

    def __init__(
        self,
        *,
        client: Client,
        probe: Probe,
        dialect: Dialect,
        listener: LinkListener,
        idempotent: bool,
    ) -> None:
        """`idempotent` says whether a row may be sent again after its batch was refused."""
        self._client = client
        self._probe = probe
        self._dialect = dialect
        self._listener = listener
        self._idempotent = idempotent
        self._model: ReadyModel | None = None
        self._reason = "the model has not been reached yet"
        self._stuck = False
        self._closely = False
        self._doubted_until = -math.inf
        self._ask_now = asyncio.Event()
        self._at_work = 0
        """Batches that the server has now."""
        self._room = MemoryRoom(grow_after=_GROW_AFTER_SECONDS)

    @property
    def status(self) -> LinkStatus:
        """Whether the model can be asked now."""
        return LinkStatus(model=self._model, reason=self._reason, stuck=self._stuck)

    async def follow(self) -> None:
        """Ask for readiness for ever: nothing else tells when a foreign server comes or goes."""
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
            except Unreachable:
                self._lose("the model cannot be reached")
            except Exception as bug:
                # What a server says must not end the process that stands in front of it.
                logger.error("check", exc_info=bug)
                self._lose(f"error in the sidecar: {type(bug).__name__}")
            doubted = asyncio.get_running_loop().time() < self._doubted_until
            often = self._model is None or self._closely or doubted
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_OFTEN_SECONDS if often else _CHECK_SECONDS):
                    await self._ask_now.wait()

    async def infer(self, request: BatchRequest, seconds: float) -> RawReply:
        """One request for the whole batch, and more if it is refused; raises `Unserved`."""
        assert isinstance(request, RawBatch), "a call without an envelope came here: our bug"
        self._at_work += 1
        try:
            return await self._served(request, asyncio.get_running_loop().time() + seconds)
        finally:
            self._at_work -= 1

    def watch(self, closely: bool) -> None:
        """See `Link`."""
        self._closely = closely
        self._ask_now.set()

    async def close(self) -> None:
        """Hang up."""
        await self._client.close()

    async def _served(self, batch: RawBatch, until: float) -> RawReply:
        clock = asyncio.get_running_loop().time
        search = Isolation(batch.owners, batch.deadlines, idempotent=self._idempotent)
        outcome = _Outcome(batch.owners)
        started = clock()
        while (rows := search.next(clock())) is not None:
            members = [batch.rows[row] for row in rows]
            posting = self._dialect.posting(members, batch.envelope)
            try:
                response = await self._post(posting, until - clock())
                verdict = judged(response.status, response.body[:_JUDGED_BYTES])
                if verdict in (Verdict.BUSY, Verdict.WHOLE):
                    alone = outcome.of_one_call(search.whole())
                    raise _refusal(response, busy=verdict is Verdict.BUSY, alone=alone)
            except Unserved as fault:
                if search.calls == 1:
                    raise
                # It is no row's fault: what has no answer yet fares as a whole batch would have.
                outcome.fault = fault
                break
            self._judge(search, outcome, verdict, rows, members, response)
        outcome.failed(search.expired, Unserved("no time was left to try this alone", status=504))
        self._learn(search, clock())
        whole = search.calls == 1 and search.largest_fine > 0
        return outcome.reply(clock() - started, whole=whole)

    async def _post(self, posting: Posting, seconds: float) -> Response:
        """The answer to one request, whose end may tell of the server; raises `Unserved`."""
        try:
            response = await self._client.post(posting, seconds)
        except Deaf:
            self._stuck = True
            raise
        except Busy as refused:
            self._lose(refused.message)
            self._ask_now.set()
            raise
        except Lost:
            # Perhaps one worker died, or this connection alone: ask before all callers are refused.
            self._doubted_until = asyncio.get_running_loop().time() + _DOUBT_SECONDS
            self._ask_now.set()
            raise
        self._stuck = False
        return response

    def _judge(
        self,
        search: Isolation,
        outcome: "_Outcome",
        verdict: Verdict,
        rows: Rows,
        members: Sequence[Row],
        response: Response,
    ) -> None:
        """Tell the search what became of rows that were sent, and keep their answers.

        Raises `Unserved` when the server is broken, so that the batch fails as a whole.
        """
        match verdict:
            case Verdict.FINE:
                alone = outcome.of_one_call(rows)
                try:
                    dealt = self._dialect.dealt(response, members, alone=alone)
                except InvalidInput as error:
                    nonsense = Unserved(f"the model answers nonsense: {error}", status=502)
                    outcome.failed(search.spoilt(_NONSENSE), nonsense)
                    if search.broken:
                        raise nonsense from error
                    return
                search.fine()
                outcome.answered(rows, dealt, _said(response, dealt, alone=alone))
                return
            case Verdict.SPOILT:
                settled = search.spoilt((response.status, response.body))
                if search.broken:
                    raise _refusal(response, busy=False, alone=False)
            case _:  # outgrown: the others have ended the search
                settled = search.outgrown()
        outcome.refused(settled, response)

    def _learn(self, search: Isolation, now: float) -> None:
        """Pass on what the server's memory seems to hold."""
        if search.room is not None:
            self._room.outgrown(search.room, now)
            logger.warning("the model ran out of memory; at most %s rows", self._room.rows)
        elif not self._room.fine(search.largest_fine, now):
            return
        if self._room.rows is not None:
            self._listener.memory_bound(self._room.rows)

    async def _check(self) -> None:
        await self._probe.check_ready(self._client.ask)
        # It answers again: whatever it was stuck in is over.
        self._stuck = False
        if self._model is not None:
            return
        description = await self._probe.describe(self._client.ask)
        self._room = MemoryRoom(grow_after=_GROW_AFTER_SECONDS)
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


class _Outcome:
    """What has become of each row of one batch."""

    def __init__(self, owners: Sequence[int]) -> None:
        """`owners` is the call of each row."""
        self._owners = owners
        self._answers: list[RowAnswer | RowFailure | None] = [None] * len(owners)
        self._names: tuple[Output, ...] = ()
        self.fault: Unserved | None = None
        """What ended the search before every row was settled."""

    def of_one_call(self, rows: Rows) -> bool:
        """Whether what these rows are told is told to one caller."""
        return len({self._owners[row] for row in rows}) == 1

    def answered(self, rows: Rows, dealt: Dealt, said: Said) -> None:
        self._names = dealt.outputs
        for row, values in zip(rows, dealt.rows, strict=True):
            self._answers[row] = RowAnswer(values, said)

    def refused(self, rows: Rows, response: Response) -> None:
        """These rows get the server's own words."""
        said, message = _words(response, alone=self.of_one_call(rows))
        for row in rows:
            self._answers[row] = RowFailure(status=response.status, message=message, said=said)

    def failed(self, rows: Sequence[int], error: Unserved) -> None:
        """These rows get words of ours."""
        for row in rows:
            self._answers[row] = RowFailure(status=error.status, message=error.message)

    def reply(self, seconds: float, *, whole: bool) -> RawReply:
        """The reply, once every row is settled or there is a fault."""
        pairs = zip(self._owners, self._answers, strict=True)
        refused = {owner for owner, answer in pairs if _is_server_error(answer)}
        settled = len(self._answers) - self._answers.count(None)
        if self.fault is None:
            assert settled == len(self._answers), "a row was left without an answer: our bug"
        return RawReply(
            outputs=(),
            statuses=(),
            errors=(),
            compute_seconds=seconds,
            queue_seconds=0.0,
            tokens=settled,
            padded_tokens=settled,
            names=self._names,
            answers=tuple(self._answers),
            refused=len(refused),
            fault=self.fault,
            whole=whole,
        )


def _is_server_error(answer: RowAnswer | RowFailure | None) -> bool:
    return isinstance(answer, RowFailure) and answer.status >= _SERVER_ERROR


def _said(response: Response, dealt: Dealt, *, alone: bool) -> Said:
    return Said(
        status=response.status,
        headers=end_to_end(response.headers) if alone else shared(response.headers, refused=False),
        content_type=response.content_type,
        frame=dealt.frame,
    )


def _words(response: Response, *, alone: bool) -> tuple[Said, str]:
    """What the refused are told, whole, and its beginning for logs."""
    given = end_to_end(response.headers) if alone else shared(response.headers, refused=True)
    said = Said(
        status=response.status,
        headers=given,
        content_type=response.content_type,
        body=response.body,
    )
    return said, response.body[:_SHOWN_BYTES].decode("utf-8", "replace")


def _refusal(response: Response, *, busy: bool, alone: bool) -> Unserved:
    """What all members of a batch are told that no row has spoilt."""
    said, message = _words(response, alone=alone)
    if not busy:
        return Unserved(message, status=said.status, said=said)
    seconds = _retry_after(response.headers)
    return Busy(
        message,
        status=said.status,
        retry_after=_REST_SECONDS if seconds is None else seconds,
        said=said,
    )


def _retry_after(headers: Headers) -> float | None:
    """Seconds of the header, which may also be a date: that is passed on and not understood."""
    for name, value in headers:
        if name.lower() == "retry-after" and value.isascii() and value.isdigit():
            return float(value[:_MOST_DIGITS])
    return None
