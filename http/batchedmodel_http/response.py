"""An HTTP answer whose whole body is known, and how it goes over the wire."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

from aiohttp.helpers import rfc822_formatted_time

from batchedmodel_contract.tensors import Buffer

SERVER: Final = "batchedmodel"
LARGE: Final = 256 * 1024
"""Bytes from which on joining, parsing and making JSON take so long that the loop should not."""
_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}
_CLOSE: Final = "Connection: close\r\n"

Headers = tuple[tuple[str, str], ...]


class Response(NamedTuple):
    """An answer whose whole body is known."""

    parts: Sequence[Buffer]
    content_type: str = "application/json"
    status: int = 200
    headers: Headers = ()

    def with_header(self, name: str, value: str) -> "Response":
        """The same with one header more."""
        return self._replace(headers=(*self.headers, (name, value)))

    def to_wire(self, *, close: bool) -> list[Buffer]:
        """As it goes over the wire in HTTP/1.1; with `close` it says that it is the last one.

        A small answer is one buffer; the parts of a large one are not copied.
        """
        size = size_of(self.parts)
        more = "".join([f"{name}: {_line(value)}\r\n" for name, value in self.headers])
        head = (
            f"HTTP/1.1 {self.status} {_REASONS.get(self.status, '')}\r\n"
            f"Content-Type: {_line(self.content_type)}\r\nContent-Length: {size}\r\n{more}"
            f"Date: {rfc822_formatted_time()}\r\nServer: {SERVER}\r\n"
            f"{_CLOSE if close else ''}\r\n"
        ).encode(errors="surrogateescape")  # a foreign server's headers are not always UTF-8
        if size > LARGE:
            return [head, *self.parts]
        return [b"".join((head, *self.parts))]


def size_of(parts: Sequence[Buffer]) -> int:
    """How many bytes they are together."""
    return sum(map(len, parts))


def _line(value: str) -> str:
    """A header's value, which must not be more than one line."""
    if "\r" in value or "\n" in value:
        raise ValueError("a header's value has several lines: our bug")
    return value
