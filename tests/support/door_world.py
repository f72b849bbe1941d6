"""One connection's door in a pretended house, with a pretended front and a caller."""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from aiohttp import web

from batchedmodel_http.connection import Connection, HeadCache
from batchedmodel_http.request_head import RequestHead
from batchedmodel_http.response import Response
from batchedmodel_http.streaming import NeedsStreaming, StreamingProtocol
from support.responding import Responds
from support.wire import Wire

SECONDS: Final = "x-seconds"
"""After which a request is answered; without it at once."""
ENOUGH: Final = 64 * 1024
"""Bytes behind a request that is being answered, above which a caller is held back."""


@dataclass
class PretendFront(Responds):
    """Echoes calls, each after its `x-seconds`; some paths go alone, or wrong."""

    begun: int = 0
    cancelled: int = 0
    addresses: list[str] = field(default_factory=list)
    """Whence requests came."""
    left: int = 0
    """Callers whose requests had begun to arrive."""

    def left_early(self) -> None:
        self.left += 1

    def is_call(self, asked: RequestHead) -> bool:
        return asked.method == "POST" and asked.path in ("/call", "/alone", "/broken", "/unsaid")

    async def respond(self, asked: RequestHead, source: bytes, caller: str = "") -> Response:
        self.begun += 1
        self.addresses.append(caller)
        try:
            if SECONDS in asked.headers:
                await asyncio.sleep(float(asked.headers[SECONDS]))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        match asked.path:
            case "/alone":
                raise NeedsStreaming
            case "/broken":
                raise KeyError("a bug")
            case "/unsaid":
                return Response((source,), headers=(("x", "two\r\nlines"),))
        return Response((b"call:" + source,))


@dataclass
class PretendHouse:
    """Keeps doors; what aiohttp is asked is answered with the body, and with who answers it."""

    ending: bool = False
    full: bool = False
    seconds: float = 0.0
    """After which aiohttp's answers are ready."""
    reads_first: bool = True
    room: int = 1_000_000
    """For what comes behind a request."""
    behind_bytes: int = 0
    reads: bool = True
    """Whether bodies are read at all."""
    answer: asyncio.Future[Response] | None = None
    """What streamed requests get in place of aiohttp's answers."""
    inside: set[Connection[RequestHead]] = field(default_factory=set)
    generals: list[StreamingProtocol] = field(default_factory=list)
    begun: int = 0
    """Requests that aiohttp began with."""

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse | Response:
        self.begun += 1
        if self.answer is not None:
            return await asyncio.shield(self.answer)
        try:
            body = await request.read() if self.reads_first else b""
            await asyncio.sleep(self.seconds)
            if self.reads and not self.reads_first:
                body = await request.read()
        except web.RequestPayloadError:
            return web.Response(status=400, body=b"broken", headers={"Connection": "close"})
        return web.Response(body=b"general:" + body)

    def streaming(self, connection: Connection[RequestHead]) -> StreamingProtocol:
        loop = asyncio.get_running_loop()
        general = StreamingProtocol(
            self._handle,
            max_body_bytes=1_000_000,
            unreadable=unreadable,
            ends=lambda: False,
            used=connection.used,
            behind=partial(self.pipelined, connection),
            loop=loop,
        )
        self.generals.append(general)
        return general

    def ends(self, connection: Connection[RequestHead]) -> bool:
        return self.ending

    def entered(self, connection: Connection[RequestHead]) -> bool:
        if not self.full:
            self.inside.add(connection)
        return not self.full

    def pipelined(self, connection: Connection[RequestHead], size: int) -> bool:
        self.behind_bytes = size
        return size <= self.room

    def unread(self, connection: Connection[RequestHead]) -> None:
        """Nobody asks."""

    def left(self, connection: Connection[RequestHead]) -> None:
        self.inside.discard(connection)
        self.generals.clear()


@dataclass
class DoorWorld:
    """A door, who answers at it, and its caller."""

    front: PretendFront = field(default_factory=PretendFront)
    host: PretendHouse = field(default_factory=PretendHouse)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        left = self.front.left_early
        self.connection = Connection(
            self.host, self.front, HeadCache(loop, RequestHead), loop, left
        )
        self.wire = Wire(self.connection)

    @property
    def is_general(self) -> bool:
        """Whether aiohttp was ever asked."""
        return bool(self.host.generals)


def unreadable(status: int, rule: str) -> Response:
    return Response((f"unreadable: {rule}".encode(),), status=status)


def call(body: bytes = b"", *headers: str, path: str = "/call", method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def turns(number: int = 20) -> None:
    for _ in range(number):
        await asyncio.sleep(0)
