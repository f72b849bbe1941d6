"""An HTTP answer whose body comes in pieces, and how it goes over the wire.

Who makes the pieces hands each over as it has it: nobody waits in between, so thousands of such
answers need no task of their own.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, Protocol

from batchedmodel_http.response import Headers, head_lines, is_empty

_LAST_CHUNK: Final = b"0\r\n\r\n"
_RESET_CONTENT: Final = HTTPStatus.RESET_CONTENT.value


class PieceSource(Protocol):
    """Who makes the pieces of one answer."""

    def begin(self, sending: "Sending") -> None:
        """The head is written: pieces may be sent."""
        ...

    def pause(self) -> None:
        """The caller reads more slowly than pieces come."""
        ...

    def resume(self) -> None:
        """It has caught up."""
        ...

    def cancel(self) -> None:
        """The caller has left. Nothing is sent any more."""
        ...


class StreamedResponse:
    """The head of such an answer, and where its body comes from."""

    __slots__ = ("headers", "last", "length", "reason", "source", "status")

    def __init__(
        self,
        source: PieceSource,
        *,
        status: int = 200,
        reason: str = "",
        headers: Headers = (),
        length: int | None = None,
        last: bool = False,
    ) -> None:
        """`length`: bytes of the whole body, where that is known.

        `last`: the connection ends behind it, and the head says so.
        """
        self.source: Final = source
        self.status: Final = status
        self.reason: Final = reason
        self.headers: Final = headers
        self.length: Final = length
        self.last: Final = last

    def head(self, *, close: bool, chunked: bool) -> bytes:
        """As it goes over the wire in HTTP/1.1; with `close` it says that it is the last one."""
        framing: Headers = ()
        if is_empty(self.status):
            # Its end is its head's; only one of these may say so.
            framing = (("Content-Length", "0"),) if self.status == _RESET_CONTENT else ()
        elif self.length is not None:
            framing = (("Content-Length", str(self.length)),)
        elif chunked:
            framing = (("Transfer-Encoding", "chunked"),)
        return head_lines(self.status, self.reason, (*framing, *self.headers), close=close)


class Sending:
    """One such answer on its way to its caller."""

    __slots__ = ("_chunked", "_ended", "_source", "_transport")

    def __init__(
        self,
        response: StreamedResponse,
        transport: Any,
        *,
        close: bool,
        chunked: bool,
        ended: Callable[[bool], None],
    ) -> None:
        """Write the head. `chunked`: the caller knows chunks, so an end without a length is told.

        `ended` is told once, whether the answer went out whole.
        """
        self._source: PieceSource | None = response.source
        self._transport = transport
        self._chunked = chunked and response.length is None
        self._ended = ended
        self._write(response.head(close=close, chunked=chunked))

    def write(self, piece: bytes) -> None:
        """Send a piece of the body. One without bytes is none: as a chunk it would end the body."""
        if not piece:
            return
        if self._chunked:
            piece = b"%x\r\n%b\r\n" % (len(piece), piece)
        self._write(piece)

    def end(self, *, whole: bool) -> None:
        """No more comes. What is not whole must not look so: its connection breaks off."""
        if self._source is None:
            return
        self._source = None
        if not whole:
            self._transport.abort()
        elif self._chunked:
            self._write(_LAST_CHUNK)
        self._ended(whole)

    def pause(self) -> None:
        """The caller reads more slowly than pieces come."""
        if self._source is not None:
            self._source.pause()

    def resume(self) -> None:
        """It has caught up."""
        if self._source is not None:
            self._source.resume()

    def cancel(self) -> None:
        """The caller has left."""
        source, self._source = self._source, None
        if source is not None:
            source.cancel()

    def _write(self, data: bytes) -> None:
        # A loss is told a turn later; what has ended takes no more.
        if not self._transport.is_closing():
            self._transport.write(data)


class Sender:
    """Sends such answers for who awaits their ends, one at a time."""

    def __init__(self) -> None:
        self._sending: Sending | None = None
        self._paused = False

    async def send(
        self, response: StreamedResponse, transport: Any, *, close: bool, chunked: bool
    ) -> bool:
        """Whether all of it went out; see `Sending`."""
        whole: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def ended(out: bool) -> None:
            if not whole.done():  # its caller may just have left
                whole.set_result(out)

        sending = Sending(response, transport, close=close, chunked=chunked, ended=ended)
        self._sending = sending
        if self._paused:
            sending.pause()
        response.source.begin(sending)
        try:
            return await whole
        finally:
            self._sending = None
            sending.cancel()

    def pause(self) -> None:
        """The caller reads more slowly than its answer comes."""
        self._paused = True
        if self._sending is not None:
            self._sending.pause()

    def resume(self) -> None:
        """It has caught up."""
        self._paused = False
        if self._sending is not None:
            self._sending.resume()
