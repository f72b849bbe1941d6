"""A body that comes straight into its memory, over real sockets and on either loop."""

import asyncio
import gc
import random
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pytest
import uvloop
from aiohttp import web

from batchedmodel_http.connection import Connection, HeadCache
from batchedmodel_http.request_head import RequestHead
from batchedmodel_http.response import Response
from support.door_world import DoorWorld, PretendFront, PretendHouse, call, turns
from support.raw_caller import RawCaller

SIZE: Final = 3_000_000
BODY: Final = random.Random(0).randbytes(SIZE)
LOOPS: Final = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])


class TooMuch(Exception):
    """What has come is not wanted."""


@dataclass
class DirectFront(PretendFront):
    """Has bodies come straight into memory, from their second piece on."""

    most: int = 10 * SIZE
    told: int = 0
    """Bytes of which whoever reads was told."""
    memories: list[Callable[[], object]] = field(default_factory=list)
    """The memory of each body, as long as anybody has it."""
    bodies: list[bytes] = field(default_factory=list)
    ended: list[BaseException] = field(default_factory=list)

    async def handle(self, request: web.BaseRequest) -> Response:
        protocol: Any = request.protocol
        first = await request.content.readany()
        room = np.zeros(protocol.lacks, np.uint8)
        self.memories.append(weakref.ref(room))
        memory = room.data
        del room
        try:
            await protocol.receive(memory, self._arrived)
        except TooMuch:
            del memory
            return Response((), status=413)
        except BaseException as error:
            self.ended.append(error)
            raise
        self.bodies.append(first + bytes(memory))
        return Response((b"direct",))

    def _arrived(self, size: int) -> None:
        self.told += size
        if self.told > self.most:
            raise TooMuch


@asynccontextmanager
async def opened(front: PretendFront) -> AsyncIterator[RawCaller]:
    loop = asyncio.get_running_loop()
    heads = HeadCache(loop, RequestHead)
    house = PretendHouse()
    server = await loop.create_server(lambda: Connection(house, front, heads, loop), "127.0.0.1", 0)
    try:
        async with RawCaller.calling(server.sockets[0].getsockname()[1]) as caller:
            yield caller
    finally:
        server.close()
        await server.wait_closed()


def run(loop: Callable[[], Any], scene: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(20.0):
            await scene()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(within())


@LOOPS
def test_a_body_arrives_whole_and_the_requests_around_it_are_answered(loop: Any) -> None:
    async def scene() -> None:
        front = DirectFront()
        async with opened(front) as caller:
            for _ in range(3):
                caller.sends(call(b"before"))
                assert await caller.answer() == (200, b"call:before")
                caller.sends(call(BODY, path="/large"))
                assert await caller.answer() == (200, b"direct")
            caller.sends(call(BODY, path="/large") + call(b"behind", path="/other"))
            assert await caller.answer() == (200, b"direct")
            assert await caller.answer() == (200, b"direct")
        assert front.bodies == [*[BODY] * 4, b"behind"]

    run(loop, scene)


def test_a_body_that_is_refused_with_its_last_bytes_holds_nothing_any_more() -> None:
    """What was held until it was whole was given back by a later request alone."""

    async def scene() -> None:
        front = DirectFront()
        world = DoorWorld(front)
        sent = call(BODY, path="/large")
        world.wire.sends(sent[:100_000])
        await turns()
        assert world.host.behind_bytes
        front.most = len(sent) - 100_001
        world.wire.sends(sent[100_000:])
        await turns()
        assert world.wire.answers == [(413, b"")]
        assert not world.wire.is_closing()
        assert not world.host.behind_bytes

    run(asyncio.new_event_loop, scene)


@LOOPS
@pytest.mark.parametrize("size", [257 * 1024, 300_000, 330_000])
def test_all_but_the_beginning_of_a_large_body_comes_straight_to_its_place(
    loop: Any, size: int
) -> None:
    async def scene() -> None:
        front = DirectFront()
        async with opened(front) as caller:
            caller.sends(call(BODY[:size], path="/large"))
            assert await caller.answer() == (200, b"direct")
        assert front.bodies == [BODY[:size]]
        assert front.told >= size - 64 * 1024

    run(loop, scene)


@LOOPS
def test_nothing_of_a_body_that_was_refused_is_kept(loop: Any) -> None:
    async def scene() -> None:
        front = DirectFront(most=SIZE // 2)
        gc.disable()
        try:
            async with opened(front) as caller:
                caller.sends(call(BODY, path="/large"))
                assert await caller.answer() == (413, b"")
                await asyncio.sleep(0.01)
                assert front.memories[0]() is None
        finally:
            gc.enable()

    run(loop, scene)


@LOOPS
def test_a_body_that_comes_in_small_pieces_arrives_whole(loop: Any) -> None:
    async def scene() -> None:
        front = DirectFront()
        async with opened(front) as caller:
            sent = call(BODY, path="/large")
            for start in range(0, len(sent), 100_000):
                caller.sends(sent[start : start + 100_000])
                await asyncio.sleep(0.001)
            assert await caller.answer() == (200, b"direct")
        assert front.bodies == [BODY]

    run(loop, scene)


@LOOPS
def test_who_leaves_in_the_middle_ends_what_is_done_for_it(loop: Any) -> None:
    async def scene() -> None:
        front = DirectFront()
        async with opened(front) as caller:
            caller.sends(call(BODY, path="/large")[:2_000_000])
            while front.told < 1_000_000:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            caller.writer.transport.abort()
            while not front.ended:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert isinstance(front.ended[0], asyncio.CancelledError)
        assert not front.bodies

    run(loop, scene)


@LOOPS
def test_what_whoever_reads_raises_ends_the_receiving_at_once(loop: Any) -> None:
    async def scene() -> None:
        front = DirectFront(most=SIZE // 2)
        async with opened(front) as caller:
            caller.sends(call(BODY, path="/large"))
            assert await caller.answer() == (413, b"")
        assert SIZE // 2 < front.told < SIZE

    run(loop, scene)
