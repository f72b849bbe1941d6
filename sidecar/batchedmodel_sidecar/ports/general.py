"""aiohttp's side of a connection: the general server for whatever a door does not answer itself.

Made by the connections. What it cannot read as HTTP at all is answered by the front, in the words
and in the books of every other refusal.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.web_protocol import RequestHandler

from batchedmodel_http.response import Response
from batchedmodel_sidecar.ports.responses import as_web

Unreadable = Callable[[int, str], Response]
"""The answer to bytes that are no request: the status, and what is wrong with them."""

_NEVER: Final = 1e9  # seconds: aiohttp does not see most requests, so idleness is judged elsewhere
_LINGERING_SECONDS: Final = 2.0
_BAD_REQUEST: Final = 400
_HEAD_TOO_LARGE: Final = 431
_SHOWN: Final = 200  # characters of what the parser says, which may quote all that was sent


_THEIRS: Final = (HttpProcessingError, web.RequestPayloadError)


class _NotCallersFaults(logging.Filter):
    """Drops what aiohttp says, with a traceback each, of bytes that are not HTTP."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is worth a line."""
        return not (record.exc_info and isinstance(record.exc_info[1], _THEIRS))


_logger: Final = logging.getLogger(f"{__name__}.http")
_logger.addFilter(_NotCallersFaults())


class General(RequestHandler):
    """One connection, as aiohttp serves it."""

    __slots__ = ("_unreadable",)

    def __init__(
        self, server: web.Server, unreadable: Unreadable, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=_NEVER,
            lingering_time=_LINGERING_SECONDS,
            auto_decompress=False,  # the body reader does it, within its own bounds
            access_log=None,  # type: ignore[arg-type]  # which is how aiohttp is told of none
            logger=_logger,
        )
        self._unreadable = unreadable

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp's answer where no handler has one; behind it the connection ends."""
        response = super().handle_error(request, status, exc, message)
        if not isinstance(exc, HttpProcessingError):
            return response
        ours = as_web(self._unreadable(*_fault(exc)))
        ours.force_close()
        return ours


def _fault(error: HttpProcessingError) -> tuple[int, str]:
    if isinstance(error, LineTooLong):
        return _HEAD_TOO_LARGE, "the head of the request has a line that is longer than taken here"
    said = error.message.partition("\n")[0].strip(" :")
    return _BAD_REQUEST, f"the request is not HTTP as it is read here: {said[:_SHOWN]}"


def request_factory(max_body_bytes: int) -> Callable[..., web.BaseRequest]:
    """How aiohttp makes a request, whose body may have so many bytes."""

    def make(
        message: Any, payload: Any, protocol: RequestHandler, writer: Any, task: Any
    ) -> web.BaseRequest:
        loop = protocol._loop  # no public way to it, and the default factory does the same
        return web.BaseRequest(
            message, payload, protocol, writer, task, loop, client_max_size=max_body_bytes
        )

    return make
