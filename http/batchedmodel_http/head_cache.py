"""Heads of HTTP requests, each read once: clients send the same bytes again and again.

Asked by the connections. What a head means is aiohttp's parser's judgement, and what that does not
take, or what is not a plain request whose end is known, is nothing here.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Generic

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, HttpVersion11

from batchedmodel_http.request_head import AnyRequestHead, is_target
from batchedmodel_http.request_reader import UNREADABLE

LONGEST: Final = 4096
"""Bytes of a head that is read here."""
_MOST: Final = 256
"""Each takes up to 32 KiB, whatever the budget of bodies."""
_BUFFER: Final = 64 * 1024


class HeadCache(Generic[AnyRequestHead]):
    """What is known of heads; bounded, and forgotten as a whole."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, make: Callable[..., AnyRequestHead]
    ) -> None:
        """`make`: given what `RequestHead` is made of."""
        self._make = make
        self._loop = loop
        self._protocol = BaseProtocol(loop)  # the parser wants one to hold back; nothing is held
        self._known: dict[bytes, AnyRequestHead | None] = {}

    def of(self, head: bytes) -> AnyRequestHead | None:
        """What a head says, which ends with its empty line; None if it is not a plain request."""
        try:
            return self._known[head]
        except KeyError:
            asked = self._read(head)
            if len(self._known) >= _MOST:
                self._known.clear()  # callers that never repeat a head gain nothing by an order
            self._known[head] = asked
            return asked

    def _read(self, head: bytes) -> AnyRequestHead | None:
        # Any: what its extension in C makes is no such class as its types say.
        parser: Any = HttpRequestParser(self._protocol, self._loop, _BUFFER, auto_decompress=False)
        try:
            messages, _, tail = parser.feed_data(head)
        except UNREADABLE:
            return None
        if len(messages) != 1 or tail:
            return None
        message = messages[0][0]
        declared = message.headers.get("Content-Length", "0")
        if (
            message.version != HttpVersion11
            or message.should_close
            or message.method == "CONNECT"
            or message.chunked
            or "Expect" in message.headers
            or not declared.isdecimal()
            or not is_target(message.path)
        ):
            return None
        return self._make(
            method=message.method,
            target=message.path,
            headers=message.headers,
            declared=int(declared),
        )
