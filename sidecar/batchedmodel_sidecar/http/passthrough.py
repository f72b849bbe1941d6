"""Requests that pass to an upstream server as they are: unbatched, answers streamed, yet counted.

The data handler hands over what it cannot batch, and what asks not to be batched. The server's
answer goes back untouched, errors included. Inferences that cannot be batched use the device as
batches do: they go as few at a time as batches, in fair turns of tenants.

A server may have one thread, which a slow caller must not hold. So what comes here is whole.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple

from aiohttp import web

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_http.request_head import path_and_query
from batchedmodel_http.response import is_empty
from batchedmodel_http.streaming import NeedsStreaming
from batchedmodel_scheduling.tenants import SharedRoom
from batchedmodel_sidecar.backends.upstream.client import Answer, Client
from batchedmodel_sidecar.backends.upstream.headers import of_caller, passed_on
from batchedmodel_sidecar.backends.upstream.visits import Visit
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.errors import RETRY_SOON, CallError, Expired, Rejected, Unserved
from batchedmodel_sidecar.http.lone_turns import LoneTurns
from batchedmodel_sidecar.protocols.headers import REQUEST_ID_HEADER, request_id, writable
from batchedmodel_sidecar.telemetry.ledger import Ledger

logger: Final = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 128
"""Requests that pass through at a time, seven eighths of them of one tenant; more get 429."""
_UNWANTED_SECONDS: Final = 2.0
"""For which an inference goes on at the server whose caller has left."""


class GoesAlone(NeedsStreaming):
    """An upstream server should get the request as it is.

    Raised to who received the request and can stream it.
    """

    def __init__(
        self,
        body: Buffer | None = None,
        seconds: float = 0.0,
        share: Share = NOBODY,
        *,
        in_turn: bool,
    ) -> None:
        """`body` is all of it; None where it is yet to be received. `in_turn`: an inference."""
        self.body = body
        self.in_turn = in_turn
        self.share = share
        self.seconds = seconds


class Sent(NamedTuple):
    """What a caller sent, all of which is here."""

    body: Buffer | None
    held: Hold
    """Counts it, and of an inference the answer until that is sent on."""


class Passthrough:
    """Forwards single requests to one server."""

    def __init__(
        self,
        client: Client,
        *,
        ledger: Ledger,
        turns: LoneTurns,
        working: Callable[[], AbstractContextManager[Visit]],
    ) -> None:
        """`turns`: which inference is next. The server is at work while `working`."""
        self._client = client
        self._ledger = ledger
        self._room = SharedRoom(MOST_AT_ONCE)
        self._turns = turns
        self._working = working
        self._idle = asyncio.Event()
        self._idle.set()

    def refuse_full(self, share: Share) -> None:
        """Raise `Rejected` where no more of a tenant's requests may pass now."""
        if (refusal := self._room.refusal(share, 1)) is not None:
            message = f"{self._room.taken} requests pass through to the server already"
            raise Rejected(refusal, message, retry_after=RETRY_SOON)

    async def forward(
        self, request: web.BaseRequest, seconds: float, share: Share, sent: Sent, *, in_turn: bool
    ) -> web.StreamResponse:
        """The server's answer, streamed; an inference waits for its turn.

        Tenants share the room. Raises `Rejected` before anything was forwarded, `Unserved` or
        `Expired` before the answer began. A later failure breaks the connection off.
        """
        self.refuse_full(share)
        if in_turn and (rest := self._turns.rest(share)) > seconds:
            message = f"this caller's inferences that go alone had their share for {rest:.3g} s"
            raise Rejected(Rejection.OVER_SHARE, message, retry_after=rest)
        self._ledger.pass_on()
        self._room.take(share, 1)
        self._idle.clear()
        passage = _Passage(request, sent.body)
        outcome = Outcome.FAILED
        try:
            async with asyncio.timeout(seconds):
                if in_turn:
                    infer = partial(self._inferred, passage, sent.held, seconds)
                    answer = await self._turns.during(share, infer)
                else:
                    with self._working():
                        answer = await passage.ask(self._client)
                    sent.held.release()  # an answer may stream for long
                status = await passage.give(answer)
            outcome = Outcome.COMPLETED if status < 400 else Outcome.FAILED
        except asyncio.CancelledError:
            outcome = Outcome.CANCELLED
            raise
        except TimeoutError as error:
            outcome = Outcome.EXPIRED
            passage.broken_off(Expired(seconds), error)
        except (_Broken, OSError) as error:
            if request.transport is None or request.transport.is_closing():
                outcome = Outcome.CANCELLED
            message = "the server behind cannot be reached, or broke off"
            passage.broken_off(Unserved(message, status=502, retry_after=RETRY_SOON), error)
        finally:
            passage.leave()
            self._room.give_back(share.tenant, 1)
            self._ledger.passed(outcome)
            if not self._ledger.passing:
                self._idle.set()
        return passage.response

    async def _inferred(
        self, passage: "_Passage", held: Hold, seconds: float
    ) -> tuple[Answer, float]:
        """The server's answer, and the seconds that it took; all of it that there is memory for.

        So the server is done with it, and no caller's pace counts in its turn.
        """
        async with asyncio.timeout(seconds) as passage.limit:
            try:
                with self._working() as visit:
                    answer = await passage.ask(self._client)
                    await passage.read_ahead(answer, held)
                    return answer, visit.seconds()
            finally:
                passage.limit = None

    async def idle(self) -> None:
        """Return once nothing is on its way."""
        await self._idle.wait()


class _Passage:
    """One request on its way there, and its answer on its way back."""

    def __init__(self, request: web.BaseRequest, body: Buffer | None) -> None:
        self.response = web.StreamResponse()
        self._request = request
        self._body = body
        self._answer: Answer | None = None
        self._ahead: list[bytes] = []
        """The beginning of the answer, which was read before its caller takes it."""
        self._has_left = False
        self.limit: asyncio.Timeout | None = None
        """Of an inference that is at the server."""

    async def ask(self, client: Client) -> Answer:
        """Forward it; the answer, of which the head is here."""
        request = self._request
        body, self._body = self._body, None
        try:
            self._answer = await client.send(
                request.method,
                "".join(path_and_query(request.raw_path)),
                of_caller(request.headers.items()),
                None if body is None else (body,),
            )
        except Unserved as error:
            raise _Broken from error
        if self._has_left:
            self._answer.close()
        return self._answer

    async def read_ahead(self, answer: Answer, held: Hold) -> None:
        """Take of the answer's body what there is memory for."""
        if self._has_left:
            return
        while piece := await _read(answer):
            if self._has_left:
                return  # `held` is its caller's
            self._ahead.append(piece)
            if not held.grow(len(piece)):
                return

    def leave(self) -> None:
        """The caller has its answer, or will not get it.

        Most servers go on with what nobody waits for. So an inference has its turn for a while yet,
        which its tenant pays for; some servers end it once its connection does.
        """
        self._has_left = True
        if self._answer is not None:
            self._answer.close()
        elif self.limit is not None and not self.limit.expired():
            soon = asyncio.get_running_loop().time() + _UNWANTED_SECONDS
            self.limit.reschedule(min(soon, self.limit.when() or soon))

    async def give(self, answer: Answer) -> int:
        """Send the answer on; its status, once it is through."""
        request, head = self._request, answer.head
        headers = list(passed_on(head.headers))
        empty = is_empty(head.status)
        if empty:
            headers = [one for one in headers if one[0].lower() != "content-length"]
        if head.status == HTTPStatus.RESET_CONTENT:
            headers.append(("Content-Length", "0"))  # or else it would be sent in chunks
        named = request_id(request.headers)
        if named is not None and not head.header(REQUEST_ID_HEADER):
            headers.append((REQUEST_ID_HEADER, named))
        self.response = web.StreamResponse(
            status=head.status, reason=writable(head.reason), headers=headers
        )
        await self.response.prepare(request)
        for piece in self._ahead:
            await self.response.write(piece)
        while piece := await _read(answer):
            await self.response.write(piece)
        await self.response.write_eof()
        return head.status

    def broken_off(self, error: CallError, cause: BaseException) -> None:
        """Raise the error, or reset the connection if the answer has begun."""
        logger.debug("passing through: %s", type(cause).__name__)
        if not self.response.prepared:
            raise error from cause
        if self._request.transport is not None:
            # A clean end would make half an answer look whole.
            self._request.transport.abort()


class _Broken(Exception):
    """The server did not answer, or broke off."""


async def _read(answer: Answer) -> bytes:
    """What came of the body; raises `_Broken`."""
    try:
        return await answer.read()
    except Unserved as error:
        raise _Broken from error
