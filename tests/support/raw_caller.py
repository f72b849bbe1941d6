"""A caller that sends bytes as it likes over one connection, and reads answers one by one."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Self

Told = tuple[int, bytes]
"""Status and body of an answer."""
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


def request(
    path: str, body: bytes = b"", *headers: str, method: str = "POST", chunks: int = 0
) -> bytes:
    """The bytes of a request; its body goes in chunks of a size, or as a whole."""
    if chunks:
        pieces = [body[at : at + chunks] for at in range(0, len(body), chunks)]
        lines = [f"{method} {path} HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", *headers]
        body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])
    else:
        lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


class RawCaller:
    """One connection to a port of this machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer: Final = writer
        self._reader = reader

    @classmethod
    @asynccontextmanager
    async def calling(cls, port: int) -> AsyncIterator[Self]:
        """Come, and leave at the end of the block without a farewell."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()

    def sends(self, data: bytes) -> None:
        """Hand it to the kernel, as soon as that takes it."""
        self.writer.write(data)

    def has_ended(self) -> bool:
        """Whether the other end has hung up, and all that it sent is read."""
        return self._reader.at_eof()

    async def permission(self) -> bytes:
        """A head that no body follows."""
        return await self._reader.readuntil(b"\r\n\r\n")

    async def body(self, size: int) -> bytes:
        """So many bytes behind a head."""
        return await self._reader.readexactly(size)

    async def rest(self) -> bytes:
        """All that comes until the other end hangs up."""
        return await self._reader.read()

    async def answer(self) -> Told:
        """The next answer whose length is told; raises `IncompleteReadError` when none comes."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        status, length = _STATUS.match(head), _LENGTH.search(head)
        assert status, head
        assert length, head
        return int(status[1]), await self._reader.readexactly(int(length[1]))
