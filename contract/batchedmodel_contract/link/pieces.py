"""Frames in pieces: how they share one stream of bytes without waiting for each other.

A frame has a kind, an id and content of any length. It travels in pieces of at most `PIECE_BYTES`,
each behind a head: bytes of the piece, kind, bytes of the frame that follow in later pieces, id.
Pieces of several frames may alternate, so a small frame waits for one piece of a large one and not
for all of it. Frames of one id keep their order. Pure; both ends use both classes.
"""

import builtins
import mmap
import struct
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput

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
        self._ids: Counter[int] = Counter()
        """How many frames of each id wait."""

    @property
    def waiting_frames(self) -> int:
        """How many frames are not sent whole yet."""
        return len(self._waiting)

    def add(self, kind: int, frame_id: int, parts: Sequence[Buffer]) -> list[Buffer] | None:
        """What to write now for a frame; None where it waits, and `next_piece` brings it.

        A frame that fits in one piece is written at once, unless another one of its id waits.
        """
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if size <= PIECE_BYTES and frame_id not in self._ids:
            return [b"".join((_HEAD.pack(size, kind, 0, frame_id), *parts))]
        self._waiting.append((frame_id, _pieces(kind, frame_id, parts, size)))
        self._ids[frame_id] += 1
        return None

    def next_piece(self) -> list[Buffer] | None:
        """The next piece, head and content; None where no frame waits."""
        while self._waiting:
            frame_id, pieces = self._waiting[0]
            piece = next(pieces, None)
            if piece is not None:
                return piece
            self._waiting.popleft()
            self._ids[frame_id] -= 1
            if not self._ids[frame_id]:
                del self._ids[frame_id]
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
                unfinished = self._begin(kind, frame_id, length + rest)
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

    def _begin(self, kind: int, frame_id: int, size: int) -> _Unfinished:
        if len(self._unfinished) >= _MAX_UNFINISHED:
            raise InvalidInput("frame", f"begins while {_MAX_UNFINISHED} others are not whole")
        begun = self._unfinished[frame_id] = _Unfinished(kind, frame_id, size)
        return begun

    def _whole(self, unfinished: _Unfinished) -> Frame:
        del self._unfinished[unfinished.frame_id]
        return Frame(unfinished.kind, unfinished.frame_id, unfinished.memory)
