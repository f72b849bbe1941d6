"""A V1 server that answers a question with the bytes that it was told, whatever they are."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Self

ABOUT: Final = "/v1/models/m"
READY: Final = b'{"name": "m", "ready": true}'


class BluntServer:
    """Answers every question about the model well, and all else by the bytes that it was told."""

    def __init__(self) -> None:
        self.answer = b""
        self.later = b""
        """What follows the next answer once `goes_on` is set, if anything."""
        self.goes_on = asyncio.Event()
        self.asked = 0
        """Questions that were not about the model."""
        self.port = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Self]:
        """Listen on a port of its own."""
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"(?i)\r\nContent-Length: (\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                if head.startswith(f"GET {ABOUT} ".encode()):
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(READY))
                    writer.write(READY)
                    continue
                self.asked += 1
                writer.write(self.answer)
                if self.later:
                    await self.goes_on.wait()
                    writer.write(self.later)
                    self.later = b""
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
