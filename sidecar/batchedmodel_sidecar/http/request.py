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
from batchedmodel_sidecar.protocols.routes import Endpoint, NoRoute, RouteMatch, Routes
from batchedmodel_sidecar.protocols.v2 import V2Protocol


class Route(NamedTuple):
    """Where a request belongs."""

    match: RouteMatch | NoRoute
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

    def find(self, method: str, path: str) -> RouteMatch | NoRoute:
        """What a method means with a path."""
        return self._routes.find(method, path)

    def route(self, head: RequestHead) -> Route:
        """The route of a request, found once for all that have the same head."""
        match = self.find(head.method, head.path)
        if (rule := refused_locally(head.headers, self._local_to)) is not None:
            match = NoRoute(403, rule)
        elif (rule := unmet_expectation(head.headers)) is not None:
            match = NoRoute(417, rule)
        if isinstance(match, NoRoute):
            route = Route(match, None, None, None, generates=False)
        else:
            protocol = self._protocol(head, match.endpoint)
            plain = head.header_length is None and not head.packed and self._upstream is None
            route = Route(
                match,
                protocol,
                protocol if plain and isinstance(protocol, V2Protocol) else None,
                head.header_length if match.endpoint is Endpoint.V2_INFER else None,
                self._generates and match.endpoint is Endpoint.GENERATES,
            )
        head.route = route
        return route

    def _protocol(self, head: RequestHead, endpoint: Endpoint) -> PublicProtocol | None:
        if self._upstream is None:
            return self._protocols.get(endpoint)
        if endpoint is not self._upstream.endpoint:
            return None
        return self._upstream.public_protocol(head.path, head.query, head.headers)


class Request:
    """One inference; its steps fill in what they find out."""

    __slots__ = (
        "arrived", "head", "hold", "lease", "match", "model", "options", "parsed", "protocol",
        "route",
    )  # fmt: skip

    model: ReadyModel
    """Which answers it; set when it is admitted."""
    parsed: Parsed
    """Its call; set when its body is read."""

    def __init__(self, head: RequestHead, route: Route, arrived: float, hold: Hold) -> None:
        """`route` has a protocol. `arrived`: monotonic seconds. `hold`: the memory that it uses."""
        assert isinstance(route.match, RouteMatch), "an inference has a known path: our bug"
        assert route.protocol is not None, "an inference has a protocol: our bug"
        self.head: Final = head
        self.route: Final = route
        self.match: Final = route.match
        self.protocol: Final = route.protocol
        self.arrived: Final = arrived
        self.hold: Final = hold
        self.lease: Final = VersionLease()
        self.options: RequestOptions = NO_OPTIONS
        """What its headers ask for, and then its body as well."""

    def release(self) -> None:
        """Its body is not needed any more, nor is the version that it was read for."""
        self.hold.release()
        self.lease.close()


class TextHandler(Protocol):
    """Who answers requests for generated text."""

    def refuse_full(self, share: Share) -> None:
        """Raise `Rejected` where a tenant's request would not be admitted, whatever it holds."""
        ...

    async def answer(self, head: RequestHead, body: Buffer, hold: Hold) -> Answer:
        """The answer to a request whose body is here, and counted by `hold`; or its beginning."""
        ...
