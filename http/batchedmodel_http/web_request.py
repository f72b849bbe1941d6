"""Makes aiohttp's requests of what `StreamingProtocol` read."""

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.streams import StreamReader

RequestFactory = Callable[..., web.BaseRequest]
"""Makes the request from message, body, protocol, writer and task, as that of `web.Server`."""


def request_factory(max_body_bytes: int, loop: asyncio.AbstractEventLoop) -> RequestFactory:
    """Makes requests whose handlers read at most so many bytes at once."""

    def make(
        message: RawRequestMessage, body: StreamReader, protocol: Any, writer: Any, task: Any
    ) -> web.BaseRequest:
        return web.BaseRequest(
            message, body, protocol, writer, task, loop, client_max_size=max_body_bytes
        )

    return make
