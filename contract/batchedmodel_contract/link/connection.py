"""One end of the link: frames in, frames out, over one socket, in pieces.

A frame has a kind, an id and content of any length. It travels in pieces of at most `PIECE_BYTES`,
each behind a head: bytes of the piece, kind, bytes of the frame that follow in later pieces, id.
Pieces of several frames may alternate, so a small frame waits for one piece of a large one and not
for all of it. Frames of one id keep their order. Compiled, as every byte of the link passes here.
"""

import asyncio
import builtins
import mmap
import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput

UNREADABLE: Final = "what the other end sent cannot be read"
"""What the reason begins with when a connection ends because of it."""
_HEAD: Final = struct.Struct("<IB3xQQ")
PIECE_BYTES: Final = 256 * 1024 - _HEAD.size
"""Content of one piece: with its head 256 KiB, which a socket takes in a tenth of a millisecond."""
_BUFFER_BYTES: Final = 64 * 1024
"""Read at once, unless a piece of a large frame goes straight to the frame's memory."""
_MAX_UNFINISHED: Final = 4
"""Large frames that may arrive at the same time; a peer sends them one behind the other."""

_ARRIVED: Final = memoryview(bytearray(_BUFFER_BYTES))
"""Bytes that just came, over any link: each reader takes them from here before others can come."""


class Frame(NamedTuple):
    """One whole frame, as it arrived."""

    kind: int
    id: int
    content: builtins.memoryview  # mypyc looks for the plain name in this module


class FrameWriter:
    """Cuts frames into pieces and says which piece goes next."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Iterator[list[Buffer]]]] = deque()
        """Frames that are not sent whole yet, by their ids, each as its remaining pieces."""

    @property
    def waiting_frames(self) -> int:
        """How many frames are not sent whole yet."""
        return len(self._waiting)

    def add(self, kind: int, frame_id: int, parts: Sequence[Buffer]) -> list[Buffer] | None:
        """What to write now for a frame; None where it waits, and `next_piece` brings it.

        A frame that fits in one piece is written at once, unless another one of its id waits.
        """
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if size <= PIECE_BYTES and all(waiting != frame_id for waiting, _ in self._waiting):
            return [b"".join((_HEAD.pack(size, kind, 0, frame_id), *parts))]
        self._waiting.append((frame_id, _pieces(kind, frame_id, parts, size)))
        return None

    def next_piece(self) -> list[Buffer] | None:
        """The next piece, head and content; None where no frame waits."""
        while self._waiting:
            piece = next(self._waiting[0][1], None)
            if piece is not None:
                return piece
            self._waiting.popleft()
        return None


def _pieces(kind: int, frame_id: int, parts: Sequence[Buffer], size: int) -> Iterator[list[Buffer]]:
    """The pieces of a frame, cut where the parts lie; nothing is copied."""
    left, piece, room = size, list[Buffer](), min(size, PIECE_BYTES)
    if not size:
        yield [_HEAD.pack(0, kind, 0, frame_id)]
    for part in parts:
        view, start = memoryview(part), 0
        while start < len(view):
            cut = view[start : start + room]
            piece.append(cut)
            start += len(cut)
            room -= len(cut)
            if not room:
                length = min(left, PIECE_BYTES)
                left -= length
                yield [_HEAD.pack(length, kind, left, frame_id), *piece]
                piece, room = [], min(left, PIECE_BYTES)


class _Unfinished:
    """A frame whose pieces are still coming."""

    __slots__ = ("filled", "frame_id", "kind", "left", "memory", "piece_left")

    def __init__(self, kind: int, frame_id: int, size: int) -> None:
        self.kind: Final = kind
        self.frame_id: Final = frame_id
        # Of a large one pages are taken as bytes arrive, whatever length its head claims.
        self.memory: Final = memoryview(
            mmap.mmap(-1, size) if size > PIECE_BYTES else bytearray(size)
        )
        self.filled = 0
        self.left = size
        """Bytes of the frame behind the pieces whose heads have come."""
        self.piece_left = 0
        """Bytes of the present piece that have not come."""

    def room(self) -> memoryview:
        """Memory for the rest of the present piece."""
        return self.memory[self.filled : self.filled + self.piece_left]

    def fill(self, size: int) -> None:
        """So many bytes of the present piece are there."""
        self.filled += size
        self.piece_left -= size


class FrameReader:
    """Puts frames together from the bytes of one stream."""

    def __init__(self, max_bytes: Mapping[int, int]) -> None:
        """`max_bytes`: largest content by kind; a frame of any other kind is an error."""
        self._max_bytes = max_bytes
        self._kept = b""
        """Bytes of a head or of a small frame that are not whole."""
        self._unfinished: dict[int, _Unfinished] = {}
        """By frame id."""
        self._direct: _Unfinished | None = None
        """The frame into whose memory the next bytes go."""

    @property
    def is_within_frame(self) -> bool:
        """Whether a frame has come in part."""
        return bool(self._kept or self._unfinished)

    def buffer(self) -> memoryview:
        """Memory for the next bytes."""
        return _ARRIVED if self._direct is None else self._direct.room()

    def received(self, size: int) -> list[Frame]:
        """So many bytes were put into `buffer()`: the frames that are whole now.

        Raises `InvalidInput`, after which nothing of the stream can be read.
        """
        direct = self._direct
        if direct is None:
            arrived = _ARRIVED[:size]
            return self._cut(self._kept + arrived if self._kept else bytes(arrived))
        direct.fill(size)
        if direct.piece_left:
            return []
        self._direct = None
        return [] if direct.left else [self._whole(direct)]

    def _cut(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        begin, end = 0, len(data)
        view = memoryview(data)
        self._kept = b""
        while end - begin >= _HEAD.size:
            length, kind, rest, frame_id = _HEAD.unpack_from(data, begin)
            start = begin + _HEAD.size
            unfinished = self._unfinished.get(frame_id)
            self._check(length, kind, rest, unfinished)
            if unfinished is None and not rest and length <= end - start:
                begin = start + length
                frames.append(Frame(kind, frame_id, view[start:begin]))
                continue
            if unfinished is None and not rest and length <= _BUFFER_BYTES // 2:
                break  # a small frame comes whole with what follows
            if unfinished is None:
                if len(self._unfinished) >= _MAX_UNFINISHED:
                    rule = f"begins while {_MAX_UNFINISHED} others are not whole"
                    raise InvalidInput("frame", rule)
                unfinished = _Unfinished(kind, frame_id, length + rest)
                self._unfinished[frame_id] = unfinished
            unfinished.left -= length
            unfinished.piece_left = length
            here = min(length, end - start)
            unfinished.memory[unfinished.filled : unfinished.filled + here] = view[
                start : start + here
            ]
            unfinished.fill(here)
            begin = start + here
            if unfinished.piece_left:
                self._direct = unfinished
                return frames
            if not unfinished.left:
                frames.append(self._whole(unfinished))
        self._kept = data[begin:]
        return frames

    def _check(self, length: int, kind: int, rest: int, unfinished: _Unfinished | None) -> None:
        if length > PIECE_BYTES or (rest and not length):
            raise InvalidInput("piece", f"is not of at most {PIECE_BYTES} bytes, or empty", length)
        if unfinished is not None:
            if kind != unfinished.kind or length + rest != unfinished.left:
                raise InvalidInput("piece", "is not the next one of the frame of its id", rest)
            return
        if kind not in self._max_bytes:
            raise InvalidInput("kind", "is not one that may come here", kind)
        if length + rest > self._max_bytes[kind]:
            rule = f"is longer than the {self._max_bytes[kind]} bytes of its kind"
            raise InvalidInput("frame", rule, length + rest)

    def _whole(self, unfinished: _Unfinished) -> Frame:
        del self._unfinished[unfinished.frame_id]
        return Frame(unfinished.kind, unfinished.frame_id, unfinished.memory)


class FrameHandler(Protocol):
    """Handles what arrives on one connection."""

    def frame(self, kind: int, frame_id: int, content: memoryview) -> None:
        """Handle one frame. Raises `InvalidInput` where it cannot be read: the connection ends."""
        ...

    def disconnected(self, reason: str) -> None:
        """The connection has ended; called once. `reason` is empty where the peer ended it."""
        ...


class LinkConnection(asyncio.BufferedProtocol):
    """Sends and receives the frames of one connection."""

    __slots__ = (
        "_closing", "_handler", "_paused", "_reader", "_reason", "_transport", "_writer",
    )  # fmt: skip

    def __init__(self, handler: FrameHandler, max_bytes: Mapping[int, int]) -> None:
        """`max_bytes`: largest content of each kind of frame that may arrive."""
        self._handler: Final = handler
        self._reader = FrameReader(max_bytes)
        self._writer = FrameWriter()
        self._transport: Any = None
        self._paused = False
        self._closing = False
        self._reason = ""

    @property
    def is_open(self) -> bool:
        """Whether frames are sent: it is connected, and not about to end."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unsent_bytes(self) -> int:
        """Bytes of small frames and pieces that the peer has not taken."""
        return 0 if self._transport is None else int(self._transport.get_write_buffer_size())

    @property
    def waiting_frames(self) -> int:
        """How many frames wait for the peer to take what is in front of them."""
        return self._writer.waiting_frames

    @property
    def is_within_frame(self) -> bool:
        """Whether a frame has come in part."""
        return self._reader.is_within_frame

    def send(self, kind: int, frame_id: int, parts: Sequence[Buffer] = (b"",)) -> None:
        """Send a frame, whose parts must stay as they are; nothing unless it is open.

        A small frame goes in front of the rest of large ones that are on their way.
        """
        if not self.is_open:
            return
        piece = self._writer.add(kind, frame_id, parts)
        if piece is not None:
            self._transport.write(piece[0])
        else:
            self._send_pieces()

    def close(self) -> None:
        """End the connection behind all frames that were sent."""
        self._closing = True
        if self._transport is not None and not self._writer.waiting_frames:
            self._transport.close()

    def abort(self, reason: str = "") -> None:
        """End the connection at once."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._transport = transport
        # One piece waits in this process, and what the socket's own buffer holds.
        self._transport.set_write_buffer_limits(high=PIECE_BYTES, low=PIECE_BYTES // 2)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        # Not once the collector comes: frames that came or were sent in part may be gigabytes.
        self._reader, self._writer = FrameReader({}), FrameWriter()
        self._handler.disconnected(self._reason)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Memory for the next bytes."""
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
        try:
            for kind, frame_id, content in self._reader.received(nbytes):
                if self._transport.is_closing():
                    return
                self._handler.frame(kind, frame_id, content)
        except InvalidInput as error:
            self.abort(f"{UNREADABLE}: {error}")

    def pause_writing(self) -> None:
        """The peer takes less than is written: no further piece of a large frame for now."""
        self._paused = True

    def resume_writing(self) -> None:
        """It has caught up."""
        self._paused = False
        self._send_pieces()

    def _send_pieces(self) -> None:
        while not self._paused and (piece := self._writer.next_piece()) is not None:
            if self._transport.is_closing():
                return  # the peer went away over the last one
            self._transport.writelines(piece)
        if self._closing and not self._writer.waiting_frames:
            self._transport.close()
