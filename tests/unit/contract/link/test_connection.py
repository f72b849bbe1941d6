"""Two ends of a link over a real socket, and frames in pieces: none is lost, changed or reordered,
and none waits for a whole other one.
"""

import asyncio
import socket
import struct
from collections.abc import (
    Iterable,
)
from functools import (
    partial,
)
from typing import (
    Any,
    Final,
)

import pytest
from hypothesis import (
    given,
)
from hypothesis import (
    strategies as st,
)

from batchedmodel_contract.invalid_input import (
    InvalidInput,
)
from batchedmodel_contract.link.connection import (
    PIECE_BYTES,
    Frame,
    FrameReader,
    FrameWriter,
    LinkConnection,
)

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


_FEW_BYTES: Final = {1: 4 << 20, 2: 64}


def _read(reader: FrameReader, data: bytes, steps: list[int]) -> list[tuple[int, int, bytes]]:
    frames: list[Frame] = []
    position, turn = 0, 0
    while position < len(data):
        room = reader.buffer()
        size = min(len(room), len(data) - position, steps[turn % len(steps)])
        room[:size] = data[position : position + size]
        position += size
        turn += 1
        frames += reader.received(size)
    return [(frame.kind, frame.id, bytes(frame.content)) for frame in frames]


def _wire(writer: FrameWriter, frames: list[tuple[int, int, list[bytes]]]) -> bytes:
    wire = b""
    for kind, frame_id, parts in frames:
        now = writer.add(kind, frame_id, parts)
        wire += b"".join(now or [])
        wire += b"".join(writer.next_piece() or [])  # one piece goes between two frames
    while (piece := writer.next_piece()) is not None:
        wire += b"".join(piece)
    return wire


_SIZES: Final = st.one_of(
    st.integers(0, 100), st.integers(PIECE_BYTES - 2, PIECE_BYTES + 2), st.integers(0, 900_000)
)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.lists(_SIZES, min_size=1, max_size=3)), max_size=5),
    st.lists(st.sampled_from([1, 7, 23, 24, 1000, 65_536, 262_144]), min_size=1, max_size=4),
)
def test_frames_arrive_whole_and_those_of_one_id_in_order(
    drawn: list[tuple[int, list[int]]], steps: list[int]
) -> None:
    """Would have caught a piece cut at a part's end, and a cancel in front of its submit."""
    frames = [
        (1, frame_id, [bytes([turn + at]) * size for at, size in enumerate(sizes)])
        for turn, (frame_id, sizes) in enumerate(drawn)
    ]
    # Steps of a byte would take minutes for a megabyte.
    total = sum(len(part) for _, _, parts in frames for part in parts)
    steps = [max(step, total // 500 + 1) for step in steps]
    arrived = _read(FrameReader(_FEW_BYTES), _wire(FrameWriter(), frames), steps)
    sent = [(kind, frame_id, b"".join(parts)) for kind, frame_id, parts in frames]
    assert sorted(arrived) == sorted(sent)
    for frame_id in range(4):
        assert [one for one in arrived if one[1] == frame_id] == [
            one for one in sent if one[1] == frame_id
        ]


def test_a_small_frame_goes_between_the_pieces_of_a_large_one() -> None:
    """Would have caught a cancel that waits for all of a batch of 19 MB."""
    writer = FrameWriter()
    assert writer.add(1, 7, [bytes(3 * PIECE_BYTES)]) is None
    assert writer.next_piece() is not None
    assert writer.add(2, 8, [b"now"]) is not None
    assert writer.add(2, 7, [b"behind"]) is None  # of the same id: it keeps its place


@pytest.mark.parametrize(
    ("head", "rule"),
    [
        (_HEAD.pack(PIECE_BYTES + 1, 1, 0, 0), "at most"),
        (_HEAD.pack(0, 1, 5, 0), "or empty"),
        (_HEAD.pack(1, 9, 0, 0), "not one that may come"),
        (_HEAD.pack(1, 2, 64, 0), "longer than the 64 bytes"),
        (_HEAD.pack(1, 1, 1 << 40, 0), "longer than the 4194304 bytes"),
        (_HEAD.pack(1, 1, 9, 0) + b"x" + _HEAD.pack(1, 1, 9, 0), "not the next one"),
        (_HEAD.pack(1, 1, 9, 0) + b"x" + _HEAD.pack(1, 2, 8, 0), "not the next one"),
        (b"".join(_HEAD.pack(1, 1, 9, n) + b"x" for n in range(17)), "begins while 4 others"),
    ],
)
def test_a_head_that_lies_ends_the_stream(head: bytes, rule: str) -> None:
    """Would have caught memory taken for a length that never comes."""
    with pytest.raises(InvalidInput, match=rule):
        _read(FrameReader(_FEW_BYTES), head, [len(head)])
