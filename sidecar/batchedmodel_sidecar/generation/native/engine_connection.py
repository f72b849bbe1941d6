"""The socket of an engine of our model server: bytes to frames and back."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from batchedmodel_contract.generation.frames import Frame, FrameReader, write_frame
from batchedmodel_contract.invalid_input import InvalidInput

logger: Final = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0
_MOST_DOUBLINGS: Final = 10


class EngineConnection(asyncio.Protocol):
    """One connection. It hands over frames as they come, and then says that it has ended."""

    def __init__(self, came: Callable[[Frame], None], ended: Callable[[], None]) -> None:
        """`ended` is called once, when nothing more comes."""
        self._came = came
        self._ended = ended
        self._transport: Any = None
        self._reader = FrameReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The engine took the connection."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._ended()

    def data_received(self, data: bytes) -> None:
        """Some bytes of the engine."""
        try:
            for frame in self._reader.feed(data):
                self._came(frame)
        except InvalidInput as error:
            logger.error("the engine answers nonsense: %s", error)
            self._transport.abort()

    def send(self, frame: Frame) -> None:
        """Write a frame."""
        if not self._transport.is_closing():
            self._transport.write(write_frame(frame))

    def close(self) -> None:
        """Hang up behind what was written."""
        self._transport.close()

    def abort(self) -> None:
        """Hang up at once."""
        self._transport.abort()


async def connect(socket_path: str, connection: EngineConnection, failures: int) -> int:
    """Connect, after a pause that grows with failures in a row; how many there are now."""
    loop = asyncio.get_running_loop()
    while True:
        if failures:
            doublings = min(failures - 1, _MOST_DOUBLINGS)
            pause = _FIRST_PAUSE_SECONDS * 2**doublings
            await asyncio.sleep(min(_LONGEST_PAUSE_SECONDS, pause))
        try:
            await loop.create_unix_connection(lambda: connection, socket_path)
        except OSError as error:
            logger.info("the engine cannot be reached: %s", error.strerror)
            failures += 1
        else:
            return failures
