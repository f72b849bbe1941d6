"""One connection's door in a pretended house, with a pretended front and a caller."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from batchedmodel_http.connection import Connection, HeadCache
from batchedmodel_http.request_head import RequestHead
from batchedmodel_http.response import Response, StreamedResponse
from batchedmodel_http.streaming import NeedsStreaming, StreamingProtocol
from support.responding import Responds
from support.wire import Wire

SECONDS: Final = "x-seconds"
"""After which a request is answered; without it at once."""
ENOUGH: Final = 64 * 1024
"""Bytes behind a request that is being answered, above which a caller is held back."""


@dataclass
class PretendFront(Responds):
    """Echoes calls, each after its `x-seconds`; some paths go alone, or wrong.

    What streams is answered with its body, and with who answers it.
    """

    begun: int = 0
    cancelled: int = 0
    addresses: list[str] = field(default_factory=list)
    """Whence requests came."""
    left: int = 0
    """Callers whose requests had begun to arrive."""
    seconds: float = 0.0
    """After which answers to what streams are ready."""
    reads_first: bool = True
    reads: bool = True
    """Whether bodies that stream are read at all."""
    streamed_answer: asyncio.Future[Response] | None = None
    """What streamed requests get in place of their bodies."""
    streamed: int = 0
    """Requests that streamed."""

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

    async def handle(self, request: web.BaseRequest) -> Response | StreamedResponse:
        self.streamed += 1
        if self.streamed_answer is not None:
            return await asyncio.shield(self.streamed_answer)
        try:
            body = await request.read() if self.reads_first else b""
            await asyncio.sleep(self.seconds)
            if self.reads and not self.reads_first:
                body = await request.read()
        except web.RequestPayloadError:
            return Response((b"broken",), status=400)
        return Response((b"general:" + body,))

    def unreadable(self, status: int, rule: str) -> Response:
        return Response((f"unreadable: {rule}".encode(),), status=status)


@dataclass
class PretendHouse:
    """Keeps doors."""

    ending: bool = False
    full: bool = False
    room: int = 1_000_000
    """For what comes behind a request."""
    behind_bytes: int = 0
    inside: set[Connection[RequestHead]] = field(default_factory=set)

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


@dataclass
class DoorWorld:
    """A door, who answers at it, and its caller."""

    front: PretendFront = field(default_factory=PretendFront)
    host: PretendHouse = field(default_factory=PretendHouse)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.connection = Connection(self.host, self.front, HeadCache(loop, RequestHead), loop)
        self.wire = Wire(self.connection)

    @property
    def streaming(self) -> StreamingProtocol | None:
        """What reads requests that stream, once one came."""
        return self.connection._streaming


def call(body: bytes = b"", *headers: str, path: str = "/call", method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def turns(number: int = 20) -> None:
    for _ in range(number):
        await asyncio.sleep(0)
