"""Where a server of the test's own process listens, and how it stops without losing a connection.

asyncio takes some turns of its loop to make a transport of a connection that the kernel has handed
over. A server that is closed meanwhile never gets it; it stays open until the collector finds it,
and the test that runs then fails by a warning.
"""

import asyncio
import socket
import ssl
from typing import Final, Self

from aiohttp import web

_TURNS: Final = 8


class Listener:
    """Listens for a runner that is set up, from `start` on."""

    def __init__(self, site: web.SockSite, own: socket.socket) -> None:
        self._site = site
        self._own = own

    @classmethod
    async def start(
        cls, runner: web.AppRunner, port: int = 0, *, tls: ssl.SSLContext | None = None
    ) -> Self:
        """On this port of the loopback, or on any."""
        own = socket.create_server(("127.0.0.1", port))
        site = web.SockSite(runner, own, ssl_context=tls)
        await site.start()
        return cls(site, own)

    async def stop(self) -> None:
        """Take no more connections; those that were taken are the runner's. Once is enough."""
        if self._own.fileno() < 0:
            return
        asyncio.get_running_loop().remove_reader(self._own)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        await self._site.stop()
