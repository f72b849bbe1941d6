"""One request for generated text, from its admission to its end, at any engine.

It waits, is sent to the server, and its answer is written as it comes: no task belongs to it, only
callbacks and one timer. `EngineText` gets tokens of our engine, `UpstreamText` an upstream's
answer.
"""

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.outcomes import Outcome
from batchedmodel_http.response import Headers, Response, Sending, StreamedResponse
from batchedmodel_scheduling.generation.admission import GenerationRequest
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.errors import Busy, CallError, Expired, Unserved
from batchedmodel_sidecar.generation.events import KEEP_ALIVE, error_event
from batchedmodel_sidecar.generation.fields import Fields
from batchedmodel_sidecar.http.request import RequestHead
from batchedmodel_sidecar.protocols.headers import REQUEST_ID_HEADER

KEEP_ALIVE_SECONDS: Final = 15.0
"""Of silence in a stream, after which a comment is written: proxies end what is silent for long."""
USUAL_REST_SECONDS: Final = 1.0

Answer = Response | StreamedResponse


class TextListener(Protocol):
    """Who lets texts go, and hears of their ends."""

    def heard(self, text: "LiveText", tokens: int, now: float) -> None:
        """So many tokens came; the first that came are the first of all."""
        ...

    def comes_back(self, text: "LiveText", rest_seconds: float) -> None:
        """The server did not begin with it: it waits again, and its like rest for so long."""
        ...

    def ended(self, text: "LiveText", outcome: Outcome, *, waited: bool) -> None:
        """It is settled, whatever it was doing; told once. `waited`: the server did not have it."""
        ...


class Admitted(NamedTuple):
    """What is known of a request once it may wait."""

    listener: TextListener
    request: GenerationRequest
    head: RequestHead
    hold: Hold
    """Counts the body."""
    limit: float
    """Seconds to the first token, and of silence behind it."""
    work: float
    """What it costs, in seconds of the device."""


class Draft(NamedTuple):
    """A request that was read."""

    fields: Fields
    text: "Callable[[Admitted], LiveText]"
    """What it becomes once it is admitted."""


class TextServer(Protocol):
    """Who answers requests for generated text: an upstream, or the engine of ours."""

    async def read(self, head: RequestHead, body: Buffer, hold: Hold) -> Draft:
        """What a body asks; raises `CallError` or `InvalidInput`."""
        ...


class TextState(Enum):
    """Where a text is."""

    WAITING = auto()
    """The server does not have it."""
    SENT = auto()
    """The server has it, and its answer has not begun."""
    ANSWERING = auto()
    SETTLED = auto()


class LiveText:
    """One such request; what its server does with it is in its two kinds."""

    __slots__ = (
        "_hold", "_limit", "_listener", "_loop", "_mid_event", "_paused_at", "_reads_behind",
        "_sending", "_streams", "_takes_events", "_timer", "_tries", "_unsent", "_whole",
        "_written_at", "answer", "failed", "first_at", "head", "heard_at", "output_tokens",
        "prompt_tokens", "request", "state", "work",
    )  # fmt: skip

    def __init__(self, admitted: Admitted) -> None:
        self._listener = admitted.listener
        self.request: Final = admitted.request
        self.head: Final = admitted.head
        self._hold = admitted.hold
        self._limit = admitted.limit
        self.work: Final = admitted.work
        self._loop = asyncio.get_running_loop()
        self.answer: Final[asyncio.Future[Answer]] = self._loop.create_future()
        """What its caller is answered; an error before that has begun is raised."""
        self.state = TextState.WAITING
        self._sending: Sending | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tries = 0
        self._streams = False
        """Whether the answer is a stream, of which only the silence is bounded."""
        self._takes_events = False
        """Whether events of the sidecar may be written between those of the server."""
        self._mid_event = False
        """Whether what was written last may be the beginning of an event."""
        self._reads_behind = False
        """Whether what comes while the caller is paused is kept here, and not sent at once."""
        self._unsent = bytearray()
        """What its caller's connection has not taken yet."""
        self._whole: bool | None = None
        """Once no more comes: whether the answer is whole."""
        self.prompt_tokens = 0
        """As the server counts; 0 where it has not said."""
        self.output_tokens = 0
        self.failed = False
        """Whether the answer is an error, or ends with one."""
        self.first_at: float | None = None
        """When its first token came; who hears of tokens notes it."""
        self.heard_at = self._written_at = 0.0
        """When something came last, and when something was written."""
        self._paused_at: float | None = None

    def _start(self) -> None:
        """Ask the server."""
        raise NotImplementedError

    def _withdraw(self) -> None:
        """Have the server forget it."""
        raise NotImplementedError

    def _may_come_back(self, error: Unserved) -> bool:
        """Whether it may be sent again after this error, before which nothing was heard."""
        if isinstance(error, Busy):
            self._tries -= 1  # no server has seen it
            return self._loop.time() < self.request.deadline
        return False

    @property
    def waits(self) -> bool:
        """Whether the server does not have it."""
        return self.state is TextState.WAITING

    @property
    def is_at_server(self) -> bool:
        """Whether it was sent, and has not ended."""
        return self.state is TextState.SENT or self.state is TextState.ANSWERING

    def send(self) -> None:
        """Send it to the server."""
        self.state = TextState.SENT
        self._tries += 1
        self.heard_at = self._loop.time()
        self._look_at(self.request.deadline)
        self._start()

    def give_up(self, error: CallError, outcome: Outcome) -> None:
        """End it: nothing more is to be had, or its time is over."""
        if self.is_at_server:
            self._withdraw()
        self._fail(error, outcome)

    def cancel(self) -> None:
        """Its caller has left: the server need not go on."""
        self._sending = None
        if self.is_at_server:
            self._withdraw()
        self._settle(Outcome.CANCELLED)

    def begin_answer(
        self,
        headers: Headers,
        *,
        status: int = 200,
        reason: str = "OK",
        length: int | None = None,
        streams: bool = True,
    ) -> None:
        """The server begins to answer; pieces follow."""
        self.state = TextState.ANSWERING
        self.heard_at = self._written_at = self._loop.time()
        self._hold.release()
        self._streams = streams
        identity = self.head.request_id
        if identity is not None and all(name.lower() != REQUEST_ID_HEADER for name, _ in headers):
            headers = (*headers, (REQUEST_ID_HEADER, identity))
        # While a stream lasts its pod may begin to go, or others may come, and its head cannot tell
        # that later. The caller's next request comes on a new connection, to a pod that stays.
        self._reply(
            StreamedResponse(
                self, status=status, reason=reason, headers=headers, length=length, last=streams
            )
        )
        if streams:
            self._look()

    def answer_whole(self, data: bytes) -> None:
        """The server has answered all of it at once."""
        self.state = TextState.ANSWERING
        self._settle(Outcome.COMPLETED)
        response = Response((data,))
        if self.head.request_id is not None:
            response = response.with_header(REQUEST_ID_HEADER, self.head.request_id)
        self._reply(response)

    def heard(self, tokens: int) -> None:
        """The server made so many tokens."""
        now = self.heard_at = self._loop.time()
        self._listener.heard(self, tokens, now)

    def write(self, data: bytes) -> None:
        """Send a piece of the body, or keep it until that can be."""
        if self._sending is None or (self._reads_behind and self._paused_at is not None):
            self._unsent += data
        else:
            self._sending.write(data)
            self._written_at = self.heard_at

    def ended(self) -> None:
        """The body is whole."""
        self._whole = True
        if self._sending is not None and not (self._reads_behind and self._paused_at is not None):
            self._finish(self._sending)

    def broke_off(self, error: Unserved) -> None:
        """No more comes."""
        if self.state is TextState.SENT and self._may_come_back(error):
            self._comes_back(USUAL_REST_SECONDS)
        else:
            self._fail(error, Outcome.FAILED)

    def begin(self, sending: Sending) -> None:
        """The head is written: pieces may be sent."""
        self._sending = sending
        self._send_unsent(sending)

    def pause(self) -> None:
        """The caller reads more slowly than pieces come."""
        self._paused_at = self._loop.time()

    def resume(self) -> None:
        """It has caught up."""
        self._paused_at = None
        if self._sending is not None:
            self._send_unsent(self._sending)

    def _comes_back(self, rest_seconds: float) -> None:
        self.state = TextState.WAITING
        self._listener.comes_back(self, rest_seconds)

    def _reply(self, answer: Answer) -> None:
        if not self.answer.done():  # its caller may just have left
            self.answer.set_result(answer)

    def _send_unsent(self, sending: Sending) -> None:
        if self._unsent:
            unsent, self._unsent = bytes(self._unsent), bytearray()
            sending.write(unsent)
            self._written_at = self._loop.time()
        if self._whole is not None:
            self._finish(sending)

    def _finish(self, sending: Sending) -> None:
        """All that came is written."""
        self._sending = None
        whole = self._whole is True
        sending.end(whole=whole)
        self._settle(Outcome.FAILED if not whole or self.failed else Outcome.COMPLETED)

    def _fail(self, error: CallError, outcome: Outcome) -> None:
        """Tell the caller, in the form that it can still read."""
        if self.state is TextState.SETTLED:
            return
        self.failed = True
        if self.state is not TextState.ANSWERING:
            self._settle(outcome)
            if not self.answer.done():
                self.answer.set_exception(error)
                self.answer.exception()  # its caller may leave before it is told
            return
        event = b""
        if self._takes_events:
            event = (b"\n\n" if self._mid_event else b"") + error_event(error, self.head.path)
        self._whole = bool(event)
        sending, self._sending = self._sending, None
        if sending is None:
            self._unsent += event
        else:
            sending.write(event)
            sending.end(whole=self._whole)
        self._settle(outcome)

    def _settle(self, outcome: Outcome) -> None:
        if self.state is TextState.SETTLED:
            return
        waited, self.state = self.waits, TextState.SETTLED
        self._hold.release()
        self._stop_timer()
        self._listener.ended(self, outcome, waited=waited)

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
        if not self.is_at_server:
            return
        if self._paused_at is not None:
            cut_at = self._paused_at + self._limit
            if now >= cut_at:
                self._withdraw()
                self._cut()
                return
            self._look_at(cut_at)
            return
        streaming = self._streams and self.state is TextState.ANSWERING
        late_at = self.heard_at + self._limit if streaming else self.request.deadline
        if now >= late_at:
            self.give_up(Expired(self._limit), Outcome.EXPIRED)
            return
        if not streaming:
            self._look_at(late_at)
            return
        comment_at = self._written_at + KEEP_ALIVE_SECONDS
        if now >= comment_at:
            if self._takes_events and not self._mid_event and self._sending is not None:
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
