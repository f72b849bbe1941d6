"""Carries batches to our model server: HTTP/1.1 over its Unix socket, and nothing else of HTTP.

Used by the link, once for each batch. A general client spends a quarter of a millisecond on one
request, for which a lone caller would wait; here a request is two writes and one wake-up. What our
server never sends (chunks, redirects, compressed bodies) is refused.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_http.response import LARGE, size_of
from batchedmodel_sidecar.body.buffers import Room

_END_OF_HEAD: Final = b"\r\n\r\n"
_STATUS_DIGITS: Final = 3
_LONGEST_HEAD: Final = 64 * 1024
_MOST_IDLE: Final = 4
"""Connections that are kept: two batches are under way, and one may be searched for its bad row."""


class Unreachable(Exception):
    """Nobody listens on the socket; nothing was sent."""


class BrokenOff(Exception):
    """The connection ended before the answer did."""


class Garbled(Exception):
    """The answer is not one that our server gives; the message says how."""


class Answered(NamedTuple):
    """An answer as it came."""

    status: int
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: Buffer

    def header(self, name: str) -> str | None:
        """One of them, however its name is written."""
        return self.headers.get(name.lower())


class Http1Client:
    """Keeps connections to one socket and sends requests over them, one at a time over each."""

    def __init__(self, path: str) -> None:
        """Needs a running loop; connects when it is asked to carry something."""
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._idle: list[_Connection] = []

    async def post(self, head: str, parts: Sequence[Buffer], seconds: float) -> Answered:
        """The answer to a request whose head, without its end, and body are given.

        Raises `Unreachable`, `BrokenOff` or `Garbled`, and `TimeoutError` when there is none within
        so many seconds. Cancelling it hangs up.
        """
        until = self._loop.time() + seconds
        connection = self._idle.pop() if self._idle else await self._connected(seconds)
        try:
            answer = await connection.ask(head, parts, until)
        except BaseException:
            connection.hang_up()
            raise
        if len(self._idle) < _MOST_IDLE and connection.usable:
            self._idle.append(connection)
        else:
            connection.hang_up()
        return answer

    def close(self) -> None:
        """End the idle connections; those in use end when their `post` is cancelled."""
        while self._idle:
            self._idle.pop().hang_up()

    async def _connected(self, seconds: float) -> "_Connection":
        await asyncio.sleep(0)  # a time-out needs a task, which this may not have begun in
        try:
            async with asyncio.timeout(seconds):
                _, connection = await self._loop.create_unix_connection(
                    lambda: _Connection(self._loop, self._idle), self._path
                )
        except TimeoutError:
            raise  # which is an OSError, too
        except OSError as error:
            raise Unreachable(str(error)) from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection; it leaves the idle ones by itself when the server closes it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, idle: list["_Connection"]) -> None:
        self._loop = loop
        self._idle = idle
        self._transport: Any = None
        self._waiter: asyncio.Future[Answered] | None = None
        self._head = b""
        self._answer: Answered | None = None
        """Its head, while the body is not whole."""
        self._body: Room | None = None
        """What came of a body in several pieces."""
        self._lacks = 0
        self.usable = True

    async def ask(self, head: str, parts: Sequence[Buffer], until: float) -> Answered:
        """Send a request and wait for its answer, until a time of the loop."""
        waiter: asyncio.Future[Answered] = self._loop.create_future()
        self._waiter = waiter
        # Not `asyncio.timeout`, which costs five times as much for each batch.
        time_out = self._loop.call_at(until, self._fail, TimeoutError())
        start = f"{head}\r\nContent-Length: {size_of(parts)}\r\n\r\n".encode()
        if size_of(parts) > LARGE:
            self._transport.writelines([start, *parts])
        else:
            self._transport.write(b"".join((start, *parts)))
        try:
            return await waiter
        finally:
            time_out.cancel()
            # Whoever asked may have been closed: nobody looks at how it ends.
            waiter.cancel()

    def hang_up(self) -> None:
        """End it at once, whatever is under way."""
        self.usable = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The server has taken it."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """The server, or we, have ended it."""
        self.usable = False
        if self in self._idle:
            self._idle.remove(self)
        self._fail(BrokenOff(str(exc or "the connection was closed")))

    def data_received(self, data: bytes) -> None:
        """A piece of an answer."""
        if self._answer is None:
            data = self._after_head(self._head + data)
        if self._answer is None or (not data and self._lacks):
            return
        if len(data) > self._lacks:
            self._garbled("it is longer than it says")
            return
        if self._body is None:
            if len(data) == self._lacks:
                self._done(data)  # all of it in one piece
                return
            self._body = Room(self._lacks)
        self._body.write(data)
        self._lacks -= len(data)
        if not self._lacks:
            self._done(self._body.view())

    def _after_head(self, data: bytes) -> bytes:
        """Read the head if it is whole; what comes behind it."""
        end = data.find(_END_OF_HEAD) + len(_END_OF_HEAD)
        if end < len(_END_OF_HEAD):
            self._head = data
            if len(data) > _LONGEST_HEAD:
                self._garbled("its head does not end")
            return b""
        self._head = b""
        try:
            status, headers = _read(data[: end - len(_END_OF_HEAD)])
        except ValueError:
            self._garbled(f"its head is no HTTP: {data[:end]!r}")
            return b""
        length = headers.get("content-length", "")
        if not length.isdecimal() or self._waiter is None:
            self._garbled("it has no length" if self._waiter else "nothing was asked")
            return b""
        self._lacks = int(length)
        self._body = None
        self.usable = headers.get("connection", "").lower() != "close"
        self._answer = Answered(status, headers, b"")
        return data[end:]

    def _done(self, body: Buffer) -> None:
        assert self._answer is not None, "an answer without a head: our bug"
        answer, self._answer = self._answer._replace(body=body), None
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)

    def _garbled(self, reason: str) -> None:
        self._fail(Garbled(reason))
        self.hang_up()

    def _fail(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)


def _read(head: bytes) -> tuple[int, dict[str, str]]:
    """Status, and headers by their names in lower case.

    Raises `ValueError` for what our server would not write. A general parser, made for each answer,
    took a twentieth of what a lone batch costs here.
    """
    first, *lines = head.decode().split("\r\n")
    version, status, _ = first.split(" ", 2)
    if version != "HTTP/1.1" or len(status) != _STATUS_DIGITS:
        raise ValueError
    headers = {}
    for line in lines:
        name, separator, value = line.partition(": ")
        if not separator:
            raise ValueError
        headers[name.lower()] = value
    return int(status), headers
