"""Requests that `Connection` does not answer directly: large, slow, in chunks, or with odd heads.

They are told apart head by head, each body exactly as long as its head says. aiohttp's public
parser judges heads, each up to its end, and bodies in chunks. These it reads as if their head had
offered another protocol: such a parser stops behind the body and hands back what it was given too
much, as others do not. So nothing of a request is ever read as a part of another, whatever a caller
offers. Of a body whose length is known the bytes are counted.

aiohttp's requests carry them. One is read at a time: its body streams to its handler, and reading
is paused while nobody takes it. `Connection` writes the answer, and keeps what comes behind the
request.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, cast

from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, HttpVersion10, HttpVersion11, RawRequestMessage
from aiohttp.http_exceptions import BadHttpMessage, HttpProcessingError, LineTooLong
from aiohttp.streams import StreamReader

from batchedmodel_http.request_head import is_target
from batchedmodel_http.response import LARGE, Answer, Reply, Response

Handler = Callable[[web.BaseRequest], Awaitable[Answer]]
Receive = Callable[[memoryview, Callable[[int], None]], Awaitable[None]]
"""Has what comes next written straight to memory; returns when that is full."""

UNREADABLE: Final = (HttpProcessingError, ValueError, IndexError)
"""Errors of bytes that are no request; the last two come from the library that reads targets."""
_BAD_REQUEST: Final = 400
_HEAD_TOO_LARGE: Final = 431
_NOT_IMPLEMENTED: Final = 501
_SHOWN: Final = 200  # characters of what the parser says, which may quote all that was sent
_BUFFER: Final = 64 * 1024
"""Bytes of a body that are read ahead of its handler; twice as much holds the caller back."""
_LONGEST_HEAD: Final = 64 * 1024
"""Bytes of a head, as of what stands between two pieces of a body or behind the last one.

The parser bounds each line and their number, which together are a mebibyte of one caller.
"""
_END_OF_HEAD: Final = b"\r\n\r\n"
_BODY_IN_CHUNKS: Final = (
    b"POST / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
HEAD_SECONDS: Final = 10.0
"""A head has so long from its first byte."""
STREAMED: Final = 48 * 1024
"""Bytes that a request which is read here takes beside its body, until it is answered: its parser,
reader, task and parsed head (measured: 46 KiB)."""
_TIMES_A_HEAD: Final = 3
"""What the parser holds of a head, over its bytes (measured: 178 KiB of 60)."""
_LINGERING_SECONDS: Final = 2.0
"""For the rest of a body that its handler did not read; a reset would lose the answer."""
_REFUSED_SECONDS: Final = 0.5
"""For who is refused for want of room to read that."""
_REQUEST_TIMEOUT: Final = 408
_TOO_MANY: Final = 429


class NeedsStreaming(Exception):
    """A call that only `StreamingProtocol` can answer; nothing was done for it so far."""


class _Reader:
    """Reads heads and bodies in turn, as it is asked to."""

    def __init__(self, protocol: BaseProtocol, loop: asyncio.AbstractEventLoop) -> None:
        """`protocol` is told to hold the caller back when nobody reads a body."""
        self._protocol = protocol
        self._event_loop = loop
        self._parser = self._new_parser()
        self._last = b""
        """The last bytes of a head that is not whole; its end may begin with them."""
        self.overhead = 0
        """Bytes of the present head, or of the present body since it last grew."""
        # Any: there is one where a body is read.
        self._body: Any = None
        self.left: int | None = None
        """Bytes of the present body that are still to come; None where its head did not say."""

    def close(self) -> None:
        """The caller has left; nothing more is read.

        Protocol, reader and parser know each other, and would all stay until somebody looks for
        garbage.
        """
        del self._protocol, self._parser, self._body

    def head(self, data: bytes) -> tuple[RawRequestMessage, StreamReader, bytes] | None:
        """The head that ends in this data, its body to come, and what is behind the head.

        None as long as none ends; raises what `UNREADABLE` names.
        """
        while data:
            found = (self._last + data).find(_END_OF_HEAD)
            if found < 0:
                piece, behind = data, b""
                self._last = (self._last + data)[1 - len(_END_OF_HEAD) :]
            else:
                end = found + len(_END_OF_HEAD) - len(self._last)
                piece, behind = data[:end], data[end:]
                self._last = b""
            self._count(len(piece))
            messages, _, _ = self._parser.feed_data(piece)
            if messages:
                message, body = messages[0]
                self._parser, self.overhead = self._new_parser(), 0
                self._body = self._body_of(message, body)
                return message, self._body, behind
            data = behind
        return None

    def body(self, data: bytes) -> bytes:
        """Some bytes of the present body; what is behind it. Raises what `UNREADABLE` names."""
        if self.left is not None:
            piece, behind = data[: self.left], data[self.left :]
            if piece:
                self._body.feed_data(piece)
            self.passed(len(piece))
            return behind
        size = self._body.total_bytes
        _, is_whole, behind = self._parser.feed_data(data)
        if is_whole:
            self._parser, self.overhead = self._new_parser(), 0
        elif self._body.total_bytes > size:
            self.overhead = 0
        else:
            self._count(len(data))
        return behind

    def passed(self, size: int) -> None:
        """So many bytes of the present body, whose length is known, went to whoever reads it."""
        assert self.left is not None, "its length is known: our bug"
        self.left -= size
        if not self.left and not self._body.is_eof():
            self._body.feed_eof()

    def pause_reading(self) -> None:
        """The present body is not read: keep the rest of what came."""
        if self.left is None:
            self._parser.pause_reading()

    def _count(self, size: int) -> None:
        self.overhead += size
        if self.overhead > _LONGEST_HEAD:
            # What stands between the pieces of a body, or behind it, is a line or some as well.
            raise LineTooLong(b"", _LONGEST_HEAD)

    def _body_of(self, message: RawRequestMessage, body: StreamReader) -> StreamReader:
        """What will be read of the body; `body` where there is none, or nobody knows its end."""
        self.left = None
        coding = message.headers.get("Transfer-Encoding", "chunked")
        if message.chunked and coding.lower() != "chunked":
            # The others would be dropped, and their bytes taken for the body.
            told = f"Transfer-Encoding {coding!r}, of which only chunked is taken"
            raise HttpProcessingError(code=_NOT_IMPLEMENTED, message=told)
        length = message.headers.get("Content-Length", "0")
        if message.method == "CONNECT" or not (message.chunked or int(length)):
            return body
        if body.is_eof():
            # The largest number that the parser knows means to it that nothing was declared.
            raise BadHttpMessage("Content-Length overflow")
        if not message.chunked:
            self.left = int(length)
            return StreamReader(self._protocol, _BUFFER, loop=self._event_loop)
        messages, _, _ = self._parser.feed_data(_BODY_IN_CHUNKS)
        return messages[0][1]

    def _new_parser(self) -> HttpRequestParser:
        return HttpRequestParser(
            self._protocol,
            self._event_loop,
            _BUFFER,
            payload_exception=web.RequestPayloadError,
            auto_decompress=False,  # the handlers do it, within their own bounds
        )


class Manner(NamedTuple):
    """How the caller of a request takes its answer."""

    last: bool = False
    """Whether the connection ends behind it."""
    is_old: bool = False
    """Whether it speaks HTTP/1.0, which knows no chunks and keeps connections only where told."""
    head_only: bool = False


class StreamingProtocol(BaseProtocol):
    """Reads such requests, one after the other, and has them answered."""

    # What aiohttp's requests ask of their protocol, beside the transport.
    ssl_context = None
    max_field_size = 8190
    max_headers = 128

    def __init__(
        self,
        handler: Handler,
        *,
        unreadable: Callable[[int, str], Response],
        reply: Reply,
        ended: Callable[[bool], None],
        behind: Callable[[bytes], None],
        holds: Callable[[int], bool],
        receive: Receive,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`unreadable` answers what is not taken: a status, and the rule that it breaks.

        `reply` is told what the handler returns or raises, for which `manner` holds. `ended` is
        told once nothing more of a request comes, see `answered`; `behind` of what came behind it.
        `holds` is told how many bytes a request holds that is not whole, and says whether it may.
        `receive` has the rest of a body written straight to memory.
        """
        self._reader = _Reader(self, loop)
        # Of its parser a protocol asks only to pause, which ours does in the place of the present.
        super().__init__(loop, cast(HttpRequestParser, self._reader))
        self._handler = handler
        self._unreadable = unreadable
        self._reply = reply
        self._ended = ended
        self._tell_behind = behind
        self._may_hold = holds
        self._held = 0
        """Bytes that are held for the present request, or its head."""
        self._receive = receive
        self._waits_for: StreamReader | None = None
        """The large body whose rest is not taken before somebody reads it."""
        self._event_loop = loop
        self._work: asyncio.Task[None] | None = None
        self._message: RawRequestMessage | None = None
        """The head of the request that is being answered."""
        self._body: StreamReader | None = None
        """Its body."""
        self._over = False
        """Whether nothing more is read on this connection."""
        self._head_timer: asyncio.TimerHandle | None = None
        self.peername: Any = None
        self.sockname: Any = None

    @property
    def idle(self) -> bool:
        """Whether no request is being answered; a part of a head may be here."""
        return self._body is None

    @property
    def arriving(self) -> bool:
        """Whether a part of the present request's body is yet to come."""
        return self._body is not None and not self._body.is_eof()

    @property
    def manner(self) -> Manner:
        """How the caller of the present request takes its answer."""
        message, body = self._message, self._body
        assert message is not None, "what is answered was asked: our bug"
        # An offer of another protocol is ignored (RFC 9110, 7.8). Behind a CONNECT, which is never
        # granted, a caller may send anything.
        ends = message.method == "CONNECT" or message.should_close
        broken = body is not None and body.exception() is not None
        is_old = message.version == HttpVersion10
        return Manner(ends or broken, is_old, message.method == "HEAD")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection has a first request of this kind."""
        super().connection_made(transport)
        self.peername = transport.get_extra_info("peername")
        self.sockname = transport.get_extra_info("sockname")

    def connection_lost(self, exc: BaseException | None) -> None:
        """The caller has left: end what is done for it."""
        self._over = True
        self._stop_head_timer()
        super().connection_lost(exc)
        if self._body is not None and not self._body.is_eof():
            self._body.set_exception(ConnectionResetError("the caller has left"))
        if self._work is not None:
            self._work.cancel()
        self._work = self._message = self._body = self._waits_for = None
        self._reader.close()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Let a caller go on that was held back here; `Connection` holds back others."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def data_received(self, data: bytes) -> None:
        """Some bytes; none when a body that was held back goes on."""
        if self._over:
            return
        if self._body is None:
            self._read_head(data)
            return
        if not self._body.is_eof():
            try:
                data = self._reader.body(data)
            except UNREADABLE as error:
                self._break_off(self._body, error)
                return
            self._wait_for_reader(self._body)
            self._hold_no_more(self._body)
        if data:
            self._tell_behind(data)

    @property
    def lacks(self) -> int:
        """Bytes of the present body that may come straight to memory; 0 where none may."""
        return self._reader.left or 0

    async def receive(self, memory: memoryview, arrived: Callable[[int], None]) -> None:
        """Let the rest of the present body come straight into memory of just that size.

        What came before it must have been read. `arrived` is told how many bytes came; what it
        raises is raised.
        """

        def passed(size: int) -> None:
            # At once: what comes behind the last of them belongs to another request.
            self._reader.passed(size)
            arrived(size)

        if not memory:
            return
        try:
            await self._receive(memory, passed)
        finally:
            if self._body is not None:
                self._hold_no_more(self._body)
            del memory  # as an error keeps this frame

    def answered(self, *, ends: bool) -> None:
        """The present request is answered: skip what its handler did not read, for a while.

        `ended` is told then whether the connection ends.
        """
        if self._body is None or self._body.is_eof():
            self._end(ends=ends)
        else:
            self._work = self._event_loop.create_task(self._skip_rest(self._body, ends=ends))

    async def _skip_rest(self, body: StreamReader, *, ends: bool) -> None:
        lost = (TimeoutError, asyncio.CancelledError, web.RequestPayloadError, ConnectionError)
        with contextlib.suppress(*lost):
            async with asyncio.timeout(_LINGERING_SECONDS):
                while not body.is_eof():
                    await body.readany()
        self._end(ends=ends or not body.is_eof())

    def _end(self, *, ends: bool) -> None:
        """Nothing more of the present request comes."""
        if self.transport is None:
            return
        self._over |= ends
        self._work = self._message = self._body = self._waits_for = None
        self._ended(ends)

    def _wait_for_reader(self, body: StreamReader) -> None:
        """Take no more of a large body than its beginning before somebody reads it.

        Whoever does may want the rest to come straight to where it belongs.
        """
        came = body.total_bytes
        if self.lacks and came and came + self.lacks > LARGE and self._waits_for is not body:
            self._waits_for = body
            self.pause_reading()

    def _read_head(self, data: bytes) -> None:
        try:
            request = self._reader.head(data)
        except UNREADABLE as error:
            self._refuse(*_fault(error))
            return
        if request is not None:
            self._stop_head_timer()
            message, body, behind = request
            self._begin(message, body)
            self.data_received(behind)
            if self._body is body:
                self._hold_unfinished(body)
            return
        if data and self._head_timer is None:
            self._head_timer = self._event_loop.call_later(HEAD_SECONDS, self._head_is_late)
        if self._reader.overhead and not self._holds(_TIMES_A_HEAD * self._reader.overhead):
            self._over = True
            self._stop_head_timer()
            self._transport().abort()

    def _begin(self, message: RawRequestMessage, body: StreamReader) -> None:
        if message.version not in (HttpVersion10, HttpVersion11):
            self._refuse(_BAD_REQUEST, "the request line names no version of HTTP read here")
            return
        if not is_target(message.path):
            self._refuse(_BAD_REQUEST, "the target of the request is no URL")
            return
        self._message, self._body = message, body
        self._work = self._event_loop.create_task(self._serve(message, body))

    def _hold_unfinished(self, body: StreamReader) -> None:
        """What is whole is answered at once, or counted by whoever lets it wait."""
        if self._holds(None if body.is_eof() else 0):
            return
        if self._work is not None:
            self._work.cancel()  # before it began
        self._work = self._message = self._body = None
        rule = "the requests and bodies of this caller leave no room for it"
        transport = self._transport()
        self._write_last(_TOO_MANY, rule)
        # It closes a moment later: a reset would lose the answer.
        transport.pause_reading()
        transport.write_eof()
        self._event_loop.call_later(_REFUSED_SECONDS, transport.close)

    def _hold_no_more(self, body: StreamReader) -> None:
        """Whoever reads a body that is whole counts it."""
        if body.is_eof() and self._held:
            self._holds(None)

    def _holds(self, size: int | None) -> bool:
        """Hold so many bytes of a request that is not whole; None: nothing. False: no room."""
        held = 0 if size is None else STREAMED + size
        if held != self._held and not self._may_hold(held):
            self._held = 0
            return False
        self._held = held
        return True

    def _break_off(self, body: StreamReader, error: Exception) -> None:
        """What came is no HTTP: whoever reads the body that it is in is told.

        Nobody knows where another request would begin, so the connection ends behind the answer.
        """
        self._over = True
        body.set_exception(web.RequestPayloadError(_fault(error)[1]))

    def _refuse(self, status: int, rule: str) -> None:
        self._stop_head_timer()
        self._write_last(status, rule)
        self._transport().close()

    def _write_last(self, status: int, rule: str) -> None:
        self._over = True
        self._transport().writelines(self._unreadable(status, rule).to_wire(close=True))

    def _head_is_late(self) -> None:
        self._head_timer = None
        rule = f"the head of the request did not arrive within {HEAD_SECONDS:.3g} s"
        self._refuse(_REQUEST_TIMEOUT, rule)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    async def _serve(self, message: RawRequestMessage, body: StreamReader) -> None:
        """Have a request answered."""
        # It has all that such a request asks of its protocol; nothing is written by way of it.
        served: Any = self
        unused: Any = None
        loop = self._event_loop
        try:
            response = await self._handler(
                web.BaseRequest(message, body, served, unused, unused, loop)
            )
        except asyncio.CancelledError:
            # A task keeps the cancellation that ends it, and that what was in hand for the caller:
            # the request as well, which keeps the task.
            if self._work is not None:  # the caller is here; what the handler waits for has ended
                self._reply(None, None)
        except BaseException as bug:
            self._reply(None, bug)
        else:
            self._reply(response, None)

    def _transport(self) -> asyncio.Transport:
        assert self.transport is not None, "there is a connection as long as it is read: our bug"
        return self.transport


def _fault(error: Exception) -> tuple[int, str]:
    """The status for what `UNREADABLE` names, and the rule that was broken."""
    if isinstance(error, LineTooLong):
        return (
            _HEAD_TOO_LARGE,
            "the head of the request, or a line of it, is longer than taken here",
        )
    if not isinstance(error, HttpProcessingError):
        return _BAD_REQUEST, "the target of the request is no URL"
    said = error.message.partition("\n")[0].strip(" :")
    return (
        error.code or _BAD_REQUEST,
        f"the request is not HTTP as it is read here: {said[:_SHOWN]}",
    )
