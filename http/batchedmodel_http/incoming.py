"""Where the bytes of a connection go: through one buffer, or straight to memory of a body.

Asked by the connection for each piece that comes. Through the buffer a piece becomes an object of
its own; a large body would be copied from there.
"""

import asyncio
from collections.abc import Callable
from typing import Final

_ARRIVED: Final = memoryview(bytearray(64 * 1024))
"""What just came, over whichever connection: it is taken from here before anything else can come.
A process serves with one loop."""


class _Direct:
    """Memory that is being filled."""

    __slots__ = ("arrived", "filled", "full", "memory")

    def __init__(
        self, memory: memoryview, arrived: Callable[[int], None], full: "asyncio.Future[None]"
    ) -> None:
        self.memory = memory
        self.arrived = arrived
        self.full = full
        self.filled = 0

    def end(self, error: Exception | None) -> None:
        """Tell whoever waits, unless it has left."""
        if self.full.done():
            return
        if error is None:
            self.full.set_result(None)
        else:
            self.full.set_exception(error)


class Incoming:
    """What is known of the next bytes of one connection."""

    __slots__ = ("_direct", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._direct: _Direct | None = None

    def room(self) -> memoryview:
        """Where the next bytes go."""
        direct = self._direct
        return _ARRIVED if direct is None else direct.memory[direct.filled :]

    def taken(self, size: int) -> bytes | None:
        """So many came: what they are, or None where they went straight to memory."""
        direct = self._direct
        if direct is None:
            return bytes(_ARRIVED[:size])
        direct.filled += size
        try:
            direct.arrived(size)
        except Exception as error:
            self._direct = None
            direct.end(error)
            # The error keeps this frame, which must not keep the future that keeps the error.
            del direct
        else:
            if direct.filled == len(direct.memory):
                # What comes behind is not part of it.
                self._direct = None
                direct.end(None)
        return None

    def receive(self, memory: memoryview, arrived: Callable[[int], None]) -> "asyncio.Future[None]":
        """Have what comes next written straight to memory; done when that is full.

        `arrived` is told how many bytes came; what it raises is raised. Who does not wait any more
        calls `stop`.
        """
        full: asyncio.Future[None] = self._loop.create_future()
        self._direct = _Direct(memory, arrived, full)
        return full

    def stop(self) -> None:
        """What comes next goes through the buffer again."""
        self._direct = None
