"""A text of an upstream, with a pretended server and a pretended caller."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome
from batchedmodel_http.response import Sending, StreamedResponse
from batchedmodel_scheduling.generation.admission import GenerationRequest
from batchedmodel_sidecar.backends.upstream.connection import AnswerHead
from batchedmodel_sidecar.body.byte_budget import ByteBudget, Hold
from batchedmodel_sidecar.errors import Busy, CallError, Expired, Lost, Unserved
from batchedmodel_sidecar.generation.live_text import (
    KEEP_ALIVE_SECONDS,
    Admitted,
    Draft,
    LiveText,
)
from batchedmodel_sidecar.generation.upstream_texts import UpstreamText, UpstreamTexts
from batchedmodel_sidecar.http.request import RequestHead

pytestmark = pytest.mark.looptime

LIMIT = 40.0
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
EVENTS = AnswerHead(200, "OK", (("Content-Type", "text/event-stream"), ("X-Theirs", "1")), None)
PLAIN = AnswerHead(200, "OK", (("Content-Type", "application/json"),), 4)


@dataclass
class Exchange:
    """A request at the server."""

    did: list[str] = field(default_factory=list)

    def cancel(self) -> None:
        self.did.append("cancel")

    def pause(self) -> None:
        self.did.append("pause")

    def resume(self) -> None:
        self.did.append("resume")


@dataclass
class Client:
    """Asks a server that answers what a test says."""

    exchanges: list[Exchange] = field(default_factory=list)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def ask(self, listener: object, target: str, headers: Any, body: object) -> Any:
        self.asked.append((target, dict(headers)))
        self.exchanges.append(Exchange())
        return self.exchanges[-1]


@dataclass
class Transport:
    """A caller's connection."""

    written: bytearray = field(default_factory=bytearray)
    aborted: bool = False

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True


def _draft(client: Client, head: RequestHead, held: Hold) -> Draft:
    """How a server of one's own is asked: reading never waits."""
    reading = UpstreamTexts(client.ask).read(head, b'{"a":1}', held)
    with pytest.raises(StopIteration) as read:
        reading.send(None)
    draft: Draft = read.value.value
    return draft


@dataclass
class World:
    """A text, who lets it go, its server and its caller."""

    limit: float = LIMIT
    takes_head: bool = True
    """Whether the caller's connection takes an answer's head at once."""
    outcomes: list[Outcome] = field(default_factory=list)
    rests: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    client: Client = field(default_factory=Client)
    transport: Transport = field(default_factory=Transport)
    sending: Sending | None = None
    whole: bool | None = None

    def __post_init__(self) -> None:
        now = asyncio.get_running_loop().time()
        request = GenerationRequest(
            id=1, share=Share("a"), key="m", prompt_tokens=3, max_tokens=None, choices=1,
            arrived=now, deadline=now + self.limit, streams=True,
        )  # fmt: skip
        head = RequestHead(
            method="POST",
            target="/v1/chat/completions?a=b",
            headers={"Host": "x", "X-Mine": "2", "x-request-id": "r", "Content-Length": "3"},
            declared=3,
        )
        self.budget = ByteBudget(1000)
        held = self.budget.hold(Share("a"))
        held.grow(3)
        admitted = Admitted(self, request, head, held, self.limit, 0.5)
        text = _draft(self.client, head, held).text(admitted)
        assert isinstance(text, UpstreamText)
        self.text = text

    def answers(self, head: AnswerHead) -> None:
        """The server does."""
        self.text.answered(head)
        if self.takes_head and self.text.answer.done():
            self.take_head()

    @property
    def answer(self) -> StreamedResponse:
        answer = self.text.answer.result()
        assert isinstance(answer, StreamedResponse)
        return answer

    @property
    def errors(self) -> list[CallError]:
        """What the caller is told in the place of an answer."""
        error = self.text.answer.exception() if self.text.answer.done() else None
        return [error] if isinstance(error, CallError) else []

    def take_head(self) -> None:
        transport: Any = self.transport
        self.sending = Sending(
            self.answer, transport, close=False, chunked=True, ended=self.ended_with
        )
        self.answer.source.begin(self.sending)

    def ended_with(self, whole: bool) -> None:
        self.whole = whole

    @property
    def body(self) -> bytes:
        """What the caller got behind the head, without the frames of chunks."""
        rest, body = bytes(self.transport.written).partition(b"\r\n\r\n")[2], b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        return body

    def heard(self, text: LiveText, tokens: int, now: float) -> None:
        self.tokens.append(tokens)

    def comes_back(self, text: LiveText, rest_seconds: float) -> None:
        assert text.waits
        self.rests.append(rest_seconds)

    def ended(self, text: LiveText, outcome: Outcome, *, waited: bool) -> None:
        self.outcomes.append(outcome)


async def test_the_answer_passes_piece_for_piece_with_its_headers() -> None:
    world = World()
    world.text.send()
    assert world.client.asked == [
        ("/v1/chat/completions?a=b", {"X-Mine": "2", "x-request-id": "r"})
    ]
    world.answers(EVENTS)
    assert world.budget.in_use == 0
    for _ in range(3):
        world.text.piece(TOKEN)
    assert world.body == TOKEN * 3
    world.text.ended()
    assert world.whole
    assert world.tokens == [1, 1, 1]
    assert world.outcomes == [Outcome.COMPLETED]
    head = bytes(world.transport.written).partition(b"\r\n\r\n")[0]
    assert b"X-Theirs: 1" in head
    assert b"x-request-id: r" in head


async def test_what_comes_before_the_connection_takes_the_head_is_not_lost() -> None:
    world = World(takes_head=False)
    world.text.send()
    world.answers(PLAIN)
    world.text.piece(b"th")
    world.text.piece(b"is")
    world.text.ended()
    world.takes_head = True
    world.take_head()
    assert world.transport.written.endswith(b"\r\n\r\nthis")
    assert world.outcomes == [Outcome.COMPLETED]


async def test_a_server_that_is_full_is_left_alone_and_asked_again_a_few_times() -> None:
    world = World()
    full = AnswerHead(429, "", (("Retry-After", "2"),), 0)
    for _ in range(2):
        world.text.send()
        world.answers(full)
        assert world.client.exchanges[-1].did == ["cancel"]
    assert world.rests == [2.0, 2.0]
    world.text.send()
    world.answers(full)
    world.text.ended()
    assert world.answer.status == 429
    assert world.outcomes == [Outcome.FAILED]


async def test_a_request_that_was_lost_unheard_is_sent_once_more() -> None:
    world = World()
    world.text.send()
    world.text.broke_off(Lost("it"))
    assert world.rests
    world.text.send()
    world.text.broke_off(Lost("it"))
    assert [error.status for error in world.errors] == [503]
    assert world.outcomes == [Outcome.FAILED]


async def test_a_request_that_nobody_took_waits_as_long_as_it_has_time() -> None:
    world = World()
    for _ in range(5):
        world.text.send()
        world.text.broke_off(Busy("nobody listens"))
    assert len(world.rests) == 5
    await asyncio.sleep(LIMIT)
    world.text.send()
    world.text.broke_off(Busy("nobody listens"))
    assert world.outcomes == [Outcome.FAILED]


@pytest.mark.parametrize("cut", [b"", TOKEN[:9]], ids=["between events", "within one"])
async def test_a_stream_that_breaks_off_ends_with_an_error_event(cut: bytes) -> None:
    world = World()
    world.text.send()
    world.answers(EVENTS)
    world.text.piece(TOKEN + cut)
    world.text.broke_off(Lost("it went"))
    assert world.whole
    last = world.body.strip().rpartition(b"\n\n")[2]
    assert json.loads(last[6:])["error"]["message"] == "it went"
    assert world.outcomes == [Outcome.FAILED]


@pytest.mark.parametrize("length", [4, None], ids=["its length known", "in chunks"])
@pytest.mark.parametrize("taken", [True, False], ids=["taken", "not yet taken"])
async def test_an_answer_that_is_no_stream_breaks_off(taken: bool, length: int | None) -> None:
    world = World(takes_head=taken)
    world.text.send()
    world.answers(PLAIN._replace(length=length))
    world.text.piece(b"th")
    world.text.broke_off(Lost("it went"))
    if not taken:
        world.take_head()
    assert world.whole is False
    assert world.transport.aborted
    assert world.outcomes == [Outcome.FAILED]


async def test_a_first_token_that_does_not_come_is_told_in_time() -> None:
    world = World()
    world.text.send()
    await asyncio.sleep(LIMIT + 0.1)
    assert [type(error) for error in world.errors] == [Expired]
    assert world.outcomes == [Outcome.EXPIRED]
    assert world.client.exchanges[0].did == ["cancel"]


async def test_a_stream_may_last_as_long_as_its_tokens_come() -> None:
    world = World()
    world.text.send()
    world.answers(EVENTS)
    for _ in range(20):
        await asyncio.sleep(LIMIT / 2)
        world.text.piece(TOKEN)
    assert world.outcomes == []
    await asyncio.sleep(LIMIT + 0.1)
    assert world.outcomes == [Outcome.EXPIRED]
    assert b'"code":504' in world.body
    assert world.whole


async def test_comments_keep_a_silent_stream_alive_between_its_events_alone() -> None:
    world = World()
    world.text.send()
    world.answers(EVENTS)
    await asyncio.sleep(KEEP_ALIVE_SECONDS + 0.1)
    assert world.body == b": \n\n"
    world.text.piece(TOKEN[:9])
    await asyncio.sleep(KEEP_ALIVE_SECONDS + 0.1)
    assert world.body == b": \n\n" + TOKEN[:9]


async def test_the_end_of_an_event_may_come_in_pieces() -> None:
    world = World()
    world.text.send()
    world.answers(EVENTS)
    for end in (len(TOKEN) - 1, len(TOKEN)):
        world.text.piece(TOKEN[end - 1 : end] if end == len(TOKEN) else TOKEN[:end])
    await asyncio.sleep(KEEP_ALIVE_SECONDS + 0.1)
    assert world.body == TOKEN + b": \n\n"


LONG = AnswerHead(200, "OK", (("Content-Type", "text/event-stream"),), 5 * len(TOKEN))
PACKED = AnswerHead(
    200, "OK", (("Content-Type", "text/event-stream"), ("Content-Encoding", "gzip")), None
)


@pytest.mark.parametrize("head", [LONG, PACKED], ids=["declared", "packed"])
async def test_nothing_is_added_to_a_stream_that_takes_nothing_and_it_may_last(
    head: AnswerHead,
) -> None:
    world = World()
    world.text.send()
    world.answers(head)
    for _ in range(4):
        await asyncio.sleep(LIMIT - KEEP_ALIVE_SECONDS)
        world.text.piece(TOKEN)
    assert world.outcomes == []
    assert sum(world.tokens) == (4 if head is LONG else 0)
    sent = bytes(world.transport.written)
    assert sent.count(TOKEN) == 4
    assert b": \n\n" not in sent
    await asyncio.sleep(LIMIT + 0.1)
    assert world.outcomes == [Outcome.EXPIRED]
    assert world.transport.written == sent
    assert world.whole is False


async def test_an_answer_that_is_no_stream_has_all_its_time_and_no_more() -> None:
    world = World()
    world.text.send()
    await asyncio.sleep(LIMIT / 2)
    world.answers(PLAIN)
    await asyncio.sleep(LIMIT / 2 + 0.1)
    assert world.whole is False
    assert world.outcomes == [Outcome.EXPIRED]


async def test_a_caller_that_leaves_ends_its_request_at_the_server_at_once() -> None:
    world = World()
    world.text.send()
    world.answers(EVENTS)
    world.text.piece(TOKEN)
    assert world.sending is not None
    world.sending.cancel()
    assert world.client.exchanges[0].did == ["cancel"]
    assert world.outcomes == [Outcome.CANCELLED]


async def test_a_caller_that_does_not_read_holds_the_server_back_and_is_cut_off() -> None:
    world = World()
    world.text.send()
    world.answers(EVENTS)
    world.text.piece(TOKEN)
    world.text.pause()
    assert world.client.exchanges[0].did == ["pause"]
    await asyncio.sleep(LIMIT + KEEP_ALIVE_SECONDS + 0.1)
    assert world.transport.aborted
    assert world.outcomes == [Outcome.CANCELLED]
    assert world.client.exchanges[0].did == ["pause", "cancel"]


async def test_a_slow_caller_that_reads_on_gets_all_of_it() -> None:
    world = World()
    world.text.send()
    world.answers(EVENTS)
    for _ in range(5):
        world.text.pause()
        await asyncio.sleep(LIMIT / 2)
        world.text.resume()
        world.text.piece(TOKEN)
    world.text.ended()
    assert world.body == TOKEN * 5
    assert world.outcomes == [Outcome.COMPLETED]


async def test_it_is_settled_once_whatever_comes_behind() -> None:
    world = World()
    world.text.send()
    world.text.give_up(Unserved("over", status=503), Outcome.FAILED)
    world.text.cancel()
    world.text.give_up(Unserved("over", status=503), Outcome.FAILED)
    await asyncio.sleep(2 * LIMIT)
    assert world.outcomes == [Outcome.FAILED]
    assert len(world.errors) == 1
    assert world.budget.in_use == 0
