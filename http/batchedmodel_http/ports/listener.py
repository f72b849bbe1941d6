"""Listens on a port, with or without TLS, and bounds what its callers may take.

aiohttp serves its connections. Accepting them is ours: asyncio's server would report a connection
only after its TLS handshake, in which each has a buffer of 256 KiB, and makes a transport for each
of a crowd. The TLS context can change while it listens.
"""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import http_exceptions, web

from batchedmodel_contract.manifest.tenants import address_group
from batchedmodel_contract.processes.listening import authority, bound_sockets

logger: Final = logging.getLogger(__name__)
_http_log: Final = logging.getLogger(f"{__name__}.http")
ANSWERS_LEAVE_SECONDS: Final = 2.0
_TLS_SHUTDOWN_SECONDS: Final = 2.0
BACKLOG: Final = 1_024
"""Connections that may wait to be accepted. The kernel drops those that come beyond them."""
_NEWCOMERS_AT_ONCE: Final = 128
_NEWCOMERS_A_SECOND: Final = 50.0
_SENT_AWAY_AT_ONCE: Final = 64
_ACCEPT_AGAIN_SECONDS: Final = 1.0
_MOST_ADDRESSES: Final = 1_024
"""Beyond them, addresses that have been calm are forgotten."""


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


class Newcomers:
    """Lets an address connect a number of times at once, and then so many times a second. Pure."""

    def __init__(
        self, *, at_once: int = _NEWCOMERS_AT_ONCE, a_second: float = _NEWCOMERS_A_SECOND
    ) -> None:
        self._apart = 1 / a_second
        self._ahead = (at_once + 0.5) / a_second
        self._paid_until: dict[str, float] = {}
        """When an address's connections so far would end at the steady rate, monotonic seconds."""

    def let_in(self, address: str, now: float) -> bool:
        """Whether one that connects now is let in. Only one that is counts."""
        paid_until = max(now, self._paid_until.get(address, now)) + self._apart
        if paid_until > now + self._ahead:
            return False
        if len(self._paid_until) >= _MOST_ADDRESSES:
            known = self._paid_until.items()
            self._paid_until = {one: until for one, until in known if until > now}
        self._paid_until[address] = paid_until
        return True


class Connection(web.RequestHandler):
    """aiohttp's, bounded in the bytes and the time of a head, and in idleness."""

    def __init__(self, server: web.Server, address: str, bounds: Bounds) -> None:
        """Needs a running loop. Begins with `open`."""
        loop = asyncio.get_running_loop()
        silent: Any = None
        super().__init__(
            server,
            loop=loop,
            access_log=silent,
            logger=_http_log,
            keepalive_timeout=bounds.idle_seconds,
        )
        self._bounds = bounds
        self._arriving = True
        self._unasked = 0
        self._lost = asyncio.Event()
        self._deadline = loop.call_later(bounds.head_seconds, self.abort)
        self._task: asyncio.Task[None] | None = None
        self.address = address
        self.known = False
        """Whether its caller has shown a certificate that we trust."""
        self.busy = False
        """Whether a request is being answered; that takes what time it takes."""
        self.used_at = loop.time()
        """When its last request came, or itself."""

    def open(self, accepted: socket.socket, context: ssl.SSLContext | None) -> asyncio.Task[None]:
        """Begin, with TLS if there is a context. The task ends when nothing of it is left."""
        self._task = self._loop.create_task(self._serve(accepted, context))
        # A task that is cancelled before its first step runs nothing of its own.
        self._task.add_done_callback(lambda _: self._release(accepted))
        return self._task

    def abort(self) -> None:
        """End it, whatever it is doing."""
        if self._task is not None:
            self._task.cancel()

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
        self._end_after(self._bounds.idle_seconds)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TLS is there, if it is used."""
        self.known = bool(transport.get_extra_info("peercert"))
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass on what fits within a head; a body counts as a part of it."""
        self._unasked += len(data)
        if self._unasked > self._bounds.head_bytes:
            self.abort()
            return
        if not (self._arriving or self.busy):
            self._arriving = True
            self._end_after(self._bounds.head_seconds)
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End."""
        self._lost.set()
        super().connection_lost(exc)

    def _end_after(self, seconds: float) -> None:
        self._deadline.cancel()
        if not self._lost.is_set():
            self._deadline = self._loop.call_later(seconds, self.abort)

    def _release(self, accepted: socket.socket) -> None:
        self._deadline.cancel()
        if self.transport is None:
            accepted.close()
        else:
            self.transport.abort()

    async def _serve(self, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        tls = context is not None
        # Callers that speak no TLS, are too slow or have gone are everyday.
        with suppress(OSError):
            await self._loop.connect_accepted_socket(
                lambda: self,
                accepted,
                ssl=context,
                ssl_handshake_timeout=self._bounds.head_seconds if tls else None,
                ssl_shutdown_timeout=_TLS_SHUTDOWN_SECONDS if tls else None,
            )
            await self._lost.wait()


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
        application.middlewares.insert(0, _note)
        _http_log.addFilter(_is_worth_a_line)
        self._runner = web.AppRunner(application, shutdown_timeout=ANSWERS_LEAVE_SECONDS)
        self._context: ssl.SSLContext | None = None
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._newcomers = Newcomers()

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
        for connection in self._connections:
            if not connection.known:
                connection.abort()
        if self._runner.server is None:
            await self._runner.setup()
            for listening in self._sockets:
                with port_errors(*listening.getsockname()[:2]):
                    listening.listen(BACKLOG)
                self._watch(listening)

    async def close(self) -> None:
        """Stop listening, let answers leave."""
        for listening in self._sockets:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        await self._runner.cleanup()
        for connection in self._connections:
            connection.abort()
        await asyncio.gather(*self._connections.values(), return_exceptions=True)

    def _watch(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        # One that is let in at a time: callers who connect very often leave time for all else.
        for _ in range(_SENT_AWAY_AT_ONCE):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.warning("no connection can be accepted: %s", error.strerror)
                loop.remove_reader(listening)
                loop.call_later(_ACCEPT_AGAIN_SECONDS, self._watch, listening)
                return
            address = address_group(str(peer[0]))
            # To send one away costs a tenth of a connection.
            if self._newcomers.let_in(address, loop.time()):
                accepted.setblocking(False)
                self._enter(accepted, address)
                return
            accepted.close()

    def _enter(self, accepted: socket.socket, address: str) -> None:
        going = gives_way(address, list(self._connections), self._bounds)
        if going is not None:
            del self._connections[going]
            going.abort()
        server = self._runner.server
        assert server is not None
        connection = Connection(server, address, self._bounds)
        task = self._connections[connection] = connection.open(accepted, self._context)
        task.add_done_callback(lambda _: self._connections.pop(connection, None))


@web.middleware
async def _note(
    request: web.Request,
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> web.StreamResponse:
    connection = request.protocol
    assert isinstance(connection, Connection), "it is served here: our bug"
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
