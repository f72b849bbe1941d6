"""Large bodies without large copies: several buffers written as one body, one body read in steps.

To join ten megabytes takes milliseconds in which the loop does nothing else. So a large body is
copied once, piece by piece as it arrives, and is sent from where it lies.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from aiohttp import Payload
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import StreamWriter

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_http.response import LARGE, size_of

_MOST_DIGITS: Final = 18
_SMALL_PART: Final = 16 * 1024  # copied sooner than it is handed to the kernel by itself
_STEP: Final = 256 * 1024


class BuffersBody(Payload):
    """A body that lies in several buffers and is written from there."""

    _autoclose = True

    def __init__(self, parts: Sequence[Buffer], content_type: str) -> None:
        super().__init__(parts, content_type=content_type)
        self._parts = parts
        self._size = size_of(parts)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write piece by piece; the loop goes on between two.

        It does not wait for the reader: what is unread is in memory either way, and the connection
        counts it.
        """
        for piece in pieces_of(self._parts):
            await _at_once(writer, piece)
            # A fast reader takes all at once, and nothing else would have a turn meanwhile.
            await asyncio.sleep(0)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The body as text, for whoever prints it."""
        return b"".join(self._parts).decode(encoding, errors)


async def _at_once(writer: AbstractStreamWriter, piece: Buffer) -> None:
    if isinstance(writer, StreamWriter):
        await writer.write(piece, drain=False)
    else:
        await writer.write(piece)


class Room:
    """Memory for one body whose largest size is known, filled as it arrives.

    Only what was written takes memory, however much a caller declares.
    """

    def __init__(self, size: int, memory: memoryview | None = None) -> None:
        """`memory`: where it lies; by default in memory of the process's own."""
        self._memory = np.empty(size, np.uint8).data if memory is None else memory
        self._filled = 0

    def write(self, piece: Buffer) -> None:
        """Copy a piece behind what is there; there must be room for it."""
        end = self._filled + len(piece)
        self._memory[self._filled : end] = piece
        self._filled = end

    def __len__(self) -> int:
        return self._filled

    def rest(self, size: int) -> memoryview:
        """Where the next bytes belong, up to this many; `filled` says when they are there."""
        return self._memory[self._filled : self._filled + size]

    def filled(self, size: int) -> None:
        """So many bytes of the rest are there."""
        self._filled += size

    def view(self) -> memoryview:
        """What was written, where it lies."""
        return self._memory[: self._filled]


def json_bytes(size: int, head: str | None) -> int:
    """How many bytes of a body are JSON, by what its headers say; 0 if they make no sense."""
    if head is None:
        return size
    is_length = head.isascii() and head.isdigit() and len(head) <= _MOST_DIGITS
    return min(size, int(head)) if is_length else 0


def body_of(parts: Sequence[Buffer], content_type: str) -> bytes | BuffersBody:
    """A body for the HTTP library: a small one in one piece, a large one where it lies."""
    if size_of(parts) > LARGE:
        return BuffersBody(parts, content_type)
    return b"".join(parts)


def pieces_of(parts: Sequence[Buffer]) -> Iterator[Buffer]:
    """The same bytes in pieces of moderate size: large parts cut, small neighbours joined."""
    small: list[Buffer] = []
    size = 0
    for part in parts:
        if len(part) < _SMALL_PART:
            small.append(part)
            size += len(part)
            if size < _STEP:
                continue
        if size:
            yield b"".join(small)
            small, size = [], 0
        if len(part) >= _SMALL_PART:
            view = memoryview(part)
            for start in range(0, len(view), _STEP):
                yield view[start : start + _STEP]
    if size:
        yield b"".join(small)
