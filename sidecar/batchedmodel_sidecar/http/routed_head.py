"""What the head of a request says, and what the data handler concluded from it.

Clients send the same head again and again, so a head and what follows from it are kept and used for
many requests: nothing here belongs to one of them.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from batchedmodel_contract.inference.v2 import HEADER_LENGTH
from batchedmodel_http import request_head
from batchedmodel_sidecar.body.encodings import Encoding, encoding_of
from batchedmodel_sidecar.protocols.adapter import Adapter
from batchedmodel_sidecar.protocols.headers import (
    RequestOptions,
    only,
    options_of_headers,
    request_id,
)
from batchedmodel_sidecar.protocols.routes import Found, Lost
from batchedmodel_sidecar.protocols.v2 import V2Adapter


class Route(NamedTuple):
    """Where a request belongs."""

    found: Found | Lost
    adapter: Adapter | None
    """How it is batched; None when it is not."""
    at_once: V2Adapter | None
    """Reads its small calls without waiting; None where they may have to wait."""
    generates: bool
    """Whether it is for generated text."""


class HeaderOptions(NamedTuple):
    """How a request for an inference wants to be treated."""

    encoding: Encoding | None
    """How its body is compressed."""
    options: RequestOptions
    accepted: str | None
    """How its answer may be compressed: a header."""


def options_of(headers: Mapping[str, str], *, traced: bool) -> HeaderOptions:
    """What the headers ask for; `traced`: also who asks.

    Raises `InvalidInput`, and `Rejected` for an encoding that is not known.
    """
    encoding = encoding_of(only(headers, "Content-Encoding"))
    only(headers, HEADER_LENGTH)
    options = options_of_headers(headers, traced=traced)
    return HeaderOptions(encoding, options, headers.get("Accept-Encoding"))


class RequestHead(request_head.RequestHead):
    """The head of one request, or of many that have the same."""

    __slots__ = ("header_length", "header_options", "packed", "request_id", "route")

    def __init__(
        self, *, method: str, target: str, headers: Mapping[str, str], declared: int
    ) -> None:
        """As of every request. What each request with this head needs is looked up here, once."""
        super().__init__(method=method, target=target, headers=headers, declared=declared)
        self.header_length: Final = headers.get(HEADER_LENGTH)
        self.packed: Final = "Content-Encoding" in headers
        """Whether the body must be inflated before anything can be known about it."""
        self.request_id: Final = request_id(headers)
        """The caller's own name of the request, which the answer repeats."""
        self.route: Route | None = None
        self.header_options: HeaderOptions | None = None
        """Both are None until the data handler has found them."""
