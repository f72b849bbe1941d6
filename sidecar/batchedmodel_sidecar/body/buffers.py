"""Large bodies without large copies: read and written in steps.

To join ten megabytes takes milliseconds in which the loop does nothing else. So a large body is
copied once, piece by piece as it arrives.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from batchedmodel_contract.inference.tensors import Buffer

_MOST_DIGITS: Final = 18
_SMALL_PART: Final = 16 * 1024  # copied sooner than it is handed to the kernel by itself
_STEP: Final = 256 * 1024


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
