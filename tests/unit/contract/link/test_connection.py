"""Two ends of a link over a real socket."""

import asyncio
import socket
import struct
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from batchedmodel_contract.link.connection import LinkConnection

_HEAD: Final = struct.Struct("<IB3xQQ")
_LIMITS: Final = {1: 64 << 20, 2: 64 << 20}


def _made(connection: LinkConnection) -> LinkConnection:
    return connection


class _Handler:
    def __init__(self) -> None:
        self.frames: list[tuple[int, int, int]] = []
        self.arrived = asyncio.Event()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def frame(self, kind: int, frame_id: int, content: memoryview) -> None:
        self.frames.append((kind, frame_id, len(content)))
        self.arrived.set()

    def disconnected(self, reason: str) -> None:
        self.ended.set_result(reason)


async def _pair() -> tuple[LinkConnection, _Handler, LinkConnection, _Handler]:
    loop = asyncio.get_running_loop()
    ends: list[tuple[LinkConnection, _Handler]] = []
    for one in socket.socketpair():
        one.setblocking(False)
        handler = _Handler()
        connection = LinkConnection(handler, _LIMITS)
        await loop.connect_accepted_socket(partial(_made, connection), one)
        ends.append((connection, handler))
    return (*ends[0], *ends[1])


async def test_a_small_frame_overtakes_a_large_one_that_is_on_its_way() -> None:
    """Would have caught one queue for both."""
    here, _, there, handler = await _pair()
    here.send(1, 1, [bytes(32 << 20)])
    here.send(2, 2, [b"now"])
    async with asyncio.timeout(180):
        while len(handler.frames) < 2:
            handler.arrived.clear()
            await handler.arrived.wait()
    assert handler.frames == [(2, 2, 3), (1, 1, 32 << 20)]
    here.abort()
    there.abort()


async def test_a_connection_that_is_closed_ends_behind_its_frames() -> None:
    here, _, _, handler = await _pair()
    here.send(1, 1, [bytes(8 << 20)])
    here.close()
    async with asyncio.timeout(180):
        assert await handler.ended == ""
    assert handler.frames == [(1, 1, 8 << 20)]


async def test_nonsense_ends_the_connection_with_the_reason() -> None:
    here, handler, there, _ = await _pair()
    there._transport.write(b"GET / HTTP/1.1\r\nHost: model\r\n\r\n")
    async with asyncio.timeout(180):
        assert "cannot be read" in await handler.ended
    here.abort()


async def test_what_came_or_was_sent_in_part_goes_with_the_connection() -> None:
    """Would have caught gigabytes that stayed until a collection of cycles."""
    here, handler, there, other = await _pair()
    there._transport.pause_reading()
    here.send(1, 1, [bytes(8 << 20)])
    there._transport.write(_HEAD.pack(100, 2, 8 << 20, 7) + bytes(100))
    async with asyncio.timeout(180):
        while not here.is_within_frame:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert here.waiting_frames == 1
        there.abort()
        assert await other.ended == ""
        # The kernel says of the bytes that were not read that the peer has reset the connection.
        assert await handler.ended == ""
    assert not here.is_within_frame
    assert here.waiting_frames == 0


async def test_a_peer_that_goes_away_over_a_piece_is_sent_no_other() -> None:
    """The loop's transport closes at once, raises at the next, and tells of it a turn later."""

    class Closing(asyncio.Transport):
        pieces = 0

        def is_closing(self) -> bool:
            return self.pieces > 0

        def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
            """See `asyncio.Transport`."""

        def writelines(self, list_of_data: Iterable[Any]) -> None:
            if self.pieces:
                raise RuntimeError("the handler is closed")
            self.pieces += 1

    connection, transport = LinkConnection(_Handler(), _LIMITS), Closing()
    connection.connection_made(transport)
    connection.send(1, 1, [bytes(8 << 20)])
    assert transport.pieces == 1
