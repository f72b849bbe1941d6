"""The HTTP server of the data port: connections of bounded number and age.

A pooled client keeps its connections for ever and would never reach a pod that was added later;
so a connection that has reached its age is closed behind its next answer.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_SPREAD: Final = 0.2
_KEEP_ALIVE_SECONDS: Final = 75.0
_LINGERING_SECONDS: Final = 2.0


class _NotCallersFaults(logging.Filter):
    """Drops what aiohttp says, with a traceback each, of bytes that are not HTTP."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is worth a line."""
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_server_logger: Final = logging.getLogger(f"{__name__}.http")
_server_logger.addFilter(_NotCallersFaults())


@dataclass(slots=True, kw_only=True)
class _Connection:
    """An open connection; `end` closes it at its age unless it is at work then.

    It is at work in a `with` block of its own: a generator's would cost twice as much per request.
    """

    transport: Any
    retires_at: float
    end: asyncio.TimerHandle
    at_work: bool = False
    answered: bool = False

    def __enter__(self) -> None:
        self.at_work = True

    def __exit__(self, *_: object) -> None:
        self.at_work = False
        self.answered = True


class DataServer(web.Server):
    """Knows when each connection should end, and admits no more of them than it may."""

    def __init__(
        self,
        handler: Handler,
        *,
        clock: Callable[[], float],
        mean_age: float,
        at_most: int,
        max_body_bytes: int,
    ) -> None:
        super().__init__(
            handler,
            request_factory=_request_factory(max_body_bytes),
            handler_cancellation=True,
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
            lingering_time=_LINGERING_SECONDS,
            auto_decompress=False,  # the body reader does it, within its own bounds
            access_log=None,
            logger=_server_logger,
        )
        self._clock = clock
        self._mean_age = mean_age
        self._at_most = at_most
        self._connections_open: dict[Any, _Connection] = {}

    def connection_made(self, handler: Any, transport: Any) -> None:
        """Give the connection its age, or hang up when there are too many."""
        super().connection_made(handler, transport)
        age = self._mean_age * random.uniform(1 - _SPREAD, 1 + _SPREAD)
        loop = asyncio.get_running_loop()
        self._connections_open[handler] = _Connection(
            transport=transport,
            retires_at=self._clock() + age,
            end=loop.call_later(age, self._retire, handler),
        )
        if len(self._connections_open) > self._at_most:
            transport.abort()

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        """Forget the connection."""
        connection = self._connections_open.pop(handler, None)
        if connection is not None:
            connection.end.cancel()
        super().connection_lost(handler, exc)

    def retires(self, handler: Any) -> bool:
        """Whether this connection should be closed behind its present answer."""
        connection = self._connections_open.get(handler)
        return connection is None or self._clock() >= connection.retires_at

    def at_work(self, handler: Any) -> contextlib.AbstractContextManager[None]:
        """While a request is being answered its connection is not closed for its age."""
        return self._connections_open.get(handler) or contextlib.nullcontext()

    def _retire(self, handler: Any) -> None:
        """End a connection that has reached its age and will not end behind an answer.

        A caller that asks is met with `Connection: close` on its next answer, which it cannot
        mistake. Closing under its hands could cross a request on the wire, so it is done only to a
        caller that never finished one, or that let a second age pass.
        """
        connection = self._connections_open.get(handler)
        if connection is None or connection.at_work:
            return
        if connection.answered:
            connection.answered = False
            loop = asyncio.get_running_loop()
            connection.end = loop.call_later(self._mean_age, self._retire, handler)
            return
        connection.transport.close()


def _request_factory(max_body_bytes: int) -> Callable[..., web.BaseRequest]:
    def make(
        message: Any, payload: Any, protocol: RequestHandler, writer: Any, task: Any
    ) -> web.BaseRequest:
        loop = protocol._loop  # no public way to it, and the default factory does the same
        return web.BaseRequest(
            message, payload, protocol, writer, task, loop, client_max_size=max_body_bytes
        )

    return make
