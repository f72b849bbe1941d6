"""HTTP answers and how they go over the wire: whole ones, and those whose body comes in pieces.

Who makes the pieces hands each over as it has it: nobody waits in between, so thousands of such
answers need no task of their own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Protocol

from aiohttp.helpers import rfc822_formatted_time

from batchedmodel_contract.inference.tensors import Buffer, standing_alone

SERVER: Final = "batchedmodel"
LARGE: Final = 256 * 1024
"""Bytes from which on joining, parsing and making JSON take so long that the loop should not."""
# As plain numbers, which compare at once.
_OK: Final = HTTPStatus.OK.value
_RESET_CONTENT: Final = HTTPStatus.RESET_CONTENT.value
_WITHOUT_BODY: Final = frozenset(
    {HTTPStatus.NO_CONTENT.value, _RESET_CONTENT, HTTPStatus.NOT_MODIFIED.value}
)
_EMPTY: Final = "Content-Length: 0\r\n"
_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}
_CLOSE: Final = "Connection: close\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"

Headers = tuple[tuple[str, str], ...]


class Response:
    """An answer whose whole body is known; of a status that allows none, it goes without."""

    __slots__ = ("content_type", "headers", "parts", "status")

    def __init__(
        self,
        parts: Sequence[Buffer],
        content_type: str = "application/json",
        status: int = 200,
        headers: Headers = (),
    ) -> None:
        self.parts: Final = parts
        self.content_type: Final = content_type
        self.status: Final = status
        self.headers: Final = headers

    def with_header(self, name: str, value: str) -> "Response":
        """The same with one header more."""
        headers = (*self.headers, (name, value))
        return Response(self.parts, self.content_type, self.status, headers)

    def to_wire(self, *, close: bool, head_only: bool = False) -> list[Buffer]:
        """As it goes over the wire in HTTP/1.1; with `close` it says that it is the last one.

        `head_only`: as an answer to HEAD, which says how long the body would be.

        A small answer is one buffer; the parts of a large one are copied only to stand alone.
        """
        parts, size = self.parts, size_of(self.parts)
        body = f"Content-Type: {_line(self.content_type)}\r\nContent-Length: {size}\r\n"
        if is_empty(self.status):
            parts, size = (), 0
            body = _EMPTY if self.status == _RESET_CONTENT else ""
        more = ""
        if self.headers:
            more = "".join([f"{name}: {_line(value)}\r\n" for name, value in self.headers])
        head = (
            f"HTTP/1.1 {self.status} {_REASONS.get(self.status, '')}\r\n{body}{more}"
            f"Date: {rfc822_formatted_time()}\r\nServer: {SERVER}\r\n"
            f"{_CLOSE if close else ''}\r\n"
        ).encode(errors="surrogateescape")  # an upstream server's headers are not always UTF-8
        if head_only:
            return [head]
        if size > LARGE:
            return [head, *standing_alone(parts)]
        return [b"".join((head, *parts))]


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


@dataclass(slots=True)
class StreamedResponse:
    """The head of such an answer, and where its body comes from."""

    source: PieceSource
    status: int = 200
    reason: str = ""
    headers: Headers = ()
    length: int | None = None
    """Bytes of the whole body, where that is known."""
    last: bool = False
    """Whether the connection ends behind it, and the head says so."""

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
        lines = [f"{name}: {_line(value)}\r\n" for name, value in (*framing, *self.headers)]
        reason = _line(self.reason) or _REASONS.get(self.status, "")
        first = f"HTTP/1.1 {self.status} {reason}\r\n"
        head = f"{first}{''.join(lines)}{_CLOSE if close else ''}\r\n"
        return head.encode(errors="surrogateescape")


Answer = Response | StreamedResponse
Reply = Callable[[Answer | None, BaseException | None], None]
"""Hears how a call ended: one of the two. A streamed answer ends by itself."""


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


def is_empty(status: int) -> bool:
    """Whether an answer of this status ends with its head (RFC 9110, 15.2, 15.3.5, 15.3.6, 15.4.5).

    A body behind such a head would be taken for the next answer.
    """
    return status in _WITHOUT_BODY or status < _OK


def size_of(parts: Sequence[Buffer]) -> int:
    """How many bytes they are together."""
    return len(parts[0]) if len(parts) == 1 else sum(map(len, parts))


def _line(value: str) -> str:
    """A header's value, which must not be more than one line."""
    if "\r" in value or "\n" in value:
        raise ValueError("a header's value has several lines: our bug")
    return value
