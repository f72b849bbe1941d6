"""A body in chunks, as a caller with a plain socket reads it."""

from typing import Final

_END: Final = b"\r\n"


class ChunkReader:
    """Takes the bytes behind a head, and gives those of whole chunks."""

    def __init__(self) -> None:
        self._kept = b""
        self.ended = False
        """Whether the last chunk was here."""

    def feed(self, data: bytes) -> bytes:
        """What of the body is whole with these bytes."""
        self._kept += data
        body = b""
        while not self.ended and _END in self._kept:
            size, _, rest = self._kept.partition(_END)
            length = int(size, 16)
            if len(rest) < length + len(_END):
                break
            body += rest[:length]
            self._kept = rest[length + len(_END) :]
            self.ended = not length
        return body
