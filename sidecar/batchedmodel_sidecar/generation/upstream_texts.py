"""Texts that an upstream server makes: requests and answers pass unchanged, piece for piece."""

from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_http.response import Headers
from batchedmodel_sidecar.backends.upstream.connection import AnswerHead, AnswerListener, Exchange
from batchedmodel_sidecar.backends.upstream.headers import of_caller, passed_on
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.errors import Lost, Unserved
from batchedmodel_sidecar.generation.events import EVENT_STREAM, Usage
from batchedmodel_sidecar.generation.fields import fields_of
from batchedmodel_sidecar.generation.live_text import (
    USUAL_REST_SECONDS,
    Admitted,
    Draft,
    LiveText,
)
from batchedmodel_sidecar.http.request import RequestHead
from batchedmodel_sidecar.protocols.headers import writable

_MOST_TRIES: Final = 3
"""So often a request is sent that the server asks to send later."""
_MOST_DEATHS: Final = 2
_LEAST_REST_SECONDS: Final = 0.1
_MOST_REST_SECONDS: Final = 5.0
_MOST_KEPT_BYTES: Final = 64 * 1024
"""Of a whole answer, that are kept to read its usage."""
_RESTS: Final = frozenset(
    {HTTPStatus.TOO_MANY_REQUESTS.value, HTTPStatus.SERVICE_UNAVAILABLE.value}
)
_FRAMED_ANEW: Final[Sequence[str]] = ("content-length",)
_CHAT: Final = "/chat/completions"

AskText = Callable[[AnswerListener, str, Headers, Sequence[Buffer]], Exchange]
"""Sends a POST; see `Client.ask_text`."""


class UpstreamTexts:
    """A server that speaks OpenAI's protocol."""

    def __init__(self, ask: AskText) -> None:
        self._ask = ask

    async def read(self, head: RequestHead, body: Buffer, hold: Hold) -> Draft:
        """See `TextServer`; it never waits."""
        fields = fields_of(body, readable=not head.packed, chat=head.path.endswith(_CHAT))
        return Draft(fields, partial(UpstreamText, self._ask, body))


class UpstreamText(LiveText):
    """One request, and the answer that its server gives."""

    __slots__ = ("_ask", "_body", "_exchange", "_reads_events", "_tail", "_usage")

    def __init__(self, ask: AskText, body: Buffer, admitted: Admitted) -> None:
        super().__init__(admitted)
        self._ask = ask
        self._body: Buffer | None = body
        """Kept until the server has begun to answer."""
        self._exchange: Exchange | None = None
        self._usage = Usage()
        self._reads_events = False
        """Whether the answer is a stream of events that may be read here."""
        self._tail: bytearray | None = bytearray()
        """All of an answer that is no stream, while it is short."""

    def _start(self) -> None:
        assert self._body is not None, "what has an answer is not asked again: our bug"
        head, headers = self.head, of_caller(self.head.headers.items())
        self._exchange = self._ask(self, head.path + head.query, headers, (self._body,))

    def _withdraw(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.cancel()

    def _may_come_back(self, error: Unserved) -> bool:
        # What met a server that went away may have killed it: it is sent once more, and no more.
        if isinstance(error, Lost):
            return self._may_try_again(_MOST_DEATHS)
        return super()._may_come_back(error)

    def _may_try_again(self, most: int) -> bool:
        return self._tries < most and self._loop.time() < self.request.deadline

    def answered(self, head: AnswerHead) -> None:
        """See `AnswerListener`."""
        if head.status in _RESTS and self._may_try_again(_MOST_TRIES):
            self._withdraw()
            self._comes_back(_rest_of(head))
            return
        self._body = None
        streams = head.header("content-type").lower().startswith(EVENT_STREAM)
        self._reads_events = streams and not head.header("content-encoding")
        self._takes_events = self._reads_events and head.length is None
        self.failed = head.status >= HTTPStatus.BAD_REQUEST
        if streams or self.failed:
            self._tail = None
        self.begin_answer(
            passed_on(head.headers, _FRAMED_ANEW),
            status=head.status,
            reason=writable(head.reason),
            length=head.length,
            streams=streams,
        )

    def piece(self, data: bytes) -> None:
        """See `AnswerListener`."""
        if self._reads_events:
            usage = self._usage
            tokens = usage.events(data)
            self._mid_event = not usage.at_end_of_event
            self._note(usage)
            if tokens:
                self.heard(tokens)
            else:
                self.heard_at = self._loop.time()
        else:
            self.heard_at = self._loop.time()
            if self._tail is not None:
                self._tail += data
                if len(self._tail) > _MOST_KEPT_BYTES:
                    self._tail = None
        self.write(data)

    def ended(self) -> None:
        """See `AnswerListener`."""
        if self._tail:
            self._usage.body(bytes(self._tail))
            self._note(self._usage)
        super().ended()

    def pause(self) -> None:
        """Take no more of the answer for now."""
        super().pause()
        if self._exchange is not None:
            self._exchange.pause()

    def resume(self) -> None:
        """Go on."""
        if self._exchange is not None:
            self._exchange.resume()
        super().resume()

    def _note(self, usage: Usage) -> None:
        self.prompt_tokens, self.output_tokens = usage.prompt_tokens or 0, usage.output_tokens
        self.failed = self.failed or usage.failed


def _rest_of(head: AnswerHead) -> float:
    """Seconds for which the server wants to be left alone."""
    rest = head.header("retry-after")
    seconds = float(rest) if rest.isdecimal() else USUAL_REST_SECONDS
    return min(max(seconds, _LEAST_REST_SECONDS), _MOST_REST_SECONDS)
