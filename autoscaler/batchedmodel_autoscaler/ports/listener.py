"""Listens on a port, with or without TLS, and bounds what its callers may take.

It accepts connections itself: asyncio's server reports a connection only after its TLS handshake,
and each connection that waits for that has a buffer of 256 KiB. The TLS context can change while it
listens.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import http_exceptions, web

from batchedmodel_autoscaler.errors import CannotListen
from batchedmodel_autoscaler.ports.connection import Bounds, Connection, gives_way
from batchedmodel_contract.manifest.tenants import address_group

logger: Final = logging.getLogger(__name__)
_BACKLOG: Final = 128
_ANSWERS_LEAVE_SECONDS: Final = 2.0
_ACCEPTS_AGAIN_SECONDS: Final = 1.0


class Listener:
    """One socket for the whole life of the process, and the connections that came to it."""

    def __init__(
        self, application: web.Application, host: str, port: int, bounds: Bounds | None = None
    ) -> None:
        """Binds the port; raises `CannotListen`. Adds a middleware to the application."""
        self._socket = _bound(host, port)
        self._bounds = bounds or Bounds()
        application.middlewares.insert(0, self._note)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=_log_of_http(),
            keepalive_timeout=self._bounds.idle_seconds,
            shutdown_timeout=_ANSWERS_LEAVE_SECONDS,
        )
        self._context: ssl.SSLContext | None = None
        self._connections: dict[Connection, None] = {}
        self._again: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port that was bound."""
        return int(self._socket.getsockname()[1])

    async def use(self, context: ssl.SSLContext | None) -> None:
        """New connections meet this context, or none; those that are open stay as they are.

        Listens from the first call on. Raises `CannotListen`.
        """
        self._context = context
        if self._runner.server is None:
            await self._runner.setup()
            try:
                self._socket.listen(_BACKLOG)
            except OSError as error:
                raise CannotListen(f"cannot listen: {error.strerror}") from error
            self._watch()

    async def close(self) -> None:
        """Stop listening, let answers leave."""
        if self._again is not None:
            self._again.cancel()
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        for connection in list(self._connections):
            if connection.transport is None:
                connection.abort()
        await self._runner.cleanup()
        for connection in list(self._connections):
            connection.abort()

    def _watch(self) -> None:
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        # One at a time, so that callers who connect very often leave time for all else.
        try:
            accepted, peer = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            logger.warning("no connection can be accepted: %s", error.strerror)
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket)
            self._again = loop.call_later(_ACCEPTS_AGAIN_SECONDS, self._watch)
            return
        accepted.setblocking(False)
        self._enter(accepted, address_group(str(peer[0])))

    def _enter(self, accepted: socket.socket, address: str) -> None:
        going = gives_way(address, list(self._connections), self._bounds)
        if going is not None:
            del self._connections[going]
            going.abort()
        server = self._runner.server
        assert server is not None
        connection = Connection(server(), address=address, bounds=self._bounds, left=self._left)
        self._connections[connection] = None
        connection.open(accepted, self._context)

    def _left(self, connection: Connection) -> None:
        self._connections.pop(connection, None)

    @web.middleware
    async def _note(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        for connection in self._connections:
            if connection.transport is request.transport:
                connection.asked()
                break
        return await handler(request)


class _NoBadRequests(logging.Filter):
    """Drops records that any caller could cause again and again, with a traceback each."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, http_exceptions.HttpProcessingError | ConnectionError)


def _log_of_http() -> logging.Logger:
    found = logging.getLogger(f"{__name__}.http")
    if not found.filters:
        found.addFilter(_NoBadRequests())
    return found


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setblocking(False)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return bound
