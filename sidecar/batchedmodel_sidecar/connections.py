"""The HTTP server of the data port: connections of bounded number and age.

A pooled client keeps its connections for ever and would never reach a pod that was added later;
so a connection that has reached its age is closed behind its next answer.
"""

import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_SPREAD: Final = 0.2
_KEEP_ALIVE_SECONDS: Final = 75.0
_LINGERING_SECONDS: Final = 2.0


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
            access_log=None,
        )
        self._clock = clock
        self._mean_age = mean_age
        self._at_most = at_most
        self._retires_at: dict[Any, float] = {}

    def connection_made(self, handler: Any, transport: Any) -> None:
        """Give the connection its age, or hang up when there are too many."""
        super().connection_made(handler, transport)
        age = self._mean_age * random.uniform(1 - _SPREAD, 1 + _SPREAD)
        self._retires_at[handler] = self._clock() + age
        if len(self._retires_at) > self._at_most:
            transport.abort()

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        """Forget the connection."""
        self._retires_at.pop(handler, None)
        super().connection_lost(handler, exc)

    def retires(self, handler: Any) -> bool:
        """Whether this connection should be closed behind its present answer."""
        return self._clock() >= self._retires_at.get(handler, 0.0)


def _request_factory(max_body_bytes: int) -> Callable[..., web.BaseRequest]:
    def make(
        message: Any, payload: Any, protocol: RequestHandler, writer: Any, task: Any
    ) -> web.BaseRequest:
        loop = protocol._loop  # no public way to it, and the default factory does the same
        return web.BaseRequest(
            message, payload, protocol, writer, task, loop, client_max_size=max_body_bytes
        )

    return make
