"""One connection: bytes come in, requests are told apart, answers go out.

A small call that comes whole is answered directly. Every other request is read by
`StreamingProtocol`, which hands back what comes behind it. All answers are written here.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, Generic, Protocol, TypeVar

from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, HttpVersion11

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_http.request_head import AnyRequestHead, RequestHead, is_target
from batchedmodel_http.response import Answer, Reply, Response, Sending, StreamedResponse
from batchedmodel_http.streaming import UNREADABLE, Manner, NeedsStreaming, StreamingProtocol

logger: Final = logging.getLogger(__name__)

AskedIn = TypeVar("AskedIn", bound=RequestHead, contravariant=True)

_LONGEST_HEAD: Final = 4096
"""Bytes of a head that is read here."""
_MOST_HEADS: Final = 256
"""That are kept. Each takes up to 32 KiB, whatever the budget of bodies."""
_PARSER_BUFFER: Final = 64 * 1024
_ARRIVED: Final = memoryview(bytearray(64 * 1024))
"""What just came, over whichever connection: it is taken from here before anything else can come.
A process serves with one loop."""
_LARGEST: Final = 32 * 1024
"""Bytes of a body that is answered here; what HTTP costs is little beside a larger one."""
_MOST_PIPELINED: Final = 64 * 1024
"""Bytes that are taken while an earlier request is being answered."""
_FREE_PIPELINED: Final = 4096
"""So many of them are nobody's business."""
_PARTIAL_SECONDS: Final = 0.05
"""Seconds for the rest of a request that came in pieces; `StreamingProtocol` bounds slower ones."""
_LARGE_ANSWER: Final = 64 * 1024
_USUAL: Final = Manner()
_END_OF_HEAD: Final = b"\r\n\r\n"


class Running(Protocol):
    """A call that is being answered."""

    def cancel(self) -> None:
        """Its caller has left: end it. Nobody is told anything any more."""
        ...


class Answers(Protocol[AskedIn]):
    """Who answers what is asked."""

    def is_call(self, asked: AskedIn) -> bool:
        """Whether `answer` is asked; `handle` is asked all else."""
        ...

    def answer(self, asked: AskedIn, source: bytes, caller: str, reply: Reply) -> Running:
        """Begin to answer a call with this body.

        `reply` is called once, perhaps before this returns: with a response or `NeedsStreaming`, or
        with an error where there is a bug.
        """
        ...

    async def handle(self, request: web.BaseRequest) -> Answer:
        """Answer a request whose body streams."""
        ...

    def unreadable(self, status: int, rule: str) -> Response:
        """The answer to bytes that are no request, or to one for which there is no room (429)."""
        ...

    def left_early(self) -> None:
        """A caller left before all of its call was here."""
        ...


class ConnectionHost(Protocol):
    """Who keeps the connections."""

    def ends(self, connection: "Connection[Any]") -> bool:
        """Whether a connection should end behind its present answer."""
        ...

    def entered(self, connection: "Connection[Any]") -> bool:
        """A caller has come; False when it may not stay."""
        ...

    def pipelined(self, connection: "Connection[Any]", size: int) -> bool:
        """So many bytes are kept of requests that wait or are not whole; False: they may not."""
        ...

    def unread(self, connection: "Connection[Any]") -> None:
        """A large answer was written, or the caller reads more slowly than it asks."""
        ...

    def left(self, connection: "Connection[Any]") -> None:
        """A caller has left, and its `StreamingProtocol` has ended."""
        ...


class _Stage(Enum):
    BETWEEN = auto()
    """No request is being answered; perhaps a part of the next one is here."""
    ANSWERING = auto()
    """A call is being answered."""
    WRITING_PAUSED = auto()
    """It is answered, but its caller does not read fast enough to ask for more."""
    NEXT_DUE = auto()
    """It is answered, and what came behind it is taken in the loop's next turn."""
    STREAMING = auto()
    """`StreamingProtocol` reads a request, or it is being answered."""


class HeadCache(Generic[AnyRequestHead]):
    """Heads of requests, each read once: clients send the same bytes again and again.

    What a head means is aiohttp's parser's judgement, and what that does not take, or what is not a
    plain request whose end is known, is nothing here. Bounded, and forgotten as a whole.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, make: Callable[..., AnyRequestHead]
    ) -> None:
        """`make`: given what `RequestHead` is made of."""
        self._make = make
        self._loop = loop
        self._protocol = BaseProtocol(loop)  # the parser wants one to hold back; nothing is held
        self._known: dict[bytes, AnyRequestHead | None] = {}

    def of(self, head: bytes) -> AnyRequestHead | None:
        """What a head says, which ends with its empty line; None if it is not a plain request."""
        try:
            return self._known[head]
        except KeyError:
            asked = self._read(head)
            if len(self._known) >= _MOST_HEADS:
                self._known.clear()  # callers that never repeat a head gain nothing by an order
            self._known[head] = asked
            return asked

    def _read(self, head: bytes) -> AnyRequestHead | None:
        # Any: what its extension in C makes is no such class as its types say.
        parser: Any = HttpRequestParser(
            self._protocol, self._loop, _PARSER_BUFFER, auto_decompress=False
        )
        try:
            messages, _, tail = parser.feed_data(head)
        except UNREADABLE:
            return None
        if len(messages) != 1 or tail:
            return None
        message = messages[0][0]
        declared = message.headers.get("Content-Length", "0")
        if (
            message.version != HttpVersion11
            or message.should_close
            or message.method == "CONNECT"
            or message.chunked
            or "Expect" in message.headers
            or not declared.isdecimal()
            or not is_target(message.path)
        ):
            return None
        return self._make(
            method=message.method,
            target=message.path,
            headers=message.headers,
            declared=int(declared),
        )


class _Direct:
    """Memory that is being filled by what comes."""

    __slots__ = ("arrived", "filled", "full", "memory")

    def __init__(
        self, memory: memoryview, arrived: Callable[[int], None], full: "asyncio.Future[None]"
    ) -> None:
        # No dataclass: a compiled one does not find the type `memoryview`.
        self.memory = memory
        self.arrived = arrived
        self.full = full
        self.filled = 0


class Connection(asyncio.BufferedProtocol, Generic[AnyRequestHead]):
    """Tells the requests of one connection apart, and who answers each."""

    __slots__ = (
        "_answers", "_charged", "_direct", "_heads", "_host", "_loop",
        "_partial_timer", "_pipelined", "_reading_paused", "_request", "_running", "_sending",
        "_stage", "_streaming", "_unfinished", "_writing_paused", "answered", "caller",
        "last_used", "transport",
    )  # fmt: skip

    def __init__(
        self,
        host: ConnectionHost,
        answers: Answers[AnyRequestHead],
        heads: HeadCache[AnyRequestHead],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._host = host
        self._answers = answers
        self._heads = heads
        self._loop = loop
        self.transport: Any = None
        self.caller = ""
        """Its address, where it has one."""
        self.last_used = loop.time()
        self.answered = False
        """Whether a request was."""
        self._stage = _Stage.BETWEEN
        self._pipelined = b""
        """Bytes of requests that are not taken yet, or not whole."""
        self._direct: _Direct | None = None
        """Where what comes next goes, if not through the buffer."""
        self._unfinished = 0
        """Bytes that `StreamingProtocol` holds of a request that is not whole."""
        self._charged = 0
        """Bytes that the host counts."""
        self._request = b""
        """The call that is being answered; kept in case it needs streaming."""
        self._running: Running | None = None
        self._sending: Sending | None = None
        """The streamed answer that is on its way."""
        self._writing_paused = False
        self._reading_paused = False
        """Whether reading is paused until what came is answered."""
        self._streaming: StreamingProtocol | None = None
        self._partial_timer: asyncio.TimerHandle | None = None

    @property
    def at_work(self) -> bool:
        """Whether a request is here that is not answered; what was answered may still be unread."""
        if self.transport.is_closing():
            return False
        if self._streaming is not None and not self._streaming.idle:
            return True
        return self._stage in (_Stage.ANSWERING, _Stage.NEXT_DUE) or self._partial_timer is not None

    @property
    def arriving(self) -> bool:
        """Whether its caller has not sent all of a body, and takes its time."""
        return self._streaming is not None and self._streaming.arriving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A caller is there."""
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.caller = str(peer[0]) if isinstance(peer, tuple) else ""
        # Callers that vanish without a word would be kept until their age.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if not self._host.entered(self):
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The caller has left: nobody answers it any more."""
        if self._partial_timer is not None:
            self._stop_partial_timer()
            if self._begun(self._pipelined)[0] is not None:
                self._answers.left_early()
        if self._running is not None:
            self._running.cancel()
        if self._streaming is None or self._streaming.idle:
            self._end(exc)
        else:
            # It begins with a request in the turn after it came. Told of the loss before that, it
            # would forget a request that nobody has counted.
            self._loop.call_soon(self._end, exc)

    def _end(self, exc: Exception | None) -> None:
        if self._sending is not None:
            self._sending.cancel()
        if self._streaming is not None:
            self._streaming.connection_lost(exc)
            self._streaming = None  # as it knows this connection
        self._host.left(self)

    def used(self) -> None:
        """A request was answered."""
        self.answered = True
        self.last_used = self._loop.time()

    def data_received(self, data: bytes) -> None:
        """Some bytes, of whatever they are a part."""
        match self._stage:
            case _Stage.BETWEEN:
                self._take(self._pipelined + data if self._pipelined else data)
            case _Stage.STREAMING:
                self._to_streaming(data)
            case _:
                self._came_behind(data)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: through one buffer, or straight to memory of a body.

        Through the buffer a piece becomes an object of its own; a large body would be copied.
        """
        direct = self._direct
        return _ARRIVED if direct is None else direct.memory[direct.filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
        direct = self._direct
        if direct is None:
            self.data_received(bytes(_ARRIVED[:nbytes]))
            return
        direct.filled += nbytes
        try:
            direct.arrived(nbytes)
        except Exception as error:
            self._direct = None
            if not direct.full.done():
                direct.full.set_exception(error)
            # The error keeps this frame, which must not keep the future that keeps the error.
            del direct
        else:
            if direct.filled == len(direct.memory):
                # What comes behind is not part of it.
                self._direct = None
                if not direct.full.done():
                    direct.full.set_result(None)

    async def receive(self, memory: memoryview, arrived: Callable[[int], None]) -> None:
        """Have what comes next written straight to memory; returns when that is full.

        `arrived` is told how many bytes came; what it raises is raised.
        """
        full: asyncio.Future[None] = self._loop.create_future()
        self._direct = _Direct(memory, arrived, full)
        try:
            await full
        finally:
            self._direct = None
            memory = memoryview(b"")  # an error keeps this frame, which must not keep the memory
            del full

    def pause_writing(self) -> None:
        """The caller reads more slowly than it asks."""
        self._writing_paused = True
        self._host.unread(self)
        if self._sending is not None:
            self._sending.pause()
        if self._streaming is not None:
            self._streaming.pause_writing()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._writing_paused = False
        if self._sending is not None:
            self._sending.resume()
        if self._streaming is not None:
            self._streaming.resume_writing()
        if self._stage is _Stage.WRITING_PAUSED:
            self._next()

    def _take(self, data: bytes) -> None:
        """Look at what begins with a request."""
        asked, end = self._begun(data)
        if asked is None:
            self._stream(data) if end or len(data) >= _LONGEST_HEAD else self._wait(data)
            return
        whole = end + asked.declared
        if asked.declared > _LARGEST or not self._answers.is_call(asked):
            self._stream(data)
        elif len(data) < whole:
            self._wait(data)
        else:
            if self._partial_timer is not None:
                self._stop_partial_timer()
            if len(data) == whole and not self._charged:
                self._pipelined = b""
                self._answer(asked, data, data[end:])
            elif self._keep_pipelined(data[whole:]):
                self._answer(asked, data[:whole], data[end:whole])

    def _came_behind(self, data: bytes) -> None:
        """Some bytes behind the present request."""
        self._keep_pipelined(self._pipelined + data)

    def _keep_pipelined(self, pipelined: bytes) -> bool:
        """Keep bytes that came behind the present request; False when there is no room for them.

        Then the connection ends: a caller that sends ahead without measure is answered no more.
        """
        self._pipelined = pipelined
        if not self._may_keep():
            self._pipelined = b""
            self.transport.abort()
            return False
        if len(pipelined) > _MOST_PIPELINED and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()
        return True

    def _holds(self, unfinished: int) -> bool:
        """So many bytes are held of a request that is not whole; False: there is no room."""
        self._unfinished = unfinished
        return self._may_keep()

    def _may_keep(self) -> bool:
        """Have the host count what is kept; False when there is no room for it."""
        behind = len(self._pipelined)
        size = self._unfinished + (behind if behind > _FREE_PIPELINED else 0)
        if size == self._charged:
            return True
        self._charged = size
        if self._host.pipelined(self, size):
            return True
        self._charged = self._unfinished = 0
        return False

    def _begun(self, data: bytes) -> tuple[AnyRequestHead | None, int]:
        """The head, if it is a plain one, and where its body begins; 0 where that has not come."""
        end = data.find(_END_OF_HEAD, 0, _LONGEST_HEAD) + len(_END_OF_HEAD)
        return (self._heads.of(data[:end]), end) if end >= len(_END_OF_HEAD) else (None, 0)

    def _answer(self, asked: AnyRequestHead, request: bytes, body: bytes) -> None:
        self._stage = _Stage.ANSWERING
        self._request = request
        running = self._answers.answer(asked, body, self.caller, self._answered)
        if self._request:  # not answered already
            self._running = running

    def _answered(self, response: Answer | None, error: BaseException | None) -> None:
        request, self._request, self._running = self._request, b"", None
        if error is not None and isinstance(error, NeedsStreaming):
            self._stream(request + self._pipelined)
            return
        streaming = self._streaming if self._stage is _Stage.STREAMING else None
        manner = _USUAL if streaming is None else streaming.manner
        ends = manner.last or self._host.ends(self)
        if isinstance(response, StreamedResponse):
            self._send(response, manner, ends=ends or response.last or manner.is_old)
            return
        try:
            wire = None if response is None else _wire(response, manner, ends=ends)
        except Exception as bug:
            wire, error = None, bug
        if wire is None:
            # A caller that is hung up on asks again; one that hears nothing waits.
            logger.error("a request was not answered", exc_info=error)
            self.transport.abort()
            return
        # A loss is told a turn later; what has ended takes no more.
        if self.transport.is_closing():
            return
        self.transport.writelines(wire)
        if len(wire) > 1 or len(wire[0]) > _LARGE_ANSWER:
            self._host.unread(self)
        self._go_on(ends=ends)

    def _send(self, response: StreamedResponse, manner: Manner, *, ends: bool) -> None:
        def ended(whole: bool) -> None:
            self._sending = None
            if whole:
                self._go_on(ends=ends)

        # What a caller has not read of an earlier answer pauses this one, too.
        chunked = not (manner.is_old or manner.head_only)
        sending = Sending(response, self.transport, close=ends, chunked=chunked, ended=ended)
        self._sending = sending
        if self._writing_paused:
            sending.pause()
        response.source.begin(sending)

    def _go_on(self, *, ends: bool) -> None:
        """A request is answered."""
        self.used()
        if self._stage is _Stage.STREAMING and self._streaming is not None:
            self._streaming.answered(ends=ends)
        else:
            self._follow(ends)

    def _follow(self, ends: bool) -> None:
        """Nothing more of the answered request comes."""
        if ends:
            self.transport.close()
        elif self._writing_paused:
            self._stage = _Stage.WRITING_PAUSED
        else:
            self._next()

    def _next(self) -> None:
        """Take the next request, which may be here already."""
        if not self._pipelined:
            self._stage = _Stage.BETWEEN
            return
        # In a turn of its own: a caller that sends a thousand at once must not be served alone.
        self._stage = _Stage.NEXT_DUE
        self._loop.call_soon(self._take_pipelined)

    def _take_pipelined(self) -> None:
        if self.transport.is_closing():
            return
        self._stage = _Stage.BETWEEN
        self._take(self._pipelined)
        if self._reading_paused and len(self._pipelined) <= _MOST_PIPELINED:
            self._resume_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self.transport.resume_reading()

    def _wait(self, data: bytes) -> None:
        """Wait for the rest; most is sent in two pieces, one right behind the other."""
        self._pipelined = data
        if self._partial_timer is None:
            self._partial_timer = self._loop.call_later(_PARTIAL_SECONDS, self._partial_is_late)

    def _partial_is_late(self) -> None:
        self._partial_timer = None
        self._stream(self._pipelined)

    def _stop_partial_timer(self) -> None:
        if self._partial_timer is not None:
            self._partial_timer.cancel()
            self._partial_timer = None

    def _stream(self, data: bytes) -> None:
        """Have a request read that begins with these bytes."""
        self._stage = _Stage.STREAMING
        self._stop_partial_timer()
        self._resume_reading()  # now, because the protocol may want to pause it
        self._keep_pipelined(b"")
        if self._streaming is None:
            self._streaming = StreamingProtocol(
                self._answers.handle,
                unreadable=self._answers.unreadable,
                reply=self._answered,
                ended=self._follow,
                behind=self._came_behind,
                holds=self._holds,
                receive=self.receive,
                loop=self._loop,
            )
            self._streaming.connection_made(self.transport)
            if self._writing_paused:
                self._streaming.pause_writing()
        self._to_streaming(data)

    def _to_streaming(self, data: bytes) -> None:
        self.last_used = self._loop.time()
        if self._streaming is not None:
            self._streaming.data_received(data)


def _wire(response: Response, manner: Manner, *, ends: bool) -> list[Buffer]:
    if manner.is_old and not ends:
        response = response.with_header("Connection", "keep-alive")
    return response.to_wire(close=ends, head_only=manner.head_only)
