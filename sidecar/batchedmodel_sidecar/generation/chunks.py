"""Bodies in chunks (RFC 9112, 7.1), told apart as they arrive. Pure."""

import re
from typing import Final

_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
_END: Final = b"\r\n"
_LONGEST_LINE: Final = 4096
"""Bytes of a chunk's first line, or of all lines behind the last chunk."""


class NoChunk(ValueError):
    """What came is no part of a body in chunks."""


class ChunkDecoder:
    """Takes the bytes behind a head, and gives those of the body."""

    __slots__ = ("_kept", "_left", "ended")

    def __init__(self) -> None:
        self._kept = b""
        """A line that is not whole."""
        self._left = 0
        """Bytes that the present chunk lacks, its end included."""
        self.ended = False
        """Whether the last chunk, and what belongs to it, was here."""

    def feed(self, data: bytes) -> bytes:
        """What of the body is in these bytes; raises `NoChunk`.

        Bytes behind the end are nobody's answer, and left out.
        """
        if self._kept:
            data, self._kept = self._kept + data, b""
        at, pieces = 0, []
        while at < len(data):
            if self.ended:
                break
            if self._left:
                piece = data[at : at + self._left]
                self._left -= len(piece)
                at += len(piece)
                pieces.append(self._without_end(piece))
                continue
            size = _SIZE.match(data, at)
            if size is None:
                if len(data) - at > _LONGEST_LINE or _END in data[at : at + _LONGEST_LINE]:
                    raise NoChunk("a chunk does not begin with its size")
                self._kept = data[at:]
                break
            if length := int(size[1], 16):
                at, self._left = size.end(), length + len(_END)
                continue
            end = self._end_of_trailers(data, size.end() - len(_END))
            if end is None:
                self._kept = data[at:]
                break
            at, self.ended = end, True
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _without_end(self, piece: bytes) -> bytes:
        """A part of a chunk without the bytes of its end, which are looked at."""
        # What this part holds of the end: of both bytes, of the first or of the second alone.
        end = min(len(piece), max(0, len(_END) - self._left))
        if not end:
            return piece
        first = len(_END) - self._left - end
        if piece[len(piece) - end :] != _END[first : first + end]:
            raise NoChunk("a chunk is longer than its size")
        return piece[: len(piece) - end]

    @staticmethod
    def _end_of_trailers(data: bytes, at: int) -> int | None:
        """Where the body ends; None where that has not come. They are read over."""
        end = data.find(_END + _END, at)
        if end >= 0:
            return end + 2 * len(_END)
        if len(data) - at > _LONGEST_LINE:
            raise NoChunk("what follows the last chunk does not end")
        return None
