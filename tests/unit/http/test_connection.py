"""One connection: who answers which of its requests, and in which order."""

import asyncio

import looptime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.door_world import SECONDS, DoorWorld, call, turns

pytestmark = pytest.mark.looptime


async def test_a_whole_small_call_is_answered_at_once_and_by_the_front(world: DoorWorld) -> None:
    world.wire.sends(call(b"a"))
    assert world.wire.answers == [(200, b"call:a")]
    assert world.streaming is None


async def test_what_comes_in_pieces_soon_behind_each_other_is_answered_by_the_front(
    world: DoorWorld,
) -> None:
    for byte in call(b"abc"):
        world.wire.sends(bytes([byte]))
        await turns(1)
    assert world.wire.answers == [(200, b"call:abc")]
    assert world.streaming is None


@pytest.mark.parametrize("cut", [1, 10, len(call(b"abc")) - 3, len(call(b"abc")) - 1])
async def test_what_comes_slowly_is_answered_the_general_way(world: DoorWorld, cut: int) -> None:
    data = call(b"abc")
    world.wire.sends(data[:cut])
    await asyncio.sleep(0.2)
    assert world.streaming is not None
    world.wire.sends(data[cut:])
    await turns()
    assert world.wire.answers == [(200, b"general:abc")]


async def test_behind_a_request_with_a_known_end_the_front_answers_again(world: DoorWorld) -> None:
    for _ in range(3):
        world.wire.sends(call(path="/other", method="GET"))
        await turns()
        world.wire.sends(call(b"a"))
        await turns()
    assert world.wire.answers == [(200, b"general:"), (200, b"call:a")] * 3


async def test_a_large_body_goes_the_general_way_and_what_follows_it_is_the_fronts(
    world: DoorWorld,
) -> None:
    body = b"x" * 100_000
    data = call(body)
    world.wire.sends(*(data[at : at + 7000] for at in range(0, len(data), 7000)))
    await turns()
    world.wire.sends(call(b"a"))
    await turns()
    assert world.wire.answers == [(200, b"general:" + body), (200, b"call:a")]


@pytest.mark.parametrize(
    "odd",
    [
        b"POST /call HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        b"POST /call HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\na",
        call(b"a", "x-long: " + "y" * 5000),
    ],
)
async def test_odd_requests_go_the_general_way_and_what_follows_is_the_fronts(
    world: DoorWorld, odd: bytes
) -> None:
    world.wire.sends(odd)
    await turns()
    world.wire.sends(call(b"b"))
    await turns()
    assert world.wire.answers == [(200, b"general:a"), (200, b"call:b")]


async def test_nonsense_is_told_so_and_nothing_behind_it_is_looked_at(
    world: DoorWorld,
) -> None:
    double = b"POST /call HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 44\r\n\r\n"
    world.wire.sends(double + call(b"a"))
    await turns()
    assert [status for status, _ in world.wire.answers] == [400]
    assert world.wire.is_closing()
    assert not world.front.begun


HIDDEN = call(b"hidden")


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**64, 10**30])
async def test_no_length_is_so_large_that_a_body_is_read_as_a_request(
    world: DoorWorld, length: int
) -> None:
    head = f"POST /call HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
    world.wire.sends(head.encode())
    await turns()
    if not world.wire.is_closing():
        world.wire.sends(HIDDEN)
    await turns()
    assert b"hidden" not in world.wire.written
    assert not world.front.begun


async def test_behind_a_connect_nothing_is_looked_at(world: DoorWorld) -> None:
    world.wire.sends(b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n" + HIDDEN)
    await turns()
    assert world.wire.written.count(b"HTTP/1.1 ") == 1
    assert world.wire.is_closing()
    assert not world.front.begun


async def test_a_head_of_many_long_lines_is_refused_before_it_is_large(world: DoorWorld) -> None:
    world.wire.sends(b"POST /call HTTP/1.1\r\nHost: x\r\n")
    for number in range(8):
        world.wire.sends(b"x%d: %s\r\n" % (number, b"y" * 8000))
    assert not world.wire.is_closing()
    world.wire.sends(b"x: %s\r\n" % (b"y" * 8000))
    assert [status for status, _ in world.wire.answers] == [431]
    assert world.wire.is_closing()


@pytest.mark.parametrize(
    ("before", "line"),
    [(b"1\r\na\r\n0\r\n", b"x: %s\r\n" % (b"y" * 8000)), (b"1;", b"y" * 8000)],
    ids=["trailers", "an extension of a chunk"],
)
async def test_what_no_body_consists_of_is_bounded_as_a_head_is(
    world: DoorWorld, before: bytes, line: bytes
) -> None:
    world.wire.sends(b"POST /call HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    await turns()
    for piece in (before, *[line] * 8):
        world.wire.sends(piece)
        await turns()
    assert not world.wire.is_closing()
    world.wire.sends(line)
    await turns()
    assert [status for status, _ in world.wire.answers] == [400]
    assert world.wire.is_closing()


async def test_pipelined_requests_are_answered_one_after_the_other(world: DoorWorld) -> None:
    world.wire.sends(call(b"a", f"{SECONDS}: 1"), call(b"b"))
    world.wire.sends(call(b"c", f"{SECONDS}: 1") + call(b"d") + call(b"e", path="/other"))
    world.wire.sends(call(b"f"))
    await asyncio.sleep(0.9)
    assert (world.front.begun, world.wire.answers) == (1, [])
    await asyncio.sleep(2.0)
    said = [b"call:a", b"call:b", b"call:c", b"call:d", b"general:e", b"call:f"]
    assert [body for _, body in world.wire.answers] == said


async def test_a_caller_that_sends_a_thousand_at_once_is_not_served_alone(world: DoorWorld) -> None:
    world.wire.sends(call(b"a") * 1000)
    assert world.front.begun == 1
    await turns(100)
    assert world.front.begun == 101


async def test_who_asks_while_the_general_way_works_is_answered_behind_it(world: DoorWorld) -> None:
    world.front.seconds = 1.0
    world.wire.sends(call(path="/other", method="GET"))
    await asyncio.sleep(0.5)
    assert world.connection.at_work
    world.wire.sends(call(b"a"))
    await asyncio.sleep(2.5)
    assert world.wire.answers == [(200, b"general:"), (200, b"call:a")]
    assert not world.connection.at_work


async def test_what_an_upstream_server_should_get_is_given_to_the_general_way_by_itself(
    world: DoorWorld,
) -> None:
    for seconds in ("0", "1"):
        alone = call(b"a", f"{SECONDS}: {seconds}", path="/alone")
        world.wire.sends(alone)
        await asyncio.sleep(1.1)
        world.wire.sends(call(b"b"))
        await turns()
    world.wire.sends(call(b"c", f"{SECONDS}: 1", path="/alone"), call(b"d"))
    await asyncio.sleep(1.1)
    said = [b"general:a", b"call:b"] * 2 + [b"general:c", b"call:d"]
    assert [body for _, body in world.wire.answers] == said


requests = st.builds(
    call,
    st.binary(max_size=20) | st.sampled_from([b"x" * 40_000, b"POST /call HTTP/1.1\r\n\r\n"]),
    st.sampled_from(["x: y", f"{SECONDS}: 0.01", f"{SECONDS}: 0.1"]),
    path=st.sampled_from(["/call", "/call", "/alone", "/other"]),
)


@pytest.mark.slow
@given(
    st.lists(requests, min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(1, 50_000) | st.integers(1, 200), st.booleans())),
)
def test_however_requests_are_cut_each_is_answered_once_and_in_order(
    sent: list[bytes], cuts: list[tuple[int, bool]]
) -> None:
    async def story() -> None:
        world = DoorWorld()
        data = b"".join(sent)
        at = 0
        for size, waits in [*cuts, (len(data), False)]:
            while not world.wire.reading:  # noqa: ASYNC110  # a caller can only look
                await asyncio.sleep(0.005)
            world.wire.sends(data[at : at + size])
            at += size
            await asyncio.sleep(0.07 if waits else 0)
        async with asyncio.timeout(20.0):
            while len(world.wire.answers) < len(sent):  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.005)
        bodies = [body.partition(b":")[2] for _, body in world.wire.answers]
        assert bodies == [one.partition(b"\r\n\r\n")[2] for one in sent]
        world.wire.leaves()
        await turns()
        assert world.streaming is None

    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(story())
