"""What was in hand for a caller of a streamed request is gone when the caller is."""

import asyncio
import gc
import weakref

import pytest
from aiohttp import web

from batchedmodel_http.response import Response
from support.door_world import DoorWorld, PretendFront, call, turns

pytestmark = pytest.mark.looptime


class Body:
    """Something large that was made of a request."""


async def test_nothing_of_a_request_whose_caller_left_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bodies: weakref.WeakSet[Body] = weakref.WeakSet()

    async def handle(front: PretendFront, request: web.BaseRequest) -> Response:
        body = Body()
        bodies.add(body)
        await asyncio.sleep(10.0)
        return Response(())

    monkeypatch.setattr(PretendFront, "handle", handle)
    world = DoorWorld()
    gc.disable()
    try:
        world.wire.sends(call(b"hello", path="/other"))
        await turns()
        assert len(bodies) == 1
        world.wire.leaves()
        await turns()
        assert not bodies
    finally:
        gc.enable()


@pytest.mark.parametrize("sent", [b"", b"hel"], ids=["a part of a head", "a part of a body"])
async def test_nothing_of_a_connection_waits_for_the_collector(sent: bytes) -> None:
    """Ten thousand callers who leave in the midst of a request kept half a gigabyte."""
    gc.collect()
    gc.disable()
    try:
        world = DoorWorld()
        whole = call(b"hello", path="/other")
        world.wire.sends(whole[:-5] + sent if sent else whole[:20])
        await asyncio.sleep(1.0)
        streaming = world.streaming
        assert streaming is not None
        kept = weakref.ref(streaming)
        world.wire.leaves()
        await turns()
        del world, streaming
        assert kept() is None
    finally:
        gc.enable()
