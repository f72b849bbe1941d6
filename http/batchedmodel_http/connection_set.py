"""The connections that are open, and how they end together."""

import asyncio
import contextlib
from typing import Any

from batchedmodel_http.connection import Connection


class ConnectionSet:
    """Knows who is there; needs a running loop."""

    def __init__(self) -> None:
        self.closing = False
        """Whether each ends behind its present answer."""
        self._open: set[Connection[Any]] = set()
        self._nobody = asyncio.Event()
        self._nobody.set()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection[Any]) -> None:
        """A caller has come."""
        self._open.add(connection)
        self._nobody.clear()

    def remove(self, connection: Connection[Any]) -> None:
        """A caller has gone, or was never let in."""
        self._open.discard(connection)
        if not self._open:
            self._nobody.set()

    async def close(self, seconds: float) -> None:
        """Hang up behind the answers that are under way, which have so long."""
        self.closing = True
        for connection in self._open:
            if not connection.at_work:
                connection.transport.close()
        await self._all_left(seconds)
        for connection in self._open:
            connection.transport.abort()
        await self._all_left(seconds)

    async def _all_left(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._nobody.wait()
