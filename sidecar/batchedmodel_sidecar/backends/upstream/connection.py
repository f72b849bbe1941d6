"""A connection to an upstream server, which carries one request at a time, its answer in pieces.

A general client wakes a task for each piece that arrives. Here a piece is one callback, whoever
waits for it. Head and body are read by aiohttp's public parser, without its client.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpResponseParser
from aiohttp.http_exceptions import HttpProcessingError

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_http.eager_coroutine import EagerCoroutine
from batchedmodel_http.response import Headers, is_empty
from batchedmodel_sidecar.errors import Busy, Lost, Unserved

logger: Final = logging.getLogger(__name__)

_END_OF_HEAD: Final = re.compile(rb"\n\r?\n")
"""Some servers end lines without a carriage return, which the parser takes too."""
_LONGEST_HEAD: Final = 64 * 1024
_MOST_PROVISIONAL: Final = 16
"""Heads in front of an answer's that say only that it is to come."""
_CHUNKED: Final = "chunked"
_BLANK_LINES: Final = b"\r\n\r\n"
_NEVER_FULL: Final = 1 << 30
"""Bytes that the parser may keep. All of a piece is taken from it before the next."""
_NO_HTTP: Final = (HttpProcessingError, ValueError, IndexError)
"""What the parser raises."""


class AnswerHead(NamedTuple):
    """The beginning of an answer."""

    status: int
    reason: str
    headers: Headers
    length: int | None
    """Bytes of the body, where the server says so."""

    def header(self, name: str) -> str:
        """The first of this name in lower case; empty when there is none."""
        return next((value for known, value in self.headers if known.lower() == name), "")


class AnswerListener(Protocol):
    """Hears of one answer, until it ended or broke off."""

    def answered(self, head: AnswerHead) -> None:
        """The server began to answer."""
        ...

    def piece(self, data: bytes) -> None:
        """A piece of the body, which is not empty."""
        ...

    def ended(self) -> None:
        """The body is whole."""
        ...

    def broke_off(self, error: Unserved) -> None:
        """No more comes."""
        ...


class UpstreamConnection(asyncio.Protocol):
    """Carries one request at a time, whose listener it tells of the answer."""

    __slots__ = (
        "_bodiless", "_body", "_connecting", "_head", "_listener", "_loop", "_over", "_parser",
        "_paused", "_provisional", "_request", "_sound", "_transport", "_until_end", "is_sending",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: Any = None
        self._connecting: EagerCoroutine[None] | None = None
        self._listener: AnswerListener | None = None
        self._request: list[Buffer] = []
        self._reset()

    def _reset(self) -> None:
        self._head: bytes | None = b""
        """What came of the head; None behind it."""
        self._provisional = 0
        # Any: what their extension in C makes is no such class as its types say.
        self._parser: Any = None
        self._body: Any = None
        """What came of the body, and whether it is whole."""
        self._until_end = False
        """Whether the body ends with the connection."""
        self._paused = False
        self._sound = False
        """Whether the connection may be used again behind this answer."""
        self.is_sending = False
        """Whether more of the request is to be written."""
        self._bodiless = False
        self._over: Callable[[bool], None] | None = None

    def send(
        self,
        listener: AnswerListener,
        request: list[Buffer],
        *,
        bodiless: bool = False,
        over: Callable[[bool], None] | None = None,
    ) -> None:
        """Send a request, or the beginning of one, once there is a connection.

        `bodiless`: the answer has no body. `over` is told once whether the connection may be used
        again; without it the connection ends behind the answer.
        """
        self._reset()
        self._listener, self._bodiless, self._over = listener, bodiless, over
        if self._transport is None:
            self._request = request
        else:
            self._transport.writelines(request)

    def write(self, data: Buffer) -> bool:
        """Send more of the request; whether anybody still waits for the answer."""
        if self._listener is None or self._transport.is_closing():
            return False
        self._transport.write(data)
        return True

    @property
    def is_open(self) -> bool:
        """Whether a request may be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def connecting(self, work: EagerCoroutine[None]) -> None:
        """The connection is being made."""
        if self._transport is None and self._listener is not None:
            self._connecting = work

    def connected(self, made: None, error: BaseException | None) -> None:
        """It was, or could not be."""
        self._connecting = None
        if error is not None:
            known = isinstance(error, Unserved)
            if not known:
                logger.error("connecting to the model", exc_info=error)
            self._fail(error if known else Busy("the model cannot be reached"))  # type: ignore[arg-type]

    def cancel(self) -> None:
        """Nobody waits for the answer: the server is told by the connection's end."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        self._finish(reusable=False, aborts=True)

    def close(self) -> None:
        """End a connection that carries no request."""
        self._transport.close()

    def pause(self) -> None:
        """Take no more of the answer for now."""
        self._paused = True
        if self.is_open:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Go on."""
        self._paused = False
        if self.is_open:
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The server took the connection."""
        self._transport = transport
        request, self._request = self._request, []
        if self._listener is None:
            self._transport.abort()
            return
        self._transport.writelines(request)
        if self._paused:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        if self._listener is None:
            return
        if self._until_end and exc is None:
            self._sound = False
            self._end()
        else:
            self._fail(Lost("the model went away while it worked on this"))

    def data_received(self, data: bytes) -> None:
        """Some bytes of the answer."""
        if self._head is not None:
            data = self._after_head(data)
        if not data:
            return
        if self._listener is None:
            # Nobody's answer: it would be taken for that of the next request.
            self._transport.abort()
            return
        is_surplus = False
        try:
            is_surplus = bool(self._parser.feed_data(data)[0])
            if self._body.is_eof():
                # The parser takes blank lines in front of an answer, and not within its head.
                is_surplus = is_surplus or bool(self._parser.feed_data(_BLANK_LINES)[0])
        except _NO_HTTP as error:
            if not self._body.is_eof():
                self._nonsense(error)
                return
            is_surplus = True
        if piece := self._body.read_nowait():
            self._listener.piece(piece)
        if self._body.is_eof():
            self._sound = self._sound and not is_surplus
            self._end()

    def _after_head(self, data: bytes) -> bytes:
        """Read heads until one is not provisional; what comes behind it."""
        while data and self._listener is not None:
            data, self._head = (self._head or b"") + data, b""
            found = _END_OF_HEAD.search(data)
            if found is None:
                self._head = data
                if len(data) > _LONGEST_HEAD:
                    self._nonsense(ValueError("its head does not end"))
                return b""
            try:
                self._parser = HttpResponseParser(
                    BaseProtocol(self._loop),
                    self._loop,
                    _NEVER_FULL,
                    auto_decompress=False,
                    read_until_eof=True,
                )
                message, self._body = self._parser.feed_data(data[: found.end()])[0][0]
            except _NO_HTTP as error:
                self._nonsense(error)
                return b""
            data = data[found.end() :]
            provisional = HTTPStatus.CONTINUE <= message.code < HTTPStatus.OK
            if not provisional or message.code == HTTPStatus.SWITCHING_PROTOCOLS:
                self._head = None
                self._begin(message)
                return data
            self._provisional += 1
            if self._provisional > _MOST_PROVISIONAL:
                self._nonsense(ValueError("no answer follows what announces it"))
        return b""

    def _begin(self, message: Any) -> None:
        assert self._listener is not None, "who has left hears of no head: our bug"
        coding = message.headers.get("Transfer-Encoding", "")
        declared = message.headers.get("Content-Length")
        if message.code < HTTPStatus.OK or coding.lower() not in ("", _CHUNKED):
            self._nonsense(ValueError(f"status {message.code}, coding {coding!r}"))
            return
        length = None if declared is None else int(declared)
        if is_empty(message.code) or self._bodiless:
            length = 0
        if length and self._body.is_eof():
            # The largest number that the parser knows means to it that nothing was declared.
            self._nonsense(ValueError(f"Content-Length {length}"))
            return
        self._until_end = length is None and not coding
        reason = message.reason or ""
        headers = tuple(message.headers.items())
        # Servers exist that hang up after an error and do not announce it (uvicorn does).
        self._sound = not message.should_close and message.code < HTTPStatus.INTERNAL_SERVER_ERROR
        self._listener.answered(AnswerHead(message.code, reason, headers, length))
        if length == 0:
            self._end()

    def _nonsense(self, error: Exception) -> None:
        logger.debug("the model's answer is no HTTP: %s", type(error).__name__)
        message = "the model answers nonsense: what it sent is no HTTP"
        self._fail(Unserved(message, status=502, answered=True))

    def _end(self) -> None:
        listener = self._finish(reusable=self._sound, aborts=False)
        if listener is not None:
            listener.ended()

    def _fail(self, error: Unserved) -> None:
        listener = self._finish(reusable=False, aborts=True)
        if listener is not None:
            listener.broke_off(error)

    def _finish(self, *, reusable: bool, aborts: bool) -> AnswerListener | None:
        """The request is over; who listened to it."""
        listener, self._listener = self._listener, None
        over, self._over = self._over, None
        transport = self._transport
        keeps = (
            over is not None
            and reusable
            and not self.is_sending
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
        )
        if transport is not None and not keeps:
            # Behind what a server leaves unread it would not close as long as that holds it.
            if aborts or transport.get_write_buffer_size():
                transport.abort()
            else:
                transport.close()
        if keeps and self._paused:
            self.resume()
        if over is not None:
            over(keeps)
        return listener
