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
from typing import Final

from aiohttp import web

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_http.request_head import path_and_query
from batchedmodel_http.response import Sending, StreamedResponse, is_empty
from batchedmodel_http.streaming import NeedsStreaming
from batchedmodel_scheduling.queue.shared_room import SharedRoom
from batchedmodel_sidecar.backends.upstream.client import Answer, Client
from batchedmodel_sidecar.backends.upstream.headers import of_caller, passed_on
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.errors import RETRY_SOON, Expired, Rejected, Unserved
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

    def __init__(self, body: Buffer | None = None, seconds: float = 0.0, *, in_turn: bool) -> None:
        """`body` is all of it; None where it is yet to be received. `in_turn`: an inference."""
        self.body = body
        self.in_turn = in_turn
        self.seconds = seconds


class Passthrough:
    """Forwards single requests to one server."""

    def __init__(
        self,
        client: Client,
        *,
        ledger: Ledger,
        turns: LoneTurns,
        working: Callable[[], AbstractContextManager[None]],
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
            message = f"{self._room.in_use} requests pass through to the server already"
            raise Rejected(refusal, message, retry_after=RETRY_SOON)

    async def forward(
        self,
        request: web.BaseRequest,
        body: Buffer | None,
        hold: Hold,
        seconds: float,
        *,
        in_turn: bool,
    ) -> StreamedResponse:
        """The server's answer, whose body streams; an inference waits for its turn.

        Tenants share the room. `hold` counts the body, and of an inference the answer until that is
        sent on; it is released here once this has returned. Raises `Rejected` before anything was
        forwarded, `Unserved` or `Expired` before the answer began. A later failure breaks the
        connection off.
        """
        share = hold.share
        self.refuse_full(share)
        if in_turn and (rest := self._turns.rest(share)) > seconds:
            message = f"this caller's inferences that go alone had their share for {rest:.3g} s"
            raise Rejected(Rejection.OVER_SHARE, message, retry_after=rest)
        self._ledger.pass_on()
        self._room.take(share, 1)
        self._idle.clear()
        passage = _Passage(request, body, hold, seconds, self._left)
        outcome = Outcome.FAILED
        try:
            async with asyncio.timeout_at(passage.deadline):
                if in_turn:
                    infer = partial(self._inferred, passage, seconds)
                    answer = await self._turns.during(share, infer)
                else:
                    with self._working():
                        answer = await passage.ask(self._client)
                    hold.release()  # an answer may stream for long
            outcome = Outcome.COMPLETED
        except asyncio.CancelledError:
            outcome = Outcome.CANCELLED
            raise
        except TimeoutError as error:
            outcome = Outcome.EXPIRED
            raise Expired(seconds) from error
        except Unserved as error:
            logger.debug("passing through: %s", error)
            message = "the server behind cannot be reached, or broke off"
            raise Unserved(message, status=502, retry_after=RETRY_SOON) from error
        finally:
            if outcome is not Outcome.COMPLETED:
                passage.leave(outcome)
        return passage.response(answer)

    def _left(self, share: Share, outcome: Outcome) -> None:
        self._room.give_back(share.tenant, 1)
        self._ledger.passed(outcome)
        if not self._ledger.passing:
            self._idle.set()

    async def _inferred(self, passage: "_Passage", seconds: float) -> Answer:
        """The server's answer; all of it that there is memory for.

        So the server is done with it, and no caller's pace counts in its turn.
        """
        async with asyncio.timeout(seconds) as passage.limit:
            try:
                with self._working():
                    answer = await passage.ask(self._client)
                    await passage.read_ahead(answer)
                    return answer
            finally:
                passage.limit = None

    async def idle(self) -> None:
        """Return once nothing is on its way."""
        await self._idle.wait()


class _Passage:
    """One request on its way there, and its answer on its way back."""

    def __init__(
        self,
        request: web.BaseRequest,
        body: Buffer | None,
        hold: Hold,
        seconds: float,
        on_end: Callable[[Share, Outcome], None],
    ) -> None:
        """`left` is told how it ended."""
        self._loop = asyncio.get_running_loop()
        self.deadline: Final = self._loop.time() + seconds
        self._request = request
        self._body = body
        self._hold = hold
        self._on_end = on_end
        self._answer: Answer | None = None
        self._ahead: list[bytes] = []
        """The beginning of the answer, which was read before its caller takes it."""
        self._has_left = False
        self._giving: asyncio.Task[None] | None = None
        self._reads = asyncio.Event()
        """Set while the caller reads as fast as pieces come."""
        self._reads.set()
        self.limit: asyncio.Timeout | None = None
        """Of an inference that is at the server."""

    async def ask(self, client: Client) -> Answer:
        """Forward it; the answer, of which the head is here."""
        request = self._request
        body, self._body = self._body, None
        self._answer = await client.send(
            request.method,
            "".join(path_and_query(request.raw_path)),
            of_caller(request.headers.items()),
            None if body is None else (body,),
        )
        if self._has_left:
            self._answer.close()
        return self._answer

    async def read_ahead(self, answer: Answer) -> None:
        """Take of the answer's body what there is memory for."""
        if self._has_left:
            return
        while piece := await answer.read():
            if self._has_left:
                return  # what is held is another's by now
            self._ahead.append(piece)
            if not self._hold.grow(len(piece)):
                return

    def leave(self, outcome: Outcome) -> None:
        """The caller has its answer, or will not get it.

        Most servers go on with what nobody waits for. So an inference has its turn for a while yet,
        which its tenant pays for; some servers end it once its connection does.
        """
        if self._has_left:
            return
        self._has_left = True
        if self._answer is not None:
            self._answer.close()
        elif self.limit is not None and not self.limit.expired():
            soon = self._loop.time() + _UNWANTED_SECONDS
            self.limit.reschedule(min(soon, self.limit.when() or soon))
        self._hold.release()
        self._on_end(self._hold.share, outcome)

    def response(self, answer: Answer) -> StreamedResponse:
        """The answer, as it is sent on."""
        head, asks_head = answer.head, self._request.method == "HEAD"
        # What answers HEAD says how long a body would be, and has none.
        says_length = asks_head and not is_empty(head.status)
        headers = passed_on(head.headers, () if says_length else ("content-length",))
        named = request_id(self._request.headers)
        if named is not None and not head.header(REQUEST_ID_HEADER):
            headers = (*headers, (REQUEST_ID_HEADER, named))
        return StreamedResponse(
            self,
            status=head.status,
            reason=writable(head.reason),
            headers=headers,
            length=None if asks_head else head.length,
        )

    def begin(self, sending: Sending) -> None:
        """See `PieceSource`."""
        assert self._answer is not None, "an answer begins with its head: our bug"
        self._giving = self._loop.create_task(self._give(self._answer, sending))

    def pause(self) -> None:
        """See `PieceSource`."""
        self._reads.clear()

    def resume(self) -> None:
        """See `PieceSource`."""
        self._reads.set()

    def cancel(self) -> None:
        """See `PieceSource`."""
        if self._giving is not None:
            self._giving.cancel()
        self.leave(Outcome.CANCELLED)

    async def _give(self, answer: Answer, sending: Sending) -> None:
        """Send the answer on, as fast as its caller reads."""
        outcome, whole = Outcome.FAILED, False
        try:
            async with asyncio.timeout_at(self.deadline):
                for piece in self._ahead:
                    sending.write(piece)
                    await self._reads.wait()
                while piece := await answer.read():
                    sending.write(piece)
                    await self._reads.wait()
            whole = True
            outcome = Outcome.COMPLETED if answer.head.status < 400 else Outcome.FAILED
        except TimeoutError:
            outcome = Outcome.EXPIRED
        except Unserved as error:
            logger.debug("passing through: %s", error)
        finally:
            self.leave(outcome)
            sending.end(whole=whole)
