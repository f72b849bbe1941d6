"""One connection: requests that break off or are none, and handlers that fail."""

import asyncio
import gc
from typing import Any, Final

import pytest
from aiohttp import web

from batchedmodel_http.request_head import RequestHead
from batchedmodel_http.response import Response
from support.door_world import (
    SECONDS,
    DoorWorld,
    PretendFront,
    call,
    turns,
)

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize(
    "length", [10, 5_000], ids=["a short head", "a head beyond what is read here"]
)
async def test_a_target_that_breaks_the_reader_of_targets_is_refused(
    world: DoorWorld, length: int
) -> None:
    world.wire.sends(
        b"GET http://[::1]:%80@/a HTTP/1.1\r\nHost: x\r\nX-More: " + b"a" * length + b"\r\n\r\n"
    )
    await turns()
    assert world.wire.written.startswith(b"HTTP/1.1 400 ")
    assert world.wire.is_closing()


async def test_a_body_in_another_transfer_coding_is_refused_by_name(world: DoorWorld) -> None:
    """What is dropped from the head would have its bytes taken for the body."""
    head = b"POST /call HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
    world.wire.sends(head + b"1\r\na\r\n0\r\n\r\n")
    await turns()
    assert world.wire.written.startswith(b"HTTP/1.1 501 ")
    assert world.wire.is_closing()


CHUNKED: Final = b"POST /call HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
NO_CHUNK: Final = b"two\r\n"


@pytest.mark.parametrize("between", range(8))
async def test_a_body_may_break_at_any_moment_of_its_requests_beginning(
    world: DoorWorld, between: int
) -> None:
    world.wire.sends(CHUNKED + b"1\r\na\r\n")
    for _ in range(between):
        await asyncio.sleep(0)
    world.wire.sends(NO_CHUNK)
    await turns()
    assert world.wire.answers == [(400, b"broken")]
    assert world.wire.gone


@pytest.mark.parametrize("reads_first", [True, False], ids=["while", "before"])
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
async def test_who_reads_a_body_that_goes_on_with_no_chunk_is_told_so(
    world: DoorWorld, reads_first: bool, begun: bool
) -> None:
    world.front.reads_first = reads_first
    world.wire.sends(CHUNKED + b"1\r\na\r\n")
    if begun:
        await turns()
    world.wire.sends(NO_CHUNK)
    await turns()
    assert world.wire.answers == [(400, b"broken")]
    assert world.wire.gone


@pytest.mark.parametrize("between", range(4))
async def test_an_answer_that_is_ready_when_its_caller_leaves_is_no_error(
    world: DoorWorld, between: int
) -> None:
    loop, errors = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, told: errors.append(told))
    world.front.streamed_answer = loop.create_future()
    world.wire.sends(CHUNKED + b"1\r\na\r\n0\r\n\r\n")
    await turns()
    world.front.streamed_answer.set_result(Response((b"late",)))
    await turns(between)
    world.wire.leaves()
    await turns()
    gc.collect()
    assert errors == []


async def test_a_caller_whose_answer_is_cancelled_by_others_does_not_wait_for_ever(
    world: DoorWorld,
) -> None:
    """It heard nothing, and its connection counted as at work until it left."""
    world.front.streamed_answer = asyncio.get_running_loop().create_future()
    world.wire.sends(CHUNKED + b"1\r\na\r\n0\r\n\r\n")
    await turns()
    world.front.streamed_answer.cancel()
    await turns()
    assert world.wire.gone
    assert not world.host.inside


@pytest.mark.parametrize("pause", [0.0, 0.1])
@pytest.mark.parametrize(
    "sent",
    [
        (CHUNKED + b"1\r\na\r\n", NO_CHUNK),
        (CHUNKED + NO_CHUNK,),
        (b"POST /call HTTP/1.1\r\nx: ", *[b"y" * 60_000] * 5),
        (b"\x00\r\n\r\n",),
    ],
    ids=["no chunk", "no chunk at once", "a large head", "no request"],
)
async def test_what_was_broken_off_costs_nothing_any_more(
    world: DoorWorld, sent: tuple[bytes, ...], pause: float
) -> None:
    world.front.reads_first, world.front.reads = False, False
    for piece in sent:
        world.wire.sends(piece)
        await asyncio.sleep(pause)
    await asyncio.sleep(5.0)
    assert world.wire.gone
    assert world.wire.written
    assert await loop_turns_in_a_second() < 20


async def loop_turns_in_a_second() -> int:
    """How often the loop ran something beside this test; what reschedules itself runs always."""
    loop, ran = asyncio.get_running_loop(), 0
    original = loop.call_soon

    def counted(*arguments: Any, **named: Any) -> asyncio.Handle:
        nonlocal ran
        ran += 1
        assert ran < 1000, "something reschedules itself for ever"
        return original(*arguments, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "call_soon", counted)
        await asyncio.sleep(1.0)
    return ran


async def test_nonsense_behind_a_whole_request_leaves_that_its_answer(world: DoorWorld) -> None:
    world.front.seconds = 1.0
    world.front.reads_first = False
    world.wire.sends(CHUNKED + b"1\r\na\r\n0\r\n\r\n")
    await turns()
    world.wire.sends(b"\x00\r\n\r\n")
    await asyncio.sleep(2.0)
    assert world.wire.answers[0] == (200, b"general:a")
    assert [status for status, _ in world.wire.answers] == [200, 400]


async def test_bytes_behind_a_request_without_a_body_break_nothing_of_its_answer(
    world: DoorWorld,
) -> None:
    world.front.seconds = 1.0
    world.wire.sends(b"GET /general HTTP/1.1\r\nHost: x\r\n\r\n")
    await turns()
    world.wire.sends(b"\x00\x01 no request\r\n\r\n")
    await asyncio.sleep(2.0)
    assert world.wire.answers[0] == (200, b"general:")


async def test_what_is_behind_is_told_until_it_is_asked(world: DoorWorld) -> None:
    world.wire.sends(call(b"a", f"{SECONDS}: 1"), call(b"x" * 5000, f"{SECONDS}: 1"))
    assert world.host.behind_bytes > 5000
    await asyncio.sleep(1.5)
    assert world.host.behind_bytes == 0
    await asyncio.sleep(1.0)
    assert [status for status, _ in world.wire.answers] == [200, 200]


async def test_a_head_that_is_not_whole_counts_until_it_is(world: DoorWorld) -> None:
    head = b"GET /other HTTP/1.1\r\nHost: x\r\n" + b"".join(
        b"x-%d: %s\r\n" % (number, b"y" * 1_000) for number in range(20)
    )
    world.wire.sends(head)
    await turns()
    assert world.host.behind_bytes > 20_000
    world.wire.sends(b"\r\n")
    await turns()
    assert world.host.behind_bytes == 0
    assert world.front.streamed == 1


async def test_whose_head_has_no_room_is_hung_up_on(world: DoorWorld) -> None:
    world.host.room = 10_000
    world.wire.sends(b"GET /other HTTP/1.1\r\nx: " + b"y" * 5_000)
    await turns()
    assert world.wire.aborted
    assert world.front.streamed == 0


async def test_whose_bytes_behind_have_no_room_is_hung_up_on(world: DoorWorld) -> None:
    world.host.room = 10_000
    world.wire.sends(call(b"a", f"{SECONDS}: 1"), call(b"x" * 20_000))
    assert world.wire.gone
    await turns()
    assert not world.wire.answers


@pytest.mark.parametrize("kind", [SystemExit, BaseException, StopAsyncIteration])
async def test_whatever_is_raised_over_a_request_its_connection_ends_and_nothing_else(
    caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    class Raising(PretendFront):
        async def respond(self, asked: RequestHead, source: bytes, caller: str = "") -> Response:
            raise kind("panic")

        async def handle(self, request: web.BaseRequest) -> Response:
            raise kind("panic")

    small = call(b"a")
    for sent in (small, small.replace(b"/call", b"/other")):
        world = DoorWorld(Raising())
        world.wire.sends(sent)
        await asyncio.sleep(1.0)
        assert world.wire.aborted
        assert not world.wire.written
    assert caplog.messages == ["a request was not answered"] * 2
