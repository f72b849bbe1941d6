"""One connection: bytes come in, requests are told apart, answers go out.

A small call that comes whole is answered here, by whoever answers calls, with nothing of a general
server around it. Every other request is handed to the general way, byte by byte, and the connection
comes back when that has answered it; unless nobody but that knows where it ends.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, Generic, Protocol, TypeVar

from batchedmodel_http.head_cache import LONGEST, HeadCache
from batchedmodel_http.request_head import AnyRequestHead, RequestHead
from batchedmodel_http.response import Response
from batchedmodel_http.streaming import StreamingProtocol

logger: Final = logging.getLogger(__name__)

_LARGEST: Final = 32 * 1024
"""Bytes of a body that is answered here; what HTTP costs is little beside a larger one."""
_MOST_BEHIND: Final = 64 * 1024
"""Bytes that are taken while an earlier request is being answered."""
_FREE_BEHIND: Final = 4096
"""So many of them are nobody's business."""
_PATIENCE: Final = 0.05
"""Seconds for the rest of a request that came in pieces; the general way bounds slower ones."""
_LARGE_ANSWER: Final = 64 * 1024
_END_OF_HEAD: Final = b"\r\n\r\n"

Reply = Callable[[Response | None, BaseException | None], None]
"""Hears how a call ended: one of the two."""
AskedIn = TypeVar("AskedIn", bound=RequestHead, contravariant=True)


def unheard(response: Response | None, error: BaseException | None) -> None:
    """A `Reply` of a caller that has left."""


class NotHere(Exception):
    """A call that only the general way can bring to its answer; nothing has come of it so far."""


class Answers(Protocol[AskedIn]):
    """Who answers what is asked."""

    def is_call(self, asked: AskedIn) -> bool:
        """Whether `answer` is to be asked; the general way gets all else."""
        ...

    def answer(self, asked: AskedIn, source: bytes, caller: str, reply: Reply) -> "Running":
        """Begin to answer a call with this body.

        `reply` is called once, perhaps before this returns, with a response or `NotHere`, or with
        an error where there is a bug.
        """
        ...


class Running(Protocol):
    """A call that is being answered."""

    def cancel(self) -> None:
        """Its caller has left: end it. Nobody is told anything any more."""
        ...


class ConnectionHost(Protocol):
    """Who keeps the connections."""

    def general(self, connection: "Connection[Any]") -> StreamingProtocol:
        """What answers the other requests of a connection."""
        ...

    def ends(self, connection: "Connection[Any]") -> bool:
        """Whether a connection should end behind its present answer."""
        ...

    def entered(self, connection: "Connection[Any]") -> bool:
        """A caller has come; False when it may not stay."""
        ...

    def behind(self, connection: "Connection[Any]", size: int) -> bool:
        """So many bytes are here behind the present request; False when they may not stay."""
        ...

    def unread(self, connection: "Connection[Any]") -> None:
        """A large answer was written, or the caller reads more slowly than it asks."""
        ...

    def left(self, connection: "Connection[Any]") -> None:
        """A caller has gone, and what answered its other requests has ended."""
        ...


class _Stage(Enum):
    BETWEEN = auto()
    """No request is at work; perhaps a part of the next one is here."""
    ANSWERING = auto()
    """A call is being answered."""
    CHOKED = auto()
    """It is answered, but its caller does not read fast enough to ask for more."""
    DUE = auto()
    """It is answered, and what came behind it will be looked at in the loop's next turn."""
    GENERAL = auto()
    """The general way answers one whose end is known."""
    GENERAL_FOR_GOOD = auto()


class Connection(asyncio.Protocol, Generic[AnyRequestHead]):
    """Tells the requests of one connection apart, and who answers each."""

    __slots__ = (
        "_answers",
        "_behind",
        "_caller",
        "_charged",
        "_choked",
        "_deaf",
        "_general",
        "_heads",
        "_host",
        "_left",
        "_left_early",
        "_loop",
        "_patience",
        "_request",
        "_running",
        "_stage",
        "answered",
        "last_used",
        "transport",
    )  # fmt: skip

    def __init__(
        self,
        host: ConnectionHost,
        answers: Answers[AnyRequestHead],
        headings: HeadCache[AnyRequestHead],
        loop: asyncio.AbstractEventLoop,
        left_early: Callable[[], None] = lambda: None,
    ) -> None:
        """`left_early` is told of a caller that left before all of its call was here."""
        self._host = host
        self._answers = answers
        self._heads = headings
        self._loop = loop
        self._left_early = left_early
        self.transport: Any = None
        self._caller = ""
        """Its address, where it has one."""
        self.last_used = loop.time()
        self.answered = False
        """Whether a request was; whoever asks may take it back, to see the next."""
        self._stage = _Stage.BETWEEN
        self._behind = b""
        """What came and has not been looked at, or is not whole."""
        self._charged = False
        """Whether the host counts what is behind."""
        self._request = b""
        """The call that is being answered; kept for the general way, should that have to."""
        self._running: Running | None = None
        self._choked = False
        self._deaf = False
        """Whether no more is read until what came is answered."""
        self._general: StreamingProtocol | None = None
        self._left = 0
        """Bytes that the general way's present request still lacks."""
        self._patience: asyncio.TimerHandle | None = None

    @property
    def at_work(self) -> bool:
        """Whether a request is here that is not answered; what was answered may still be unread."""
        if self.transport.is_closing():
            return False
        if self._stage in (_Stage.GENERAL, _Stage.GENERAL_FOR_GOOD):
            return not self._generally_idle()
        return self._stage in (_Stage.ANSWERING, _Stage.DUE) or self._patience is not None

    @property
    def arriving(self) -> bool:
        """Whether its caller has not sent all of a body, and takes its time."""
        return self._general is not None and self._general.arriving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A caller is there."""
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self._caller = str(peer[0]) if isinstance(peer, tuple) else ""
        # Callers that vanish without a word would be kept until their age.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if not self._host.entered(self):
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The caller has left: nobody answers it any more."""
        if self._patience is not None:
            self._stop_waiting()
            if self._begun(self._behind)[0] is not None:
                self._left_early()
        if self._running is not None:
            self._running.cancel()
        if self._general is None or self._generally_idle():
            self._end(exc)
        else:
            # It begins with a request in the turn after it came. Told of the loss before, it would
            # forget one that nobody has counted yet.
            self._loop.call_soon(self._end, exc)

    def _end(self, exc: Exception | None) -> None:
        if self._general is not None:
            self._general.connection_lost(exc)
        self._host.left(self)

    def used(self) -> None:
        """A request was answered."""
        self.answered = True
        self.last_used = self._loop.time()

    def data_received(self, data: bytes) -> None:
        """Some bytes, of whatever they are a part."""
        match self._stage:
            case _Stage.BETWEEN:
                self._take(self._behind + data if self._behind else data)
            case _Stage.ANSWERING | _Stage.CHOKED | _Stage.DUE:
                self._keep(self._behind + data)
            case _Stage.GENERAL if not self._left and self._generally_idle():
                self._stage = _Stage.BETWEEN
                self._take(data)
            case _Stage.GENERAL if len(data) <= self._left:
                self._left -= len(data)
                self._to_general(data)
            case _:
                self._for_good(data)

    def pause_writing(self) -> None:
        """The caller reads more slowly than it asks."""
        self._choked = True
        self._host.unread(self)
        if self._general is not None:
            self._general.pause_writing()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._choked = False
        if self._general is not None:
            self._general.resume_writing()
        if self._stage is _Stage.CHOKED:
            self._next()

    def _take(self, data: bytes) -> None:
        """Look at what begins with a request."""
        asked, end = self._begun(data)
        if asked is None:
            self._for_good(data) if end or len(data) >= LONGEST else self._wait(data)
            return
        whole = end + asked.declared
        if asked.declared > _LARGEST or not self._answers.is_call(asked):
            self._generally(data, whole)
        elif len(data) < whole:
            self._wait(data)
        else:
            if self._patience is not None:
                self._stop_waiting()
            if len(data) == whole and not self._charged:
                self._behind = b""
                self._answer(asked, data, data[end:])
            elif self._keep(data[whole:]):
                self._answer(asked, data[:whole], data[end:whole])

    def _keep(self, behind: bytes) -> bool:
        """These bytes wait for the present request's answer; False when nobody has room for them.

        Then the connection ends: a caller that sends ahead without measure is answered no more.
        """
        self._behind = behind
        if len(behind) > _FREE_BEHIND or self._charged:
            self._charged = len(behind) > _FREE_BEHIND
            if not self._host.behind(self, len(behind) if self._charged else 0):
                self._behind = b""
                self.transport.abort()
                return False
            if len(behind) > _MOST_BEHIND and not self._deaf:
                self._deaf = True
                self.transport.pause_reading()
        return True

    def _begun(self, data: bytes) -> tuple[AnyRequestHead | None, int]:
        """What is asked here, if it is plain, and where its body begins; 0 if that has not come."""
        end = data.find(_END_OF_HEAD, 0, LONGEST) + len(_END_OF_HEAD)
        return (self._heads.of(data[:end]), end) if end >= len(_END_OF_HEAD) else (None, 0)

    def _answer(self, asked: AnyRequestHead, request: bytes, body: bytes) -> None:
        self._stage = _Stage.ANSWERING
        self._request = request
        running = self._answers.answer(asked, body, self._caller, self._answered)
        if self._request:  # not answered already
            self._running = running

    def _answered(self, response: Response | None, error: BaseException | None) -> None:
        request, self._request, self._running = self._request, b"", None
        if isinstance(error, NotHere):
            self._generally(request + self._behind, len(request))
            return
        ends = self._host.ends(self)
        try:
            wire = None if response is None else response.to_wire(close=ends)
        except Exception as bug:
            wire, error = None, bug
        if wire is None:
            # A caller that is hung up on asks again; one that hears nothing waits.
            logger.error("a request was not answered", exc_info=error)
            self.transport.abort()
            return
        self.transport.writelines(wire)
        if len(wire) > 1 or len(wire[0]) > _LARGE_ANSWER:
            self._host.unread(self)
        self.used()
        if ends:
            self.transport.close()
        elif self._choked:
            self._stage = _Stage.CHOKED
        else:
            self._next()

    def _next(self) -> None:
        """Be ready for the next request, which may be here already."""
        if not self._behind:
            self._stage = _Stage.BETWEEN
            return
        # In a turn of its own: a caller that sends a thousand at once must not be served alone.
        self._stage = _Stage.DUE
        self._loop.call_soon(self._look_behind)

    def _look_behind(self) -> None:
        if self.transport.is_closing():
            return
        self._stage = _Stage.BETWEEN
        self._take(self._behind)
        if self._deaf and len(self._behind) <= _MOST_BEHIND:
            self._hear()

    def _hear(self) -> None:
        if self._deaf:
            self._deaf = False
            self.transport.resume_reading()

    def _wait(self, data: bytes) -> None:
        """The rest will come; most is sent in two pieces, one right behind the other."""
        self._behind = data
        if self._patience is None:
            self._patience = self._loop.call_later(_PATIENCE, self._waited_enough)

    def _waited_enough(self) -> None:
        self._patience = None
        data, self._behind = self._behind, b""
        asked, end = self._begun(data)
        if asked is None:
            self._for_good(data)
        else:
            self._generally(data, end + asked.declared)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _generally(self, data: bytes, whole: int) -> None:
        """A request of so many bytes goes the general way."""
        if len(data) > whole:
            # More of them are here already, and nobody would say when the first is answered.
            self._for_good(data)
            return
        self._stage, self._left = _Stage.GENERAL, whole - len(data)
        self._to_general(data)

    def _for_good(self, data: bytes) -> None:
        self._stage = _Stage.GENERAL_FOR_GOOD
        self._to_general(data)

    def _to_general(self, data: bytes) -> None:
        self._stop_waiting()
        self._hear()  # now, because the general way may want to hold the caller back
        self._keep(b"")
        self.last_used = self._loop.time()
        if self._general is None:
            self._general = self._host.general(self)
            self._general.connection_made(self.transport)
            if self._choked:
                self._general.pause_writing()
        self._general.data_received(data)

    def _generally_idle(self) -> bool:
        """Whether all whole requests that the general way was given are answered."""
        return self._general is not None and self._general.idle
