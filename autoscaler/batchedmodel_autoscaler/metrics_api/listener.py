"""Listens on a port with TLS whose certificates change while it listens."""

import socket
import ssl

from aiohttp import web

from batchedmodel_autoscaler.errors import CannotListen

_BACKLOG = 128
_ANSWERS_LEAVE_SECONDS = 5.0


class TlsListener:
    """One socket for the whole life of the process, and a TLS context that can be exchanged."""

    def __init__(self, application: web.Application, host: str, port: int) -> None:
        """Binds the port; raises `CannotListen`."""
        self._socket = _bound(host, port)
        self._runner = web.AppRunner(
            application, access_log=None, shutdown_timeout=_ANSWERS_LEAVE_SECONDS
        )
        self._site: web.SockSite | None = None

    @property
    def port(self) -> int:
        """The port that was bound."""
        return int(self._socket.getsockname()[1])

    async def use(self, context: ssl.SSLContext) -> None:
        """New connections meet this context; those that are open stay as they are."""
        if self._site is None:
            await self._runner.setup()
        # A live context cannot forget an authority. Both servers accept from one socket, so that
        # no connection is refused in between.
        before, self._site = (
            self._site,
            web.SockSite(self._runner, self._socket.dup(), ssl_context=context, backlog=_BACKLOG),
        )
        await self._site.start()
        if before is not None:
            await before.stop()

    async def close(self) -> None:
        """Stop listening, let answers leave."""
        await self._runner.cleanup()
        self._socket.close()


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
