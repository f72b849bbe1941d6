"""Bodies of requests and of answers, bounded in size, in memory for all callers, and in time.

Bodies are read after admission; answers count until their callers have read them. What aiohttp
raises about bodies is translated here.
"""

import asyncio
import math
from collections import Counter
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.manifest.tenants import NOBODY, Share, address_group
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_http.response import LARGE, Response, size_of
from batchedmodel_http.streaming import STREAMED, StreamingProtocol
from batchedmodel_sidecar.body.buffers import Room, json_bytes
from batchedmodel_sidecar.body.byte_budget import ByteBudget, Hold
from batchedmodel_sidecar.body.encodings import Compression, Encoding, encoding_of, wants_gzip
from batchedmodel_sidecar.body.heap import Heap
from batchedmodel_sidecar.body.shared_regions import SharedRegions
from batchedmodel_sidecar.calls import Call
from batchedmodel_sidecar.errors import RETRY_SOON, CallError, Rejected
from batchedmodel_sidecar.helper.shared_memory import SharedMemory, are_scarce
from batchedmodel_sidecar.http.request import RequestHead

_TIMES_AN_ANSWER: Final = 2
"""An answer is held as outputs and as a body; numbers in JSON are larger still."""
UNDECODABLE: Final = "body: cannot be decoded as its headers say"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
SMALL: Final = 64 * 1024
"""Bytes of an answer that always fits, and what a caller must read within `PATIENCE`."""
PATIENCE: Final = 9.0
"""Seconds for `SMALL` bytes, once answers take half of their room."""
_LONGEST: Final = 150.0
"""Seconds without a byte read after which a caller is cut off, however much room there is."""
_MAKES_ROOM: Final = 2.0
"""Seconds after which a caller that does not read gives way to the next answer."""
_EACH: Final = 1.0
_FRESH: Final = 0.05
"""Seconds for which a measure counts. A large answer is written in pieces, of which the first tells
of it; to measure thousands takes a millisecond."""

Received = Buffer | SharedMemory
"""A body; one whose JSON is large lies where the helper can read it."""
Source = bytes | web.BaseRequest
"""The whole body, or the request with which it arrives."""


@dataclass(slots=True, kw_only=True)
class _Unread:
    """What one caller has not read."""

    holder: str
    """Its caller's address, or network."""
    size: int
    """Bytes when last measured."""
    read_at: float
    """When it last read anything."""
    mark: int
    since: float
    """When it had read `SMALL` bytes last, and how many were unread then."""

    def measured(self, size: int, now: float) -> None:
        """So many bytes are unread now."""
        if size < self.size:
            self.read_at = now
        self.size = size
        if size > self.mark:
            self.mark = size
        elif self.mark - size >= SMALL:
            self.mark, self.since = size, now

    def is_late(self, now: float, *, short: bool) -> bool:
        """Whether its caller is cut off."""
        return now - self.read_at >= _LONGEST or (short and now - self.since >= PATIENCE)


class UnreadAnswers:
    """What was written to callers and lies in this process until they read it.

    The connections tell it what is written. Answers take at most half of the budget, so that
    callers who do not read keep no bodies out.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._room: Final = budget.limit // 2
        self._answers: dict[asyncio.WriteTransport, _Unread] = {}
        self.size = 0
        """Bytes that are unread, as last measured."""
        self._charged = 0
        self._measured_at = -math.inf
        """When all of it was."""
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, transport: asyncio.WriteTransport, holder: str = "") -> None:
        """Something large was written on this connection, or its caller reads slowly.

        `holder`: whose answers count together.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        answer = self._answers.get(transport)
        if answer is None:
            answer = self._answers[transport] = _Unread(
                holder=holder, size=0, read_at=now, mark=0, since=now
            )
        self._measure(transport, answer, now)
        if self._timer is None and self._answers:
            self._timer = loop.call_later(_EACH, self._look)

    def forget(self, transport: asyncio.WriteTransport) -> None:
        """The connection is gone."""
        answer = self._answers.pop(transport, None)
        if answer is not None:
            self._grow(-answer.size)

    def admitted(self, response: Response, caller: str = "") -> Response:
        """The same response, if there is room for it; raises `CallError` (503).

        The holder of most bytes gives way: the connection that reads slowest is cut off. To an
        answer of the same holder it gives way only if nothing was read for some seconds.
        """
        if size_of(response.parts) <= SMALL:
            return response
        now = asyncio.get_running_loop().time()
        if self.size < self._room and now - self._measured_at < _FRESH:
            return response
        holder = address_group(caller)
        self._measure_all(now)
        while self.size >= self._room:
            by_holder = Counter[str]()
            for answer in self._answers.values():
                by_holder[answer.holder] += answer.size
            (largest, most), *_ = by_holder.most_common(1)
            theirs = [item for item in self._answers.items() if item[1].holder == largest]
            transport, slowest = min(theirs, key=lambda item: item[1].since)
            if by_holder[holder] >= most and now - slowest.since < _MAKES_ROOM:
                message = f"callers have not read {self.size} bytes of answers; no more fit"
                raise CallError(message, status=503, retry_after=RETRY_SOON)
            self._cut(transport)
        return response

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._measure_all(now)
        short = self.size >= self._room // 2 or self._budget.in_use >= self._room
        for transport, answer in list(self._answers.items()):
            if answer.is_late(now, short=short):
                self._cut(transport)
        self._timer = loop.call_later(_EACH, self._look) if self._answers else None

    def _cut(self, transport: asyncio.WriteTransport) -> None:
        transport.abort()
        self.forget(transport)

    def _measure_all(self, now: float) -> None:
        self._measured_at = now
        for transport, answer in list(self._answers.items()):
            self._measure(transport, answer, now)

    def _measure(self, transport: asyncio.WriteTransport, answer: _Unread, now: float) -> None:
        before = answer.size
        answer.measured(transport.get_write_buffer_size(), now)
        self._grow(answer.size - before)
        if not answer.size:
            del self._answers[transport]

    def _grow(self, size: int) -> None:
        self.size += size
        # No more than the room, even if one answer is larger.
        charged = min(self.size, self._room)
        self._budget.hold_answers(charged - self._charged)
        self._charged = charged


class BodyReader:
    """The bounds on bodies, and their reading."""

    def __init__(self, *, max_bytes: int, budget: ByteBudget, slots: SharedRegions) -> None:
        """The bounds of one body, and of all that are held at once; where large ones lie."""
        self._slots = slots
        self.max_bytes: Final = max_bytes
        self.compression: Final = Compression()
        self._budget = budget
        self.unread: Final = UnreadAnswers(self._budget)
        self._heap = Heap(lambda: budget.in_use)

    def hold(self, share: Share = NOBODY) -> Hold:
        """A part of the memory, for the time in which a body is needed."""
        return self._budget.hold(share)

    def refuse_declared(self, declared: int, share: Share) -> None:
        """Raise `Rejected` for a body that cannot be taken, judged by its declared length."""
        if declared > self.max_bytes:
            raise self._too_large()
        if (refusal := self._budget.refusal(share, declared)) is not None:
            raise self._no_room(refusal, share)

    async def read(
        self,
        head: RequestHead,
        source: Source,
        hold: Hold,
        seconds: float,
        json_length: str | None = None,
    ) -> Received:
        """The whole body as it was sent, charged to `hold` as it arrives; raises `Rejected`.

        `json_length`: how long the JSON at its beginning is, where not all of it is JSON.
        """
        if isinstance(source, bytes):
            return self.whole(source, head, hold, json_length)
        self._heap.body_comes()
        request, content = source, source.content
        # What its connection holds besides is given back once the body is whole.
        if not hold.grow(STREAMED):
            raise self._no_room(hold.refused, hold.share)
        try:
            if content.is_eof() and content.exception() is None:
                # It came with its head; most do.
                return self.whole(content.read_nowait(), head, hold, json_length)
            answer_expectation(request)
            async with asyncio.timeout(seconds):
                return await self._pieces(request, head, hold, json_length)
        except TimeoutError as error:
            message = f"the body did not arrive within {seconds:.3g} s"
            raise Rejected(Rejection.EXPIRED, message, status=408) from error
        except (ConnectionError, web.RequestPayloadError) as error:
            if request.transport is None or request.transport.is_closing():
                raise Rejected(Rejection.ABANDONED, "the body ended early") from _bare(error)
            raise Rejected(Rejection.INVALID, UNDECODABLE) from _bare(error)

    async def read_whole(
        self, head: RequestHead, source: Source, hold: Hold, seconds: float
    ) -> Buffer | None:
        """The body of a request that goes on as it is; None where it has none.

        Raises `Rejected`.
        """
        if not isinstance(source, bytes):
            if not source.body_exists:
                return None
            self.refuse_declared(head.declared, hold.share)
            if source.content.is_eof():
                answer_expectation(source)  # of others the reading sees to it
        body = await self.read(head, source, hold, seconds)
        try:
            return view(body)
        finally:
            let_go(body)

    async def compressed(self, response: Response, accepted: str, hold: Hold) -> Response:
        """The same answer, shorter if its caller accepts that and there is memory for both."""
        size = size_of(response.parts)
        if not wants_gzip(accepted, size) or not hold.grow(size):
            return response
        headers = (*response.headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))
        parts = (await self.compression.gzipped(response.parts, hold.share),)
        return Response(parts, response.content_type, response.status, headers)

    async def decoded(
        self,
        body: Received,
        encoding: Encoding | None,
        hold: Hold,
        json_length: str | None = None,
    ) -> Received:
        """The inflated body, bounded and held as the compressed one is.

        Raises `Rejected` and `InvalidInput`.
        """
        if encoding is None or isinstance(body, SharedMemory):
            return body
        plain = await self.compression.inflated(
            body, encoding, self.max_bytes, lambda plain: placed(plain, json_length), hold.share
        )
        if not hold.grow(len(plain)):
            if isinstance(plain, SharedMemory):
                plain.close()
            raise self._no_room(hold.refused, hold.share)
        return plain

    async def decoded_text(self, head: RequestHead, body: Buffer, hold: Hold, most: int) -> Buffer:
        """The same of a request for text, which may have `most` bytes."""
        encoding = encoding_of(head.headers.get("Content-Encoding"))
        if encoding is not None:
            limit = min(most, self.max_bytes)
            body = await self.compression.inflated(body, encoding, limit, bytes, hold.share)
            self._charge(len(body), len(body), hold)
        if len(body) > most:
            message = f"the body has {len(body)} bytes; of one for text {most} are taken"
            raise Rejected(Rejection.TOO_LARGE, message)
        return body

    def charge_rows(self, body: Received, call: Call, hold: Hold, kept: int = 0) -> None:
        """The body was parsed: hold its rows, in its place or where they take more than it did.

        Numbers and tokens may have eight bytes for two of their text. `kept`: see `Parsed`. Raises
        `Rejected`.
        """
        more = max(call.size, kept) - len(body)
        if isinstance(body, SharedMemory) and call.envelope is None and more < 0:
            # Rows of other bodies may be views of these. For an upstream server what stands beside
            # the rows is kept too, which may be all of the body.
            hold.shrink(-more)
        elif more > 0 and not hold.grow(more):
            raise self._no_room(hold.refused, hold.share)

    def hold_answer(self, size: int, hold: Hold) -> None:
        """Hold outputs of so many bytes and their body until they are written.

        An answer that is alone always fits, since to ask again would not help. Raises `CallError`.
        """
        if size <= SMALL:
            return
        more = _TIMES_AN_ANSWER * size - hold.kept
        if hold.is_alone():
            hold.regain(more)
        elif not hold.grow(more):
            message = f"callers' bodies and answers take {self._budget.in_use} bytes; no more fit"
            raise CallError(message, status=503, retry_after=RETRY_SOON)

    def whole(
        self, body: bytes, head: RequestHead, hold: Hold, json_length: str | None
    ) -> Received:
        """A body that is here, charged to `hold`; raises `Rejected`."""
        self._charge(len(body), len(body), hold)
        return body if head.packed or len(body) <= LARGE else placed(body, json_length)

    async def _pieces(
        self, request: web.BaseRequest, head: RequestHead, hold: Hold, json_length: str | None
    ) -> Received:
        """Small bodies are joined; large ones come straight to where they lie, if they can."""
        declared = head.declared
        pieces: list[bytes] = []
        large: Room | SharedMemory | None = None
        size = 0
        try:
            async for piece in request.content.iter_any():
                size += len(piece)
                self._charge(size, len(piece), hold)
                pieces.append(piece)
                if large is None and max(size, declared) > LARGE:
                    expected = declared or self.max_bytes
                    parsed_apart = not head.packed and is_large(expected, json_length)
                    if not parsed_apart:
                        large = self._room(head, hold.share)
                    else:
                        large = Room(expected) if are_scarce() else SharedMemory()
                if large is not None:
                    for part in pieces:
                        large.write(part)
                    pieces.clear()
                if large is not None and isinstance(request.protocol, StreamingProtocol):
                    await self._rest(request.protocol, size, declared, large, hold)
        except BaseException:
            # It is not counted any more, so it must not live as long as the exception does.
            if isinstance(large, SharedMemory):
                large.close()
            large = None
            raise
        if large is None:
            return b"".join(pieces)
        return large.view() if isinstance(large, Room) else large

    async def _rest(
        self,
        protocol: StreamingProtocol,
        size: int,
        declared: int,
        room: Room | SharedMemory,
        hold: Hold,
    ) -> None:
        """Of a body of which so much was read, have the rest written straight into its room."""
        lacks = protocol.lacks
        if not lacks or size + lacks != declared:
            return

        def arrived(more: int) -> None:
            self._charge(declared, more, hold)
            room.filled(more)

        await protocol.receive(room.rest(lacks), arrived)

    def _room(self, head: RequestHead, share: Share) -> Room:
        """Room for a body that is parsed here."""
        if head.packed or not head.declared:
            return Room(head.declared or self.max_bytes)
        return Room(head.declared, self._slots.room(head.declared, share))

    def _charge(self, size: int, more: int, hold: Hold) -> None:
        if size > self.max_bytes:
            raise self._too_large()
        if not hold.grow(more):
            raise self._no_room(hold.refused, hold.share)

    def _too_large(self) -> Rejected:
        message = f"the body is larger than the {self.max_bytes} bytes taken here"
        return Rejected(Rejection.TOO_LARGE, message)

    def _no_room(self, refusal: Rejection, share: Share) -> Rejected:
        if refusal is Rejection.TOO_LARGE:
            most = self._budget.most(share)
            message = f"the body with its rows takes more than the {most} bytes a caller may hold"
            return Rejected(refusal, message)
        message = f"the bodies held take {self._budget.in_use} bytes; no more fit at present"
        return Rejected(refusal, message, retry_after=RETRY_SOON)


def _bare(error: Exception) -> Exception:
    """The error without its frames, which hold the stream that keeps the error."""
    return error.with_traceback(None)


def is_large(size: int, json_length: str | None) -> bool:
    """Whether so much of a body of this size is JSON that it is parsed apart; see `read`."""
    return json_bytes(size, json_length) > LARGE


def view(body: Received) -> Buffer:
    """A body where it lies."""
    return body.view() if isinstance(body, SharedMemory) else body


def let_go(body: Received) -> None:
    """A body is not read any more."""
    if isinstance(body, SharedMemory):
        body.close()


def placed(body: bytes, json_length: str | None) -> Received:
    """A whole body, in shared memory if its JSON is large."""
    if not is_large(len(body), json_length):
        return body
    memory = SharedMemory()
    memory.write(body)
    return memory


def answer_expectation(request: web.BaseRequest) -> None:
    """Tell a caller that waits for `100 Continue` to send its body."""
    if "Expect" not in request.headers:
        return
    # To write to a caller that has left is an error.
    if request.transport is not None and not request.transport.is_closing():
        request.transport.write(_CONTINUE)
