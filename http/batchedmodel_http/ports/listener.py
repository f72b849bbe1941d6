"""Listens on a port, with or without TLS, and bounds what its callers may take.

asyncio's own server would report a connection only after its TLS handshake, and each connection
that waits for that has a buffer of 256 KiB. The TLS context can change while it listens.
"""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, cast

from aiohttp import http_exceptions, web

from batchedmodel_contract.processes.listening import authority, bound_sockets
from batchedmodel_http.ports.acceptor import BACKLOG, Acceptor

logger: Final = logging.getLogger(__name__)
_http_log: Final = logging.getLogger(f"{__name__}.http")
ANSWERS_LEAVE_SECONDS: Final = 2.0
_SHUTDOWN_SECONDS: Final = 2.0


class CannotListen(Exception):
    """A port is taken or forbidden; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the callers of one port may take."""

    connections: int = 64
    of_address: int = 32
    head_seconds: float = 5.0
    """From the first byte of a head to its last. The first head's time begins when the connection
    is accepted and includes TLS."""
    idle_seconds: float = 75.0
    """From one answer to the next head. The API server asks anew every 15 s."""
    head_bytes: int = 16_384
    """Of a head and its body."""


class Connection(asyncio.Protocol):
    """Between a socket and the library that speaks HTTP, bounded from its acceptance on.

    It counts the bytes and the time of a head, and ends what exceeds the bounds.
    """

    def __init__(
        self,
        inner: asyncio.Protocol,
        *,
        address: str,
        bounds: Bounds,
        left: Callable[["Connection"], None],
    ) -> None:
        """Needs a running loop. `inner` speaks HTTP; `left` is called once, at the end."""
        self._loop = asyncio.get_running_loop()
        self._inner = inner
        self._bounds = bounds
        self._left = left
        self._opening: asyncio.Task[None] | None = None
        self._arriving = True
        self._unasked = 0
        self._deadline = self._loop.call_later(bounds.head_seconds, self.abort)
        self.transport: asyncio.Transport | None = None
        self.address = address
        self.known = False
        """Whether its caller has shown a certificate that we trust."""
        self.busy = False
        """Whether a request is being answered; that takes what time it takes."""
        self.used_at = self._loop.time()
        """When its last request came, or itself."""

    def open(self, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        """Begin, with TLS if there is a context."""
        self._opening = self._loop.create_task(self._open(accepted, context))
        # A task that is cancelled before its first step runs nothing of its own.
        self._opening.add_done_callback(lambda _: self._opened(accepted))

    def abort(self) -> None:
        """End it at once, whatever it is doing."""
        if self.transport is not None:
            self.transport.abort()
        elif self._opening is not None:
            self._opening.cancel()

    def asked(self) -> None:
        """A head is whole, and is answered now."""
        self._unasked = 0
        self.busy = True
        self.used_at = self._loop.time()
        self._deadline.cancel()

    def answered(self) -> None:
        """The connection may be idle until the next head begins."""
        self._unasked = 0
        self.busy = self._arriving = False
        if self.transport is not None and not self.transport.is_closing():
            self._deadline = self._loop.call_later(self._bounds.idle_seconds, self._close)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TLS is there, if it is used."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self.known = bool(transport.get_extra_info("peercert"))
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass on what fits within a head; a body counts as a part of it."""
        assert self.transport is not None
        self._unasked += len(data)
        if self._unasked > self._bounds.head_bytes:
            self.transport.abort()
            return
        if not (self._arriving or self.busy):
            self._arriving = True
            self._deadline.cancel()
            self._deadline = self._loop.call_later(self._bounds.head_seconds, self.abort)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass on."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """Pass on."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass on."""
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing of it is left."""
        self._deadline.cancel()
        self._left(self)
        self._inner.connection_lost(exc)

    async def _open(self, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        seconds, shutdown = self._bounds.head_seconds, _SHUTDOWN_SECONDS
        # Callers that speak no TLS, are too slow or have gone are everyday.
        with suppress(OSError):
            await self._loop.connect_accepted_socket(
                lambda: self,
                accepted,
                ssl=context,
                ssl_handshake_timeout=None if context is None else seconds,
                ssl_shutdown_timeout=None if context is None else shutdown,
            )

    def _opened(self, accepted: socket.socket) -> None:
        self._opening = None
        if self.transport is None:
            accepted.close()
            self._deadline.cancel()
            self._left(self)

    def _close(self) -> None:
        # A caller that does not read the last answer would hold the connection for ever.
        if self.transport is not None and self.transport.get_write_buffer_size() == 0:
            self.transport.close()
        self._deadline = self._loop.call_later(_SHUTDOWN_SECONDS, self.abort)


def gives_way(newcomer: str, held: Sequence[Connection], bounds: Bounds) -> Connection | None:
    """The connection that ends for one of a newcomer's address; None while there is room.

    A newcomer always gets in. Whoever holds most pays for it, so that no crowd of connections keeps
    out the kubelet or the API server; first with what is idle.
    """
    of_address = Counter(one.address for one in held)
    if of_address[newcomer] >= bounds.of_address:
        rivals = [one for one in held if one.address == newcomer]
    elif len(held) >= bounds.connections:
        most = max(of_address.values())
        rivals = [one for one in held if of_address[one.address] == most]
    else:
        return None
    return min(rivals, key=lambda one: (one.known, one.busy, one.used_at))


class Listener:
    """One port for the whole life of the process, and the connections that came to it."""

    def __init__(
        self, application: web.Application, host: str, port: int, bounds: Bounds | None = None
    ) -> None:
        """Binds the port, at each address of the host. Adds a middleware to the application.

        Raises `CannotListen`.
        """
        with port_errors(host, port):
            self._sockets = bound_sockets(host, port)
        self._bounds = bounds or Bounds()
        application.middlewares.insert(0, self._note)
        _http_log.addFilter(_is_worth_a_line)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=_http_log,
            keepalive_timeout=self._bounds.idle_seconds,
            shutdown_timeout=ANSWERS_LEAVE_SECONDS,
        )
        self._context: ssl.SSLContext | None = None
        self._connections: dict[Connection, None] = {}
        self._acceptors: list[Acceptor] = []

    @property
    def port(self) -> int:
        """The port that was bound."""
        return int(self._sockets[0].getsockname()[1])

    async def use(self, context: ssl.SSLContext | None) -> None:
        """New connections meet this context, or none. Listens from the first call on.

        Open connections that have shown no certificate end: their callers may never have been asked
        for one, and would be refused on them for as long as they keep them. Raises `CannotListen`.
        """
        self._context = context
        for connection in list(self._connections):
            if not connection.known:
                connection.abort()
        if self._runner.server is None:
            await self._runner.setup()
            for listening in self._sockets:
                with port_errors(*listening.getsockname()[:2]):
                    listening.listen(BACKLOG)
            self._acceptors = [Acceptor(one, self._enter) for one in self._sockets]

    async def close(self) -> None:
        """Stop listening, let answers leave."""
        for acceptor in self._acceptors:
            acceptor.close()
        for listening in self._sockets:
            listening.close()
        for connection in list(self._connections):
            if connection.transport is None:
                connection.abort()
        await self._runner.cleanup()
        for connection in list(self._connections):
            connection.abort()

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
        asking = (one for one in self._connections if one.transport is request.transport)
        connection = next(asking, None)
        if connection is None:
            return await handler(request)  # it has given way
        connection.asked()
        try:
            return await handler(request)
        finally:
            connection.answered()


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Whether not any caller could cause the record again and again, with a traceback each."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, http_exceptions.HttpProcessingError | ConnectionError)


@contextmanager
def port_errors(host: str, port: int) -> Iterator[None]:
    """Raises `CannotListen` in the place of what opening this port raises."""
    where = authority(host, port)
    try:
        yield
    except OSError as error:
        raise CannotListen(f"cannot listen on {where}: {error.strerror}") from error
    except UnicodeError as error:
        raise CannotListen(f"cannot listen on {where}: no host has such a name") from error
