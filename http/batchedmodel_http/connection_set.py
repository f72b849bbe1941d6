"""The connections that are open, and how they end together."""

import asyncio
import contextlib
from typing import Any

from batchedmodel_http.connection import Door


class Doors:
    """Knows who is there; needs a running loop."""

    def __init__(self) -> None:
        self.closing = False
        """Whether each ends behind its present answer."""
        self._open: set[Door[Any]] = set()
        self._nobody = asyncio.Event()
        self._nobody.set()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, door: Door[Any]) -> None:
        """A caller has come."""
        self._open.add(door)
        self._nobody.clear()

    def remove(self, door: Door[Any]) -> None:
        """A caller has gone, or was never let in."""
        self._open.discard(door)
        if not self._open:
            self._nobody.set()

    async def close(self, seconds: float) -> None:
        """Hang up behind the answers that are under way, which have so long."""
        self.closing = True
        for door in self._open:
            if not door.at_work:
                door.transport.close()
        await self._all_left(seconds)
        for door in self._open:
            door.transport.abort()
        await self._all_left(seconds)

    async def _all_left(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._nobody.wait()
