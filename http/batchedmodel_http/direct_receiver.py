"""Bytes that a transport writes straight to where they are wanted, as long as a body lasts.

Otherwise each piece is an object of its own first, and is copied from there.
"""

import asyncio
from collections.abc import Callable
from typing import Any


def _unwanted(size: int) -> None:
    """Nobody waits for bytes any more."""


class DirectReceiver(asyncio.BufferedProtocol):
    """Stands in for a transport's protocol until the memory is full."""

    def __init__(self, transport: Any, memory: memoryview, arrived: Callable[[int], None]) -> None:
        """`arrived` is told how many bytes came; what it raises ends this."""
        self._transport = transport
        self._protocol = transport.get_protocol()
        self._memory = memory
        self._arrived = arrived
        self._full: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._received = 0

    async def fill(self) -> None:
        """Return when the memory is full; raises what `arrived` does."""
        self._turn_to(self)
        try:
            await self._full
        finally:
            self._turn_to(self._protocol)
            # Transports remember whom they had, until they have another one like it.
            self._memory, self._arrived = memoryview(b""), _unwanted

    def _turn_to(self, protocol: asyncio.BaseProtocol) -> None:
        if not self._transport.is_closing() and self._transport.get_protocol() is not protocol:
            # How bytes are handed over is settled where reading begins.
            self._transport.pause_reading()
            self._transport.set_protocol(protocol)
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes belong."""
        return self._memory[self._received :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many have come."""
        self._received += nbytes
        try:
            self._arrived(nbytes)
        except Exception as error:
            self._settle(error)
        else:
            if self._received == len(self._memory):
                self._settle(None)

    def _settle(self, error: Exception | None) -> None:
        # Before anything else can come: it belongs to the protocol.
        self._turn_to(self._protocol)
        if self._full.done():
            return
        if error is None:
            self._full.set_result(None)
        else:
            self._full.set_exception(error)

    def eof_received(self) -> bool | None:
        """The caller sends nothing more."""
        ends: bool | None = self._protocol.eof_received()
        return ends

    def connection_lost(self, exc: Exception | None) -> None:
        """The caller has left; whoever waits here is told by the protocol."""
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """The caller reads slowly."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._protocol.resume_writing()
