"""What is known of a request: its head, what follows from that, and its way to its answer.

Clients send the same head again and again, so a head and what follows from it are kept and used for
many requests: nothing of `RequestHead` belongs to one of them. A `Request` is one inference.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from batchedmodel_contract.inference.v2 import HEADER_LENGTH
from batchedmodel_http import request_head
from batchedmodel_http.request_head import only
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.body.encodings import Encoding, encoding_of
from batchedmodel_sidecar.model import ReadyModel, VersionLease
from batchedmodel_sidecar.protocols.adapter import Adapter, Parsed
from batchedmodel_sidecar.protocols.headers import (
    NO_OPTIONS,
    RequestOptions,
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


class Request:
    """One inference; its steps fill in what they find out."""

    __slots__ = (
        "adapter", "arrived", "asked", "caller", "found", "held", "lease", "model", "options",
        "parsed",
    )  # fmt: skip

    model: ReadyModel
    """Which answers it; set when it is admitted."""
    parsed: Parsed
    """Its call; set when its body is read."""

    def __init__(
        self,
        asked: RequestHead,
        found: Found,
        adapter: Adapter,
        caller: str,
        arrived: float,
        held: Hold,
    ) -> None:
        """`caller`: its address. `arrived`: monotonic seconds. `held`: the memory that it uses."""
        self.asked: Final = asked
        self.found: Final = found
        self.adapter: Final = adapter
        self.caller: Final = caller
        self.arrived: Final = arrived
        self.held: Final = held
        self.lease: Final = VersionLease()
        self.options: RequestOptions = NO_OPTIONS
        """What its headers ask for, and then its body as well."""

    def release(self) -> None:
        """Its body is not needed any more, nor is the version that it was read for."""
        self.held.release()
        self.lease.close()
