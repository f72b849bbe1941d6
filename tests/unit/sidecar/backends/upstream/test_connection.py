"""Answers of a server as they arrive, cut anywhere, good and bad."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_sidecar.backends.upstream.client import Client
from batchedmodel_sidecar.backends.upstream.connection import AnswerHead, UpstreamConnection
from batchedmodel_sidecar.errors import Busy, Lost, Unserved
from support.wire import Wire

pytestmark = pytest.mark.looptime

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
SIZED = b"HTTP/1.1 404 Not here\r\nContent-Length: 5\r\nX-Theirs: 1\r\n\r\n"


@dataclass
class Listener:
    """Notes what it hears."""

    heads: list[AnswerHead] = field(default_factory=list)
    body: bytes = b""
    whole: bool = False
    errors: list[Unserved] = field(default_factory=list)

    def answered(self, head: AnswerHead) -> None:
        self.heads.append(head)

    def tokens(self, count: int) -> None:
        raise AssertionError("of a server of one's own they are read from the pieces")

    def piece(self, data: bytes) -> None:
        assert data
        assert not self.over
        self.body += data

    def ended(self) -> None:
        assert not self.over
        self.whole = True

    def broke_off(self, error: Unserved) -> None:
        assert not self.over
        self.errors.append(error)

    @property
    def over(self) -> bool:
        return self.whole or bool(self.errors)


def exchange() -> tuple[Listener, UpstreamConnection, Wire]:
    listener = Listener()
    made = UpstreamConnection(asyncio.get_running_loop())
    made.send(listener, [b"request", b"body"])
    return listener, made, Wire(made)


async def test_the_request_is_sent_once_the_connection_is_made() -> None:
    _, _, wire = exchange()
    assert wire.written == b"requestbody"


@given(st.lists(st.integers(1, 30), max_size=30))
async def test_a_stream_is_understood_however_it_is_cut(cuts: list[int]) -> None:
    listener, _, wire = exchange()
    sent = b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + CHUNKED + b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
    at = 0
    for size in [*cuts, len(sent)]:
        if piece := sent[at : at + size]:
            wire.sends(piece)
        at += size
    (head,) = listener.heads
    assert (head.status, head.reason, head.length) == (200, "OK", None)
    assert head.header("content-type") == "text/event-stream"
    assert listener.body == b"onetwo"
    assert listener.whole
    assert wire.is_closing()


async def test_a_body_of_known_length_ends_with_it() -> None:
    listener, _, wire = exchange()
    wire.sends(SIZED + b"he", b"llo, and more")
    assert listener.body == b"hello"
    assert listener.whole
    assert listener.heads[0].length == 5


@given(st.lists(st.integers(1, 30), max_size=5))
async def test_a_head_whose_lines_end_without_carriage_returns_is_read(cuts: list[int]) -> None:
    listener, _, wire = exchange()
    sent = b"HTTP/1.1 103 x\n\nHTTP/1.1 200 OK\nX-Theirs: 1\nContent-Length: 5\n\nhello"
    at = 0
    for size in [*cuts, len(sent)]:
        if piece := sent[at : at + size]:
            wire.sends(piece)
        at += size
    assert (listener.body, listener.whole) == (b"hello", True)
    assert listener.heads[0].header("x-theirs") == "1"


async def test_a_server_that_answers_and_leaves_the_request_unread_is_hung_up_on() -> None:
    listener, made, wire = exchange()
    wire.stops_reading()
    assert made.write(bytes(1 << 20))
    wire.sends(SIZED + b"hello")
    assert listener.whole
    assert wire.aborted


async def test_a_body_without_length_ends_with_the_connection() -> None:
    listener, _, wire = exchange()
    wire.sends(b"HTTP/1.0 200 OK\r\n\r\nhe", b"llo")
    assert not listener.whole
    wire.leaves()
    await asyncio.sleep(0)
    assert (listener.body, listener.whole) == (b"hello", True)


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_is_whole_with_its_head(status: int) -> None:
    listener, _, wire = exchange()
    wire.sends(b"HTTP/1.1 %d x\r\n\r\n" % status)
    assert listener.whole
    assert listener.body == b""


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 2", SIZED, SIZED + b"he", CHUNKED + b"3\r\non"])
async def test_an_answer_that_is_not_whole_is_lost(sent: bytes) -> None:
    listener, _, wire = exchange()
    if sent:
        wire.sends(sent)
    wire.leaves()
    await asyncio.sleep(0)
    assert [type(error) for error in listener.errors] == [Lost]


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
        CHUNKED + b"no chunk\r\n",
        CHUNKED + b"0\r\n\r\nmore",
    ],
)
async def test_what_is_no_http_is_told_and_ends_the_connection(sent: bytes) -> None:
    listener, _, wire = exchange()
    wire.sends(sent)
    if not listener.whole:  # what follows a whole answer is nobody's
        assert [error.status for error in listener.errors] == [502]
    assert wire.is_closing()
    await asyncio.sleep(0)


async def test_an_answer_of_the_greatest_length_is_not_whole_with_its_beginning() -> None:
    """Its caller was told that length, and waited for the rest on a connection that was kept."""
    listener, _, wire, over = kept()
    wire.sends(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\nabc" % (2**64 - 1))
    assert not listener.over
    wire.leaves()
    await asyncio.sleep(0)
    assert len(listener.errors) == 1
    assert over == [False]


async def test_who_has_left_hears_nothing_and_the_server_is_told() -> None:
    listener, made, wire = exchange()
    wire.sends(CHUNKED + b"3\r\none\r\n")
    made.cancel()
    assert wire.aborted
    await asyncio.sleep(0)
    assert not listener.over


async def test_a_server_is_held_back_and_goes_on() -> None:
    _, made, wire = exchange()
    made.pause()
    assert not wire.reading
    made.resume()
    assert wire.reading


async def test_nobody_that_listens_is_busy() -> None:
    listener = Listener()
    Client("http://127.0.0.1:1", keeps=lambda: False).ask_text(listener, "/x", (), [b""])
    async with asyncio.timeout(10.0):
        while not listener.over:  # noqa: ASYNC110  # a real connection
            await asyncio.sleep(0.01)
    assert [type(error) for error in listener.errors] == [Busy]


def kept() -> tuple[Listener, UpstreamConnection, Wire, list[bool]]:
    """A request whose connection may be used again."""
    listener, over = Listener(), list[bool]()
    made = UpstreamConnection(asyncio.get_running_loop())
    made.send(listener, [b"request"], over=over.append)
    return listener, made, Wire(made), over


@pytest.mark.parametrize("answer", [SIZED + b"hello", CHUNKED + b"3\r\none\r\n0\r\n\r\n"])
async def test_a_connection_carries_a_request_behind_the_answer_before(answer: bytes) -> None:
    listener, made, wire, over = kept()

    def slowly(data: bytes) -> None:
        listener.body += data
        made.pause()

    listener.piece = slowly  # type: ignore[method-assign]
    wire.sends(answer)
    assert listener.whole
    assert over == [True]
    assert wire.reading, "however slowly the answer before was read"
    another = Listener()
    made.send(another, [b"more"])
    wire.sends(answer)
    assert another.body == listener.body
    assert wire.is_closing()


@pytest.mark.parametrize(
    "answer",
    [
        SIZED + b"hello, and more",
        CHUNKED + b"0\r\n\r\nmore",
        b"HTTP/1.1 500 x\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        b"HTTP/1.0 200 x\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_a_connection_that_may_be_unsound_is_not_used_again(answer: bytes) -> None:
    listener, _, wire, over = kept()
    wire.sends(answer)
    assert listener.whole
    assert over == [False]
    assert wire.is_closing()


async def test_what_comes_unasked_ends_the_connection() -> None:
    _, made, wire, over = kept()
    wire.sends(SIZED + b"hello")
    wire.sends(b"more")
    assert (over, made.is_open) == ([True], False)


async def test_who_leaves_ends_a_connection_that_would_be_kept() -> None:
    listener, made, wire, over = kept()
    made.cancel()
    assert (over, wire.aborted, listener.over) == ([False], True, False)


async def test_a_head_alone_answers_who_asks_for_that() -> None:
    listener = Listener()
    made = UpstreamConnection(asyncio.get_running_loop())
    made.send(listener, [b"HEAD"], bodiless=True)
    Wire(made).sends(SIZED)
    assert (listener.whole, listener.body) == (True, b"")
