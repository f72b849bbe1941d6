"""One connection: floods, slow readers, callers that leave, and answers that cannot be given."""

import asyncio

import pytest

from batchedmodel_http.response import Response
from support.door_world import (
    ENOUGH,
    SECONDS,
    DoorWorld,
    PretendHouse,
    call,
    turns,
)

pytestmark = pytest.mark.looptime


async def test_a_flood_is_held_back_and_none_of_it_is_lost(world: DoorWorld) -> None:
    sent = 0
    piece = call(b"x" * 1000) * 10
    world.wire.sends(call(b"a", f"{SECONDS}: 1"))
    while world.wire.reading:
        world.wire.sends(piece)
        sent += 10
    assert sent * 1000 < 2 * ENOUGH
    await asyncio.sleep(1.1)
    while len(world.wire.answers) < 1 + sent:
        await turns(1)
    assert world.wire.reading
    assert world.front.begun == 1 + sent


async def test_a_caller_that_does_not_read_is_not_answered_more_than_once(world: DoorWorld) -> None:
    world.wire.stops_reading()
    world.wire.sends(call(b"a"), call(b"b"), call(b"c"))
    await asyncio.sleep(1.0)
    assert world.front.begun == 1
    world.wire.reads()
    await turns()
    assert [body for _, body in world.wire.answers] == [b"call:a", b"call:b", b"call:c"]


async def test_a_streamed_request_is_told_that_a_caller_does_not_read(world: DoorWorld) -> None:
    world.wire.stops_reading()
    world.wire.sends(call(b"a"))
    await asyncio.sleep(1.0)
    world.wire.sends(call(path="/other"))
    world.wire.reads()
    world.wire.stops_reading()
    await turns()
    general = world.streaming
    assert general is not None
    assert general.writing_paused, "its own answer is unread"
    world.wire.reads()
    await turns()
    world.wire.stops_reading()
    world.wire.sends(call(b"b"))
    assert general.writing_paused, "the front's answer is unread"
    world.wire.reads()
    assert not general.writing_paused
    await turns()
    assert len(world.wire.answers) == 3


async def test_a_caller_that_was_held_back_is_read_again_when_its_request_streams(
    world: DoorWorld,
) -> None:
    behind = call(b"", "x: " + "y" * 4000) * (ENOUGH // 4000 + 1)
    world.wire.sends(call(b"", f"{SECONDS}: 1", path="/alone"), behind)
    assert not world.wire.reading
    await asyncio.sleep(1.1)
    world.wire.sends(call(b"b"))
    await turns(100)
    assert world.wire.answers[-1] == (200, b"call:b")


async def test_who_is_held_back_while_it_streams_is_not_let_go_by_others(world: DoorWorld) -> None:
    world.front.reads_first, world.front.seconds = False, 10.0
    large = call(b"x" * 1_000_000)
    world.wire.sends(call(b"a", f"{SECONDS}: 1"), large[:600_000])
    assert not world.wire.reading
    await asyncio.sleep(2.0)
    assert not world.wire.reading, "nobody has read what is here already"
    await asyncio.sleep(10.0)
    assert world.wire.reading
    world.wire.sends(large[600_000:])
    await turns()
    assert len(world.wire.answers) == 2


async def test_who_sent_much_ahead_is_held_back_behind_a_streamed_request_as_well(
    world: DoorWorld,
) -> None:
    """One that was let go was read until it had no room left, and then cut off."""
    world.front.seconds = 1.0
    piece = call(b"x" * 1000, f"{SECONDS}: 1") * 55
    world.wire.sends(call(b"a", "Expect: 100-continue"), piece, piece)
    assert not world.wire.reading
    await asyncio.sleep(1.5)
    assert world.front.begun == 1
    assert not world.wire.reading, "most of what came is still here"
    await asyncio.sleep(110.0)
    assert world.wire.reading
    assert len(world.wire.answers) == 111


@pytest.mark.parametrize("when", [0.0, 0.5, 1.0])
async def test_a_caller_that_leaves_ends_what_is_done_for_it(world: DoorWorld, when: float) -> None:
    world.wire.sends(call(b"a", f"{SECONDS}: 1"), call(b"b"))
    await asyncio.sleep(when)
    begun = world.front.begun
    world.wire.leaves()
    await asyncio.sleep(1.0)
    assert world.front.begun == begun
    assert world.front.cancelled == (when < 1.0)
    assert not world.host.inside


@pytest.mark.parametrize(
    ("sent", "counted"),
    [
        (call(b"abc")[:-1], 1),
        (call(b"abc")[:-3], 1),
        (call(b"abc") + call(b"abc")[:-1], 1),
        (call(b"abc")[:-4], 0),
        (b"POST", 0),
        (b"", 0),
    ],
)
async def test_a_caller_that_leaves_before_its_request_is_whole_is_counted_and_no_more(
    world: DoorWorld, sent: bytes, counted: int
) -> None:
    world.wire.sends(sent)
    await turns()
    begun = world.front.begun
    world.wire.leaves()
    await asyncio.sleep(1.0)
    assert world.front.left == counted
    assert world.front.begun == begun
    assert world.streaming is None


async def test_a_caller_that_leaves_behind_its_answer_is_not_counted_again(
    world: DoorWorld,
) -> None:
    world.wire.sends(call(b"abc")[:-1])
    world.wire.sends(b"c")
    await turns()
    world.wire.leaves()
    await asyncio.sleep(1.0)
    assert world.front.left == 0


@pytest.mark.parametrize(
    "sent",
    [
        call(b"x" * 100_000)[:50_000],
        call(b"x" * 100_000),
        call(path="/other"),
        b"POST /call HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
    ],
)
@pytest.mark.parametrize("kept", [False, True])
async def test_a_streamed_request_begins_even_if_its_caller_leaves_at_once(
    world: DoorWorld, sent: bytes, kept: bool
) -> None:
    if kept:
        world.wire.sends(call(path="/other"))
        await turns()
    before = world.front.streamed
    world.wire.sends(sent)
    world.wire.leaves()
    await asyncio.sleep(1.0)
    assert world.front.streamed == before + 1
    assert not world.host.inside


async def test_a_caller_that_leaves_a_streamed_request_is_told_to_it(world: DoorWorld) -> None:
    world.front.seconds = 10.0
    world.wire.sends(call(path="/other"))
    await asyncio.sleep(1.0)
    world.wire.leaves()
    await asyncio.sleep(1.0)
    assert world.streaming is None


async def test_the_last_answer_says_so_and_what_is_behind_it_is_not_looked_at(
    world: DoorWorld,
) -> None:
    world.host.ending = True
    world.wire.sends(call(b"a") + call(b"b"))
    await turns()
    assert world.wire.answers == [(200, b"call:a")]
    assert b"\r\nConnection: close\r\n" in world.wire.written
    assert world.wire.gone
    assert world.front.begun == 1


async def test_a_caller_that_may_not_stay_is_hung_up_on() -> None:
    world = DoorWorld(host=PretendHouse(full=True))
    await turns()
    assert world.wire.aborted


@pytest.mark.parametrize("path", ["/broken", "/unsaid"])
@pytest.mark.parametrize("seconds", ["0", "1"])
async def test_what_cannot_be_answered_breaks_the_connection_and_is_logged(
    world: DoorWorld, caplog: pytest.LogCaptureFixture, path: str, seconds: str
) -> None:
    world.wire.sends(call(b"a", f"{SECONDS}: {seconds}", path=path), call(b"b"))
    await asyncio.sleep(1.1)
    assert world.wire.aborted
    assert not world.wire.written
    assert caplog.messages == ["a request was not answered"]


async def test_an_upstream_servers_odd_header_arrives_as_it_was(world: DoorWorld) -> None:
    odd = Response((), headers=(("x", b"caf\xe9".decode(errors="surrogateescape")),))
    assert b"\r\nx: caf\xe9\r\n" in b"".join(odd.to_wire(close=False))


@pytest.mark.parametrize("path", ["/call", "/other"], ids=["a plain request", "a streamed one"])
async def test_it_is_at_work_from_the_request_to_its_answer_and_not_while_that_is_unread(
    world: DoorWorld, path: str
) -> None:
    world.front.seconds = 1.0
    assert not world.connection.at_work
    world.wire.sends(call(b"abc")[:-1])
    assert world.connection.at_work
    world.wire.sends(b"c")
    assert not world.connection.at_work
    world.wire.stops_reading()
    world.wire.sends(call(b"a", f"{SECONDS}: 1", path=path))
    assert world.connection.at_work
    await asyncio.sleep(1.1)
    assert world.wire.get_write_buffer_size()
    assert not world.connection.at_work
