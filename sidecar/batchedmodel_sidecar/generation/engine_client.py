"""One request to a language model's server over a connection of its own, its answer in pieces.

A general client wakes a task for each piece that arrives. Here a piece is one callback, whoever
waits for it. The head is read by aiohttp's public parser, and so are none of the bytes behind it.
"""

import asyncio
import logging
import ssl
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpResponseParser
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_http.eager_coroutine import EagerCoroutine
from batchedmodel_http.response import Headers, is_empty
from batchedmodel_sidecar.errors import Busy, Lost, Unserved
from batchedmodel_sidecar.generation.chunks import ChunkDecoder, NoChunk

logger: Final = logging.getLogger(__name__)

_END_OF_HEAD: Final = b"\r\n\r\n"
_LONGEST_HEAD: Final = 64 * 1024
_MOST_PROVISIONAL: Final = 16
"""Heads in front of an answer's that say only that it is to come."""
_CHUNKED: Final = "chunked"


class EngineHead(NamedTuple):
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

    def answered(self, head: EngineHead) -> None:
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


class Engine(Protocol):
    """Who sends requests to a server."""

    def ask(
        self, listener: AnswerListener, target: str, headers: Headers, body: Sequence[Buffer]
    ) -> Exchange:
        """Send a POST. `target`: path and query as the caller sent them."""
        ...


class EngineClient:
    """Where a server listens."""

    def __init__(self, url: str) -> None:
        """`url` has no path. A certificate of `https` must be signed by who OpenSSL trusts."""
        parsed = URL(url)
        self._host: Final = parsed.host or ""
        self._port: Final = parsed.port or 80
        self._tls: Final = ssl.create_default_context() if parsed.scheme == "https" else None
        self._names_host: Final = f"Host: {parsed.host_port_subcomponent}\r\n"
        self._loop = asyncio.get_running_loop()

    def ask(
        self, listener: AnswerListener, target: str, headers: Headers, body: Sequence[Buffer]
    ) -> Exchange:
        """Send a POST; see `Engine`."""
        size = sum(map(len, body))
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        head = (
            f"POST {target} HTTP/1.1\r\n{self._names_host}{lines}"
            f"Content-Length: {size}\r\nConnection: close\r\n\r\n"
        ).encode(errors="surrogateescape")
        exchange = EngineExchange(listener, [head, *body], self._loop)
        exchange.connecting(EagerCoroutine(self._connect(exchange), exchange.connected, self._loop))
        return exchange

    async def _connect(self, exchange: "EngineExchange") -> None:
        try:
            await self._loop.create_connection(
                lambda: exchange, self._host, self._port, ssl=self._tls
            )
        except ssl.SSLCertVerificationError as error:
            raise Busy(f"the model's certificate is not trusted: {error.verify_message}") from error
        except (OSError, UnicodeError) as error:  # the last of odd host names
            raise Busy("the model cannot be reached") from error


class EngineExchange(asyncio.Protocol):
    """A request that is at the server, and its answer."""

    __slots__ = (
        "_connecting", "_decoder", "_head", "_left", "_listener", "_loop", "_paused",
        "_provisional", "_request", "_transport",
    )  # fmt: skip

    def __init__(
        self,
        listener: AnswerListener,
        request: list[Buffer],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._listener: AnswerListener | None = listener
        self._request = request
        self._loop = loop
        self._connecting: EagerCoroutine[None] | None = None
        self._transport: Any = None
        self._head: bytes | None = b""
        """What came of the head; None behind it."""
        self._provisional = 0
        self._decoder: ChunkDecoder | None = None
        self._left: int | None = None
        """Bytes that the body lacks; None where nobody says so."""
        self._paused = False

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
        self._listener = None
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Take no more of the answer for now."""
        self._paused = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Go on."""
        self._paused = False
        if self._transport is not None and not self._transport.is_closing():
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
        if self._head is None and self._decoder is None and self._left is None and exc is None:
            self._end()
        else:
            self._fail(Lost("the model went away while it worked on this"))

    def data_received(self, data: bytes) -> None:
        """Some bytes of the answer."""
        if self._head is not None:
            data = self._after_head(data)
        if self._listener is None or not data:
            return
        if self._decoder is not None:
            try:
                data = self._decoder.feed(data)
            except NoChunk as error:
                self._nonsense(error)
                return
            if data:
                self._listener.piece(data)
            if self._decoder.ended:
                self._end()
        elif self._left is None:
            self._listener.piece(data)
        else:
            piece = data[: self._left]
            self._left -= len(piece)
            if piece:
                self._listener.piece(piece)
            if not self._left:
                self._end()

    def _after_head(self, data: bytes) -> bytes:
        """Read heads until one is not provisional; what comes behind it."""
        while data and self._listener is not None:
            data, self._head = (self._head or b"") + data, b""
            end = data.find(_END_OF_HEAD) + len(_END_OF_HEAD)
            if end < len(_END_OF_HEAD):
                self._head = data
                if len(data) > _LONGEST_HEAD:
                    self._nonsense(ValueError("its head does not end"))
                return b""
            try:
                message = self._read(data[:end])
            except (HttpProcessingError, ValueError, IndexError) as error:
                self._nonsense(error)
                return b""
            data = data[end:]
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
        if is_empty(message.code):
            length = 0
        elif coding:
            self._decoder = ChunkDecoder()
        self._left = length
        reason = message.reason or ""
        headers = tuple(message.headers.items())
        self._listener.answered(EngineHead(message.code, reason, headers, length))
        if length == 0:
            self._end()

    def _nonsense(self, error: Exception) -> None:
        logger.debug("the model's answer is no HTTP: %s", error)
        message = "the model answers nonsense: what it sent is no HTTP"
        self._fail(Unserved(message, status=502, answered=True))

    def _end(self) -> None:
        listener, self._listener = self._listener, None
        if self._transport is not None:
            self._transport.close()
        if listener is not None:
            listener.ended()

    def _fail(self, error: Unserved) -> None:
        listener, self._listener = self._listener, None
        if self._transport is not None:
            self._transport.abort()
        if listener is not None:
            listener.broke_off(error)
