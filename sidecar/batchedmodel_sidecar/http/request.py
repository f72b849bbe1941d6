"""What is known of a request: its head, its route, and its way to its answer.

Clients send the same head again and again, so a head and what follows from it are kept and used for
many requests: nothing of `RequestHead` belongs to one of them. A `Request` is one inference.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from batchedmodel_contract.inference.tensors import HEADER_LENGTH, Buffer
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_http.ports.local_hosts import refused_locally
from batchedmodel_http.request_head import RequestHead as PlainHead
from batchedmodel_http.request_head import only
from batchedmodel_http.response import Answer
from batchedmodel_sidecar.backends.upstream.catalogue import Upstream
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.body.encodings import Encoding, encoding_of
from batchedmodel_sidecar.model import ReadyModel, VersionLease
from batchedmodel_sidecar.protocols.headers import (
    NO_OPTIONS,
    RequestOptions,
    options_of_headers,
    request_id,
    unmet_expectation,
)
from batchedmodel_sidecar.protocols.protocol import Parsed, PublicProtocol
from batchedmodel_sidecar.protocols.routes import Endpoint, Found, Lost, Routes
from batchedmodel_sidecar.protocols.v2 import V2Protocol


class Route(NamedTuple):
    """Where a request belongs."""

    found: Found | Lost
    protocol: PublicProtocol | None
    """How it is batched; None when it is not."""
    at_once: V2Protocol | None
    """Reads its small calls without waiting; None where they may have to wait."""
    json_length: str | None
    """How long the JSON at the body's beginning is, by a header; None where all of it is JSON."""
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


class RequestHead(PlainHead):
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
        """Both are None until the first request with this head needs them."""


class Router:
    """Finds the routes of requests for one model."""

    def __init__(
        self,
        name: str,
        *,
        protocols: Mapping[Endpoint, PublicProtocol],
        upstream: Upstream | None,
        generates: bool,
        has_lora: bool,
        local_to: str = "",
    ) -> None:
        """`protocols` are those of our server; `upstream`: the server is one's own.

        `generates`: texts are answered. `has_lora`: a path may name one of the model's LoRA
        adapters. `local_to`: see `SidecarSettings`.
        """
        self._local_to = local_to
        self._protocols = protocols
        self._upstream = upstream
        self._generates = generates
        own = Routes(name, adapters=has_lora)
        self._routes = own if upstream is None else upstream

    def find(self, method: str, path: str) -> Found | Lost:
        """What a method means with a path."""
        return self._routes.find(method, path)

    def route(self, asked: RequestHead) -> Route:
        """The route of a request, found once for all that have the same head."""
        found = self.find(asked.method, asked.path)
        if (rule := refused_locally(asked.headers, self._local_to)) is not None:
            found = Lost(403, rule)
        elif (rule := unmet_expectation(asked.headers)) is not None:
            found = Lost(417, rule)
        if isinstance(found, Lost):
            route = Route(found, None, None, None, generates=False)
        else:
            protocol = self._protocol(asked, found.endpoint)
            plain = asked.header_length is None and not asked.packed and self._upstream is None
            route = Route(
                found,
                protocol,
                protocol if plain and isinstance(protocol, V2Protocol) else None,
                asked.header_length if found.endpoint is Endpoint.V2_INFER else None,
                self._generates and found.endpoint is Endpoint.GENERATES,
            )
        asked.route = route
        return route

    def _protocol(self, asked: RequestHead, endpoint: Endpoint) -> PublicProtocol | None:
        if self._upstream is None:
            return self._protocols.get(endpoint)
        if endpoint is not self._upstream.endpoint:
            return None
        return self._upstream.public_protocol(asked.path, asked.query, asked.headers)


class Request:
    """One inference; its steps fill in what they find out."""

    __slots__ = (
        "arrived", "asked", "found", "held", "lease", "model", "options", "parsed", "protocol",
        "route",
    )  # fmt: skip

    model: ReadyModel
    """Which answers it; set when it is admitted."""
    parsed: Parsed
    """Its call; set when its body is read."""

    def __init__(self, asked: RequestHead, route: Route, arrived: float, held: Hold) -> None:
        """`route` has a protocol. `arrived`: monotonic seconds. `held`: the memory that it uses."""
        assert isinstance(route.found, Found), "an inference has a path that means one: our bug"
        assert route.protocol is not None, "an inference has a protocol: our bug"
        self.asked: Final = asked
        self.route: Final = route
        self.found: Final = route.found
        self.protocol: Final = route.protocol
        self.arrived: Final = arrived
        self.held: Final = held
        self.lease: Final = VersionLease()
        self.options: RequestOptions = NO_OPTIONS
        """What its headers ask for, and then its body as well."""

    def release(self) -> None:
        """Its body is not needed any more, nor is the version that it was read for."""
        self.held.release()
        self.lease.close()


class TextHandler(Protocol):
    """Who answers requests for generated text."""

    def refuse_full(self, share: Share) -> None:
        """Raise `Rejected` where a tenant's request would not be admitted, whatever it holds."""
        ...

    async def answer(self, asked: RequestHead, body: Buffer, held: Hold) -> Answer:
        """The answer to a request whose body is here, and counted by `held`; or its beginning."""
        ...
