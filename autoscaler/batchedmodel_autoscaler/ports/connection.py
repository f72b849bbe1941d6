"""One connection of a caller, between its socket and the library that speaks HTTP.

It counts the bytes and the time of a head, and ends what exceeds the bounds. Of all connections,
`gives_way` says which ends when there are too many. It is pure: times are arguments.
"""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_SHUTDOWN_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the callers of one port may take."""

    connections: int = 64
    of_address: int = 32
    head_seconds: float = 5.0
    """From the first byte of a head to its last. The first head's time begins when the connection
    is accepted and includes TLS."""
    idle_seconds: float = 75.0
    """From one head to the next. The API server asks anew every 15 s."""
    head_bytes: int = 16_384


class Connection(asyncio.Protocol):
    """Bounded from the moment when it was accepted."""

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
        """A head is whole. The connection may be idle until the next head begins."""
        self._unasked = 0
        self._arriving = False
        self.used_at = self._loop.time()
        self._deadline.cancel()
        self._deadline = self._loop.call_later(self._bounds.idle_seconds, self._close)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TLS is there, if it is used."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.known = bool(transport.get_extra_info("peercert"))
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass on what fits within a head. Nobody needs a body here: it counts as a head."""
        assert self.transport is not None
        self._unasked += len(data)
        if self._unasked > self._bounds.head_bytes:
            self.transport.abort()
            return
        if not self._arriving:
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
    out the kubelet or the API server.
    """
    of_address = Counter(one.address for one in held)
    if of_address[newcomer] >= bounds.of_address:
        rivals = [one for one in held if one.address == newcomer]
    elif len(held) >= bounds.connections:
        most = max(of_address.values())
        rivals = [one for one in held if of_address[one.address] == most]
    else:
        return None
    return min(rivals, key=lambda one: (one.known, one.used_at))
