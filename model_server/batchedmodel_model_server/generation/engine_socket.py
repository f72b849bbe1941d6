"""The Unix socket for frames of generated tokens.

A connection belongs to the engine of the version that served when it came. It ends with the first
frame that cannot be read, and when its caller leaves unread what it is sent.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from batchedmodel_contract.generation.frames import FrameReader
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_model_server.generation.engine_loop import Caller, EngineLoop
from batchedmodel_model_server.http import unix_socket

MOST_CONNECTIONS: Final = 8
"""A sidecar has one, and one more while versions change or it begins anew."""
MOST_UNREAD_BYTES: Final = 4 << 20
"""What 64 texts are told in a minute of 50 steps a second."""
_log = logging.getLogger(__name__)


class EngineSocket:
    """Listens, and keeps the connections. Needs a running loop."""

    def __init__(self, path: Path, engine: Callable[[], EngineLoop | None]) -> None:
        """`engine` gives that of the version that serves; None: nothing generates now.

        Raises `OSError` when the path cannot be had.
        """
        self._path: Final = path
        self._engine: Final = engine
        self._listening: Final = unix_socket.bind(path)
        self._bound: Final = unix_socket.identity(path)
        self._server: asyncio.Server | None = None
        self._open: Final[set[_Connection]] = set()

    async def open(self) -> None:
        """Take connections."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._connection, sock=self._listening)

    def close(self) -> None:
        """Take no more, end those that are there, and remove the file."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.end()
        unix_socket.unlink(self._path, self._bound)

    def _connection(self) -> "_Connection":
        return _Connection(self._engine, self._open)


class _Connection(asyncio.Protocol):
    def __init__(
        self, engine: Callable[[], EngineLoop | None], present: "set[_Connection]"
    ) -> None:
        self._find_engine = engine
        self._present = present
        self._transport: asyncio.Transport
        self._joined: tuple[EngineLoop, Caller, FrameReader] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's own do not inherit from it.
        self._transport = cast(asyncio.Transport, transport)
        engine = self._find_engine()
        if engine is None or len(self._present) >= MOST_CONNECTIONS:
            self._transport.abort()
            return
        self._present.add(self)
        caller = engine.join(self._send, self.end)
        self._joined = engine, caller, FrameReader(engine.longest_frame)

    def data_received(self, data: bytes) -> None:
        if self._joined is None:
            return
        engine, caller, reader = self._joined
        try:
            for frame in reader.feed(data):
                engine.take(caller, frame)
        except InvalidInput as error:
            _log.warning("a caller of the engine is hung up on: %s", error)
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._present.discard(self)
        if self._joined is not None:
            engine, caller, _ = self._joined
            self._joined = None
            engine.leave(caller)

    def end(self) -> None:
        """Hang up behind what was sent."""
        self._transport.close()

    def _send(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(data)
        unread = self._transport.get_write_buffer_size()
        if unread > MOST_UNREAD_BYTES:
            _log.warning(
                "a caller of the engine has left %d bytes unread, and is hung up on", unread
            )
            self._transport.abort()
