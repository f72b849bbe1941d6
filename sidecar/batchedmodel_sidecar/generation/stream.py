"""One request for generated text: it waits, is sent to the server, and its answer passes through.

The answer is not held back and not changed: each piece that arrives is written at once. No task
belongs to it, only callbacks and one timer.
"""

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum, auto
from http import HTTPStatus
from typing import Final, Protocol

from batchedmodel_contract.outcomes import Outcome
from batchedmodel_http.interfaces import Reply, unheard
from batchedmodel_http.response import Headers
from batchedmodel_http.streamed_response import Sending, StreamedResponse
from batchedmodel_scheduling.generation.admission import GenerationRequest
from batchedmodel_sidecar.backends.foreign.headers import passed_on
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.errors import Busy, CallError, Expired, Lost, Unserved
from batchedmodel_sidecar.generation.engine_client import AnswerListener, EngineHead, Exchange
from batchedmodel_sidecar.generation.events import EVENT_STREAM, KEEP_ALIVE, Usage, error_event
from batchedmodel_sidecar.http.routed_head import RequestHead
from batchedmodel_sidecar.protocols.headers import REQUEST_ID_HEADER, writable

KEEP_ALIVE_SECONDS: Final = 15.0
"""Of silence in a stream, after which a comment is written: proxies end what is silent for long."""
_MOST_RESTS: Final = 3
"""So often a request is sent again that the server did not begin with."""
_MOST_DEATHS: Final = 2
_LONGEST_REST: Final = 5.0
_USUAL_REST: Final = 1.0
_MOST_KEPT: Final = 64 * 1024
"""Bytes of a whole answer that are kept to read its usage."""
_RESTS: Final = frozenset(
    {HTTPStatus.TOO_MANY_REQUESTS.value, HTTPStatus.SERVICE_UNAVAILABLE.value}
)
_FRAMED_ANEW: Final[Sequence[str]] = ("content-length",)


Ask = Callable[[AnswerListener, GenerationRequest], Exchange]
"""Sends a request to the server that answers it."""


class Streams(Protocol):
    """Who lets requests go, and hears of their ends."""

    def heard(self, stream: "GenerationStream", tokens: int, now: float) -> None:
        """So many tokens came; the first that came are the first of all."""
        ...

    def comes_back(self, stream: "GenerationStream", rest_seconds: float) -> None:
        """The server did not begin with it: it waits again, and its like rest for so long."""
        ...

    def ended(self, stream: "GenerationStream", outcome: Outcome, *, waited: bool) -> None:
        """It is settled, whatever it was doing; told once. `waited`: the server did not have it."""
        ...

    def told(self, stream: "GenerationStream", error: CallError) -> None:
        """Answer it with an error."""
        ...


class _Stage(Enum):
    WAITING = auto()
    ASKED = auto()
    """The server has it, and has not begun to answer."""
    ANSWERING = auto()
    SETTLED = auto()


class GenerationStream:
    """One such request, from its acceptance to its end."""

    __slots__ = (
        "_adds", "_ahead", "_ask", "_counted", "_events", "_exchange", "_kept", "_limit",
        "_loop", "_paused_at", "_reply", "_sending", "_stage", "_streams", "_streams_on",
        "_timer", "_tries", "_whole", "_written_at", "asked", "first_at", "heard_at", "held",
        "request", "usage", "work",
    )  # fmt: skip

    def __init__(
        self,
        streams: Streams,
        ask: Ask,
        request: GenerationRequest,
        asked: RequestHead,
        held: Hold,
        reply: Reply,
        limit: float,
        work: float,
    ) -> None:
        """`limit`: seconds to the first token, and of silence behind it; `work`: what it costs."""
        self._streams = streams
        self._ask: Ask | None = ask
        """Keeps what is asked until the server has begun to answer."""
        self.request: Final = request
        self.asked: Final = asked
        self.held: Final = held
        """Counts the body."""
        self._reply = reply
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._stage = _Stage.WAITING
        self._exchange: Exchange | None = None
        self._sending: Sending | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tries = 0
        self._streams_on = False
        """Whether the answer is a stream, of which only the silence is bounded."""
        self._events = False
        """Whether it is one of events that may be read here."""
        self._adds = False
        """Whether others may be written between them."""
        self._counted = False
        """Whether its tokens are told."""
        self.usage: Final = Usage()
        self._kept: bytearray | None = bytearray()
        """All of an answer that is no stream, while it is short."""
        self._ahead: list[bytes] = []
        """What came before its caller's connection took the head."""
        self._whole: bool | None = None
        """Once no more comes: whether the answer is whole."""
        self.work: Final = work
        self.first_at: float | None = None
        """When its first token came; who hears of tokens notes it."""
        self.heard_at = self._written_at = 0.0
        """When something came last, and when something was written."""
        self._paused_at: float | None = None

    @property
    def waits(self) -> bool:
        """Whether the server does not have it."""
        return self._stage is _Stage.WAITING

    def go(self) -> None:
        """Send it to the server."""
        self._stage = _Stage.ASKED
        self._tries += 1
        self.heard_at = self._loop.time()
        assert self._ask is not None, "what has an answer is not asked again: our bug"
        self._exchange = self._ask(self, self.request)
        self._look_at(self.request.deadline)

    def give_up(self, error: CallError, outcome: Outcome) -> None:
        """End it: nothing more is to be had, or its time is over."""
        if self._exchange is not None:
            self._exchange.cancel()
        self._fail(error, outcome)

    def cancel(self) -> None:
        """Its caller has left: the server need not go on."""
        self._reply = unheard
        self._sending = None
        if self._exchange is not None:
            self._exchange.cancel()
        self._settle(Outcome.CANCELLED)

    def answered(self, head: EngineHead) -> None:
        """The server began to answer."""
        if head.status in _RESTS and self._may_rest():
            assert self._exchange is not None, "who was not asked does not answer: our bug"
            self._exchange.cancel()
            self._stage, self._exchange = _Stage.WAITING, None
            self._streams.comes_back(self, _rest_of(head))
            return
        self._stage = _Stage.ANSWERING
        self.heard_at = self._written_at = self._loop.time()
        self._ask = None
        self.held.release()
        is_events = head.header("content-type").lower().startswith(EVENT_STREAM)
        self._streams_on = is_events
        self._counted = head.counted
        self._events = is_events and not head.header("content-encoding")
        self._adds = self._events and head.length is None
        self.usage.failed = head.status >= HTTPStatus.BAD_REQUEST
        if is_events or head.counted or self.usage.failed:
            self._kept = None
        reply, self._reply = self._reply, unheard
        # While a stream lasts its pod may begin to go, or others may come, and its head cannot tell
        # that later. Whoever asks behind it asks on a new connection, at a pod that stays.
        response = StreamedResponse(
            self,
            status=head.status,
            reason=writable(head.reason),
            headers=self._headers(head),
            length=head.length,
            last=is_events,
        )
        reply(response, None)
        if is_events and self._stage is _Stage.ANSWERING:
            self._look()

    def tokens(self, count: int) -> None:
        """The server made so many tokens."""
        now = self.heard_at = self._loop.time()
        self.usage.output_tokens += count
        self._streams.heard(self, count, now)

    def piece(self, data: bytes) -> None:
        """A piece of the body."""
        now = self.heard_at = self._loop.time()
        if self._events and not self._counted:
            tokens = self.usage.events(data)
            if tokens:
                self._streams.heard(self, tokens, now)
        elif self._kept is not None:
            self._kept += data
            if len(self._kept) > _MOST_KEPT:
                self._kept = None
        if self._sending is None:
            self._ahead.append(data)
        else:
            self._sending.write(data)
            self._written_at = now

    def ended(self) -> None:
        """The body is whole."""
        self._whole = True
        if self._kept:
            self.usage.body(bytes(self._kept))
        if self._sending is not None:
            self._finish(self._sending)

    def broke_off(self, error: Unserved) -> None:
        """No more comes."""
        if self._stage is _Stage.ASKED and self._may_come_back(error):
            self._stage, self._exchange = _Stage.WAITING, None
            self._streams.comes_back(self, _USUAL_REST)
            return
        self._fail(error, Outcome.FAILED)

    def begin(self, sending: Sending) -> None:
        """The head is written: pieces may be sent."""
        self._sending = sending
        ahead, self._ahead = self._ahead, []
        for piece in ahead:
            sending.write(piece)
        if self._whole is not None:
            self._finish(sending)

    def pause(self) -> None:
        """The caller reads more slowly than pieces come."""
        self._paused_at = self._loop.time()
        if self._exchange is not None:
            self._exchange.pause()

    def resume(self) -> None:
        """It has caught up."""
        self._paused_at = None
        if self._exchange is not None:
            self._exchange.resume()

    def _may_rest(self, most: int = _MOST_RESTS) -> bool:
        """Whether it may be sent again."""
        return self._tries < most and self._loop.time() < self.request.deadline

    def _may_come_back(self, error: Unserved) -> bool:
        """Whether it may be sent again of which nothing was heard.

        What met a server that went away may have killed it: it is sent once more, and no more.
        """
        if isinstance(error, Busy):
            self._tries -= 1  # nobody has seen it
            return self._loop.time() < self.request.deadline
        return isinstance(error, Lost) and self._may_rest(_MOST_DEATHS)

    def _headers(self, head: EngineHead) -> Headers:
        """Those of the server, as they are."""
        named = passed_on(head.headers, _FRAMED_ANEW)
        if self.asked.request_id is not None and not head.header(REQUEST_ID_HEADER):
            named = (*named, (REQUEST_ID_HEADER, self.asked.request_id))
        return named

    def _finish(self, sending: Sending) -> None:
        """All that came is written."""
        self._sending = None
        whole = self._whole is True
        sending.end(whole=whole)
        self._settle(Outcome.FAILED if not whole or self.usage.failed else Outcome.COMPLETED)

    def _fail(self, error: CallError, outcome: Outcome) -> None:
        """Tell the caller, in the form that it can still read."""
        if self._stage is _Stage.SETTLED:
            return
        if self._stage is not _Stage.ANSWERING:
            self._settle(outcome)
            self._streams.told(self, error)
            return
        event = b""
        if self._adds:
            # What came last may have been the beginning of an event.
            event = (b"" if self.usage.at_end_of_event else b"\n\n") + error_event(
                error, self.asked.path
            )
        self._whole = bool(event)
        self.usage.failed = True
        sending, self._sending = self._sending, None
        if sending is not None:
            if event:
                sending.write(event)
            sending.end(whole=bool(event))
        elif event:
            self._ahead.append(event)
        self._settle(outcome)

    def _settle(self, outcome: Outcome) -> None:
        if self._stage is _Stage.SETTLED:
            return
        waited, self._stage = self.waits, _Stage.SETTLED
        self._exchange = self._ask = None
        self.held.release()
        self._stop_timer()
        self._streams.ended(self, outcome, waited=waited)

    def take_reply(self) -> Reply:
        """Who hears of its end, for the last time."""
        reply, self._reply = self._reply, unheard
        return reply

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, when: float) -> None:
        self._stop_timer()
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        """Whether its server is silent for too long, or its caller does not read."""
        self._stop_timer()
        now = self._loop.time()
        if self._stage is _Stage.WAITING or self._stage is _Stage.SETTLED:
            return
        if self._paused_at is not None:
            cut_at = self._paused_at + self._limit
            if now >= cut_at:
                assert self._exchange is not None, "what is paused is under way: our bug"
                self._exchange.cancel()
                self._cut()
                return
            self._look_at(cut_at)
            return
        streaming = self._streams_on and self._stage is _Stage.ANSWERING
        late_at = self.heard_at + self._limit if streaming else self.request.deadline
        if now >= late_at:
            self.give_up(Expired(self._limit), Outcome.EXPIRED)
            return
        if not streaming:
            self._look_at(late_at)
            return
        comment_at = self._written_at + KEEP_ALIVE_SECONDS
        if now >= comment_at:
            may_write = self._adds and self.usage.at_end_of_event
            if may_write and self._sending is not None:
                self._sending.write(KEEP_ALIVE)
            self._written_at = now
            comment_at = now + KEEP_ALIVE_SECONDS
        self._look_at(min(late_at, comment_at))

    def _cut(self) -> None:
        """Break the connection of a caller off that does not read."""
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.end(whole=False)
        self._settle(Outcome.CANCELLED)


def _rest_of(head: EngineHead) -> float:
    """Seconds for which the server wants to be left alone."""
    told = head.header("retry-after")
    seconds = float(told) if told.isdecimal() else _USUAL_REST
    return min(max(seconds, 0.1), _LONGEST_REST)
