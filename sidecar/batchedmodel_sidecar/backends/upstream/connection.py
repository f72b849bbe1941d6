"""A connection to an upstream server, which carries one request at a time, its answer in pieces.

A general client wakes a task for each piece that arrives. Here a piece is one callback, whoever
waits for it. The head is read by aiohttp's public parser, and so are none of the bytes behind it.
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
_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
_END: Final = b"\r\n"
_LONGEST_LINE: Final = 4096
"""Bytes of a chunk's first line, or of all lines behind the last chunk."""


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


class Exchange(Protocol):
    """A request that is at the server."""

    def cancel(self) -> None:
        """Nobody waits for the answer."""
        ...

    def pause(self) -> None:
        """Take no more of the answer for now."""
        ...

    def resume(self) -> None:
        """Go on."""
        ...


class UpstreamConnection(asyncio.Protocol):
    """Carries one request at a time, whose listener it tells of the answer."""

    __slots__ = (
        "_bodiless", "_connecting", "_decoder", "_head", "_left", "_listener", "_loop", "_over",
        "_paused", "_provisional", "_request", "_sound", "_transport", "is_sending",
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
        self._decoder: ChunkDecoder | None = None
        self._left: int | None = None
        """Bytes that the body lacks; None where nobody says so."""
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
        if self._head is None and self._decoder is None and self._left is None and exc is None:
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
        if self._decoder is not None:
            try:
                data = self._decoder.feed(data)
            except NoChunk as error:
                self._nonsense(error)
                return
            if self._decoder.surplus:
                self._sound = False
            if data:
                self._listener.piece(data)
            if self._decoder.ended:
                self._end()
        elif self._left is None:
            self._listener.piece(data)
        else:
            piece = data[: self._left]
            self._left -= len(piece)
            if len(piece) < len(data):
                self._sound = False
            if piece:
                self._listener.piece(piece)
            if not self._left:
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
                message = self._read(data[: found.end()])
            except (HttpProcessingError, ValueError, IndexError) as error:
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

    def _read(self, head: bytes) -> Any:
        # Any: what its extension in C makes is no such class as its types say.
        parser: Any = HttpResponseParser(
            BaseProtocol(self._loop), self._loop, 2**16, auto_decompress=False, read_until_eof=True
        )
        return parser.feed_data(head)[0][0][0]

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
        elif coding:
            self._decoder = ChunkDecoder()
        self._left = length
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


class NoChunk(ValueError):
    """What came is no part of a body in chunks."""


class ChunkDecoder:
    """Takes the bytes behind a head, and gives those of the body."""

    __slots__ = ("_left", "_rest", "ended", "surplus")

    def __init__(self) -> None:
        self._rest = b""
        """A line that is not whole."""
        self._left = 0
        """Bytes that the present chunk lacks, its end included."""
        self.ended = False
        """Whether the last chunk, and what belongs to it, was here."""
        self.surplus = False
        """Whether bytes came behind the end."""

    def feed(self, data: bytes) -> bytes:
        """What of the body is in these bytes; raises `NoChunk`.

        Bytes behind the end are nobody's answer, and left out.
        """
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, pieces = 0, []
        while at < len(data):
            if self.ended:
                break
            if self._left:
                piece = data[at : at + self._left]
                self._left -= len(piece)
                at += len(piece)
                pieces.append(self._without_end(piece))
                continue
            size = _SIZE.match(data, at)
            if size is None:
                if len(data) - at > _LONGEST_LINE or _END in data[at : at + _LONGEST_LINE]:
                    raise NoChunk("a chunk does not begin with its size")
                self._rest = data[at:]
                break
            if length := int(size[1], 16):
                at, self._left = size.end(), length + len(_END)
                continue
            end = self._end_of_trailers(data, size.end() - len(_END))
            if end is None:
                self._rest = data[at:]
                break
            at, self.ended, self.surplus = end, True, end < len(data)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _without_end(self, piece: bytes) -> bytes:
        """A part of a chunk without the bytes of its end, which are looked at."""
        # What this part holds of the end: of both bytes, of the first or of the second alone.
        end = min(len(piece), max(0, len(_END) - self._left))
        if not end:
            return piece
        first = len(_END) - self._left - end
        if piece[len(piece) - end :] != _END[first : first + end]:
            raise NoChunk("a chunk is longer than its size")
        return piece[: len(piece) - end]

    @staticmethod
    def _end_of_trailers(data: bytes, at: int) -> int | None:
        """Where the body ends; None where that has not come. They are read over."""
        end = data.find(_END + _END, at)
        if end >= 0:
            return end + 2 * len(_END)
        if len(data) - at > _LONGEST_LINE:
            raise NoChunk("what follows the last chunk does not end")
        return None
