"""The head of an answer of a sidecar's admin port, as operator and autoscaler read it.

Another process may stand at a pod's address, so only the plain form that sidecars use is read: a
status, headers, and a body whose length they say. Pure; the caller bounds the bytes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.processes.listening import authority

LARGEST_HEAD: Final = 16_384
"""Bytes, the empty line at its end included."""
END_OF_HEAD: Final = b"\r\n\r\n"
_STATUS: Final = re.compile(r"HTTP/1\.([01]) (\d{3})(?: |$)")
_LENGTH: Final = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Status and headers."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name; of several with one name the last."""
    length: int | None
    """Bytes of the body; None where the body ends with the connection."""
    stays: bool
    """Whether the connection is left open."""

    def header(self, name: str) -> str | None:
        """One by its name."""
        return self.headers.get(name.lower())


def read_head(text: bytes) -> Head | None:
    """The head in a text that ends with `END_OF_HEAD`; None where no sidecar writes such a head."""
    first, *lines = text.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    status = _STATUS.match(first)
    parts = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip(" \t") for name, _, value in parts}
    length = headers.get("content-length")
    if status is None or "transfer-encoding" in headers:
        return None
    if length is not None and not _LENGTH.fullmatch(length):
        return None
    return Head(
        status=int(status[2]),
        headers=headers,
        length=None if length is None else int(length),
        stays=status[1] == "1" and headers.get("connection", "").lower() != "close",
    )


def question(path: str, address: str, port: int, *, stays: bool) -> bytes:
    """The text of a GET."""
    host = authority(address, port)
    connection = "keep-alive" if stays else "close"
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: {connection}\r\n\r\n".encode()
