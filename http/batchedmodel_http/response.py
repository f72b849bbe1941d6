"""An HTTP answer whose whole body is known, and how it goes over the wire."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

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

    def to_wire(self, *, close: bool) -> list[Buffer]:
        """As it goes over the wire in HTTP/1.1; with `close` it says that it is the last one.

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
        if size > LARGE:
            return [head, *standing_alone(parts)]
        return [b"".join((head, *parts))]


def head_lines(status: int, reason: str, headers: Headers, *, close: bool) -> bytes:
    """A head with just these headers; with `close` it says that its answer is the last one."""
    lines = "".join([f"{name}: {_line(value)}\r\n" for name, value in headers])
    first = f"HTTP/1.1 {status} {_line(reason) or _REASONS.get(status, '')}\r\n"
    return f"{first}{lines}{_CLOSE if close else ''}\r\n".encode(errors="surrogateescape")


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
