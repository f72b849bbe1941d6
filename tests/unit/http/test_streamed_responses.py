"""Answers whose bodies come in pieces, on a connection and where a request needed streaming."""

import asyncio
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from batchedmodel_http.request_head import RequestHead
from batchedmodel_http.response import Headers, Reply, Sending, StreamedResponse
from support.door_world import DoorWorld, PretendFront, PretendHouse, call, turns

pytestmark = pytest.mark.looptime

CHUNKED = b"Transfer-Encoding: chunked\r\n"


@dataclass
class Source:
    """Pieces that a test sends by hand."""

    sending: Sending | None = None
    told: list[str] = field(default_factory=list)
    at_once: tuple[bytes, ...] = ()
    """Pieces that are there when the head is written; all of them."""

    def begin(self, sending: Sending) -> None:
        self.sending = sending
        for piece in self.at_once:
            sending.write(piece)
        if self.at_once:
            sending.end(whole=True)

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")

    def cancel(self) -> None:
        self.told.append("cancel")

    def sends(self, *pieces: bytes) -> None:
        assert self.sending is not None
        for piece in pieces:
            self.sending.write(piece)

    def ends(self, *, whole: bool = True) -> None:
        assert self.sending is not None
        self.sending.end(whole=whole)


class Ended:
    def cancel(self) -> None:
        """Nothing runs."""


@dataclass
class StreamingFront(PretendFront):
    """Answers with the source's pieces."""

    source: Source = field(default_factory=Source)
    length: int | None = None
    headers: Headers = (("x", "y"),)
    last: bool = False

    def answer(self, asked: RequestHead, source: bytes, caller: str, reply: Reply) -> Ended:  # type: ignore[override]
        given = {"headers": self.headers, "length": self.length, "last": self.last}
        reply(StreamedResponse(self.source, **given), None)  # type: ignore[arg-type]
        return Ended()

    async def handle(self, request: web.BaseRequest) -> StreamedResponse:
        await request.read()
        return StreamedResponse(self.source, last=self.last)


def front(**given: object) -> StreamingFront:
    return StreamingFront(**given)  # type: ignore[arg-type]


async def test_pieces_go_out_as_they_come_and_the_next_request_is_answered_behind_them() -> None:
    source = Source()
    world = DoorWorld(front(source=source))
    world.wire.sends(call(b"a"), call(b"b"))
    await turns()
    head, _, body = bytes(world.wire.written).partition(b"\r\n\r\n")
    assert head == b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nx: y"
    assert body == b""
    source.sends(b"one")
    assert world.wire.written.endswith(b"\r\n\r\n3\r\none\r\n")
    source.sends(b"")  # which as a chunk would be the end
    source.sends(b"x" * 20)
    source.ends()
    await turns()
    first, _, second = bytes(world.wire.written).partition(b"14\r\n" + b"x" * 20 + b"\r\n0\r\n\r\n")
    assert first
    assert second.startswith(b"HTTP/1.1 200 ")
    assert world.connection.at_work


async def test_a_body_of_known_length_goes_out_as_it_is() -> None:
    world = DoorWorld(front(source=Source(at_once=(b"on", b"e")), length=3))
    world.wire.sends(call())
    await turns()
    assert world.wire.answers == [(200, b"one")]
    assert not world.connection.at_work


async def test_what_breaks_off_never_looks_whole() -> None:
    source = Source()
    world = DoorWorld(front(source=source))
    world.wire.sends(call())
    source.sends(b"half")
    source.ends(whole=False)
    await turns()
    assert world.wire.aborted
    assert not world.wire.written.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("streamed", [False, True], ids=["a plain request", "a streamed one"])
async def test_who_makes_the_pieces_hears_of_a_slow_caller_and_of_one_that_leaves(
    streamed: bool,
) -> None:
    source = Source()
    world = DoorWorld(front(source=source))
    world.wire.stops_reading()
    world.wire.sends(call(b"a", *(["Expect: 100-continue"] if streamed else [])))
    await turns()
    assert source.told == ["pause"]
    world.wire.reads()
    assert source.told == ["pause", "resume"]
    world.wire.leaves()
    await turns()
    assert source.told == ["pause", "resume", "cancel"]
    source.sends(b"late")
    source.ends()


async def test_an_answer_that_ends_as_the_last_one_closes_its_connection() -> None:
    world = DoorWorld(front(source=Source(at_once=(b"one",))), PretendHouse(ending=True))
    world.wire.sends(call())
    await turns()
    assert b"Connection: close" in world.wire.written
    assert world.wire.is_closing()


@pytest.mark.parametrize("streamed", [False, True], ids=["a plain request", "a streamed one"])
async def test_an_answer_that_wants_to_be_the_last_says_so_and_closes_its_connection(
    streamed: bool,
) -> None:
    source = Source(at_once=(b"one",))
    world = DoorWorld(front(source=source, last=True))
    world.wire.sends(call(b"a", *(["Expect: 100-continue"] if streamed else [])))
    await turns()
    assert b"Connection: close" in world.wire.written
    assert world.wire.written.endswith(b"0\r\n\r\n")
    assert world.wire.is_closing()


async def test_a_streamed_request_gets_pieces_and_its_connection_goes_on() -> None:
    source = Source(at_once=(b"one", b"two"))
    world = DoorWorld(front(source=source))
    for _ in range(2):
        world.wire.written.clear()
        world.wire.sends(call(b"a", path="/other"))
        await turns()
        head, _, body = bytes(world.wire.written).partition(b"\r\n\r\n")
        assert CHUNKED in head + b"\r\n"
        assert body == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
    assert not world.wire.is_closing()


async def test_a_caller_of_http_1_0_hears_the_end_by_the_connections_end() -> None:
    source = Source(at_once=(b"one", b"two"))
    world = DoorWorld(front(source=source))
    world.wire.sends(b"POST /other HTTP/1.0\r\nContent-Length: 0\r\n\r\n")
    await turns()
    head, _, body = bytes(world.wire.written).partition(b"\r\n\r\n")
    assert CHUNKED not in head + b"\r\n"
    assert body == b"onetwo"
    assert world.wire.is_closing()


async def test_a_streamed_answer_that_breaks_off_ends_its_connection() -> None:
    source = Source()
    world = DoorWorld(front(source=source))
    world.wire.sends(call(b"a", path="/other"))
    await turns()
    source.sends(b"half")
    source.ends(whole=False)
    await turns()
    assert world.wire.gone
    assert world.wire.aborted
    await asyncio.sleep(1.0)


@pytest.mark.parametrize("closed_at", ["pieces", "end"])
async def test_what_is_written_to_a_caller_whose_loss_is_told_a_turn_later_goes_nowhere(
    closed_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raised, as the loop's transport does then, and the step of an engine failed over it."""

    def write(data: bytes) -> None:
        raise RuntimeError("the handler is closed")

    source = Source()
    world = DoorWorld(front(source=source))
    world.wire.sends(call(b"a"))
    await turns()
    world.wire.abort()
    monkeypatch.setattr(world.wire, "write", write)
    if closed_at == "pieces":
        source.sends(b"late")
    source.ends()
    await turns()
    assert not world.connection.at_work
