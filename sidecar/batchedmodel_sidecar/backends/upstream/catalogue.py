"""What belongs to each protocol that a server of one's own may speak, and its paths. Pure.

Used where the parts are put together, and by the data handler for its paths.

Inference of its protocol, metadata and health are passed on, and what the manifest names. A server
has more, such as loading models and sharing memory: that is for whoever runs it, not for callers.
Paths are compared as they were sent. One with an escape, an empty or a dotted part is never passed
on, for the server might understand another one by it.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final

from batchedmodel_contract.invalid_input import shown
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_sidecar.backends.upstream.headers import forwarded, trace_context
from batchedmodel_sidecar.backends.upstream.protocol import BackendProtocol
from batchedmodel_sidecar.backends.upstream.protocols.openai import OpenAI
from batchedmodel_sidecar.backends.upstream.protocols.v1 import V1
from batchedmodel_sidecar.backends.upstream.protocols.v2 import V2
from batchedmodel_sidecar.backends.upstream.public_protocol import UpstreamProtocol
from batchedmodel_sidecar.protocols.protocol import PublicProtocol
from batchedmodel_sidecar.protocols.routes import Endpoint, NoRoute, RouteMatch, Routes
from batchedmodel_sidecar.protocols.table import public_protocols

_ENDPOINTS: Final = {
    ServerProtocol.V2: Endpoint.V2_INFER,
    ServerProtocol.V1: Endpoint.V1_PREDICT,
    ServerProtocol.OPENAI: Endpoint.EMBEDDINGS,
}
_OURS: Final = frozenset({Endpoint.LIVE, Endpoint.READY, Endpoint.MODEL_READY})
"""The sidecar answers these itself: only it knows whether it takes requests."""
_PART: Final = r"[A-Za-z0-9._~@+=,-]+"
_PARTS: Final = r"[A-Za-z0-9._~@+=,:-]+(?:/[A-Za-z0-9._~@+=,:-]+)*"
_DOTTED: Final = re.compile(r"/\.\.?(?:/|$)")
_HEALTH: Final = r"/|/health|/healthz|/livez|/readyz|/ready|/ping|/version"
_V2_MODEL: Final = rf"/v2/models/{_PART}(?:/versions/{_PART})?"
_V1_MODEL: Final = rf"/v1/models/{_PART}(?:/(?:versions|labels)/{_PART})?"
_OPENAI_TASKS: Final = (
    "embeddings|moderations|rerank|score|classify|audio/translations|images/generations"
)
_STREAMING_TASKS: Final = "responses|audio/(?:speech|transcriptions)"
# Servers of embeddings have these beside OpenAI's: vLLM, TEI, Infinity.
_TASKS_BESIDE: Final = (
    "rerank|v2/rerank|score|classify|pooling|predict|similarity"
    "|embed|embed_all|embed_sparse|v2/embed"
)
_GENERATES: Final = "/v1/(?:chat/)?completions"
_ALONE: Final = {
    ServerProtocol.V2: rf"{_V2_MODEL}/infer",
    ServerProtocol.V1: rf"{_V1_MODEL}:(?:predict|explain|classify|regress)",
    ServerProtocol.OPENAI: rf"/v1/(?:{_OPENAI_TASKS})|/(?:{_TASKS_BESIDE})",
}
"""Inferences of the protocols beside the batched one. Those that generate are none of them: servers
run many at a time and answer in streams."""
_PASSED_ON: Final = {
    ServerProtocol.V2: (
        ("GET", rf"{_HEALTH}|/v2|/v2/health/(?:live|ready)|/v2/models"),
        ("GET", rf"{_V2_MODEL}(?:/(?:ready|config|stats))?"),
        ("POST", rf"{_V2_MODEL}/(?:generate|generate_stream)"),
    ),
    ServerProtocol.V1: (
        ("GET", rf"{_HEALTH}|/v1/models"),
        ("GET", rf"{_V1_MODEL}(?:/metadata)?"),
    ),
    ServerProtocol.OPENAI: (
        ("GET", rf"{_HEALTH}|/info|/v1/health/(?:live|ready)|/v1/models(?:/{_PARTS})?"),
        ("POST", rf"/v1/(?:{_STREAMING_TASKS})|/tokenize|/detokenize|/decode"),
    ),
}
"""What the protocols have beside, by the method that it takes."""


class Upstream:
    """One protocol for one model, and the paths in front of its server."""

    def __init__(
        self,
        protocol: ServerProtocol,
        name: str,
        replicated: Collection[str] = (),
        pass_paths: Collection[str] = (),
    ) -> None:
        """Of the outputs of the model of this name, the `replicated` have no rows.

        `pass_paths` are passed on beside the protocol's own paths. An entry that ends with `/*`
        stands for all paths below it.
        """
        self.protocol: BackendProtocol
        match protocol:
            case ServerProtocol.V2:
                self.protocol = V2(name, replicated)
            case ServerProtocol.V1:
                self.protocol = V1(name)
            case ServerProtocol.OPENAI:
                self.protocol = OpenAI(name)
        self.endpoint: Final = _ENDPOINTS[protocol]
        """Requests to it are batched."""
        self._ours = public_protocols()[self.endpoint]
        """The same protocol, for our own server; it words our errors."""
        self._routes = Routes(name)
        self._here = _OURS | {self.endpoint}
        rules = [(Endpoint.PASSED_ON, *rule) for rule in _PASSED_ON[protocol]]
        rules.append((Endpoint.ALONE, "POST", _ALONE[protocol]))
        if protocol is ServerProtocol.OPENAI:
            rules.append((Endpoint.GENERATES, "POST", _GENERATES))
        self._rules = [(endpoint, takes, re.compile(paths)) for endpoint, takes, paths in rules]
        below = [
            re.escape(path.removesuffix("*")) + _PARTS for path in pass_paths if path[-1] == "*"
        ]
        exact = [re.escape(path) for path in pass_paths if path[-1] != "*"]
        self._more = re.compile("|".join([*below, *exact])) if pass_paths else None

    def public_protocol(self, path: str, query: str, headers: Mapping[str, str]) -> PublicProtocol:
        """The protocol of one request; only requests of the same path and query share a batch."""
        return UpstreamProtocol(
            self.protocol,
            self._ours,
            path=path + query,
            headers=forwarded(headers),
            trace=trace_context(headers),
        )

    def find(self, method: str, path: str) -> RouteMatch | NoRoute:
        """What the request means. `HEAD` asks for what `GET` would answer."""
        ours = self._routes.find(method, path)
        if isinstance(ours, RouteMatch) and ours.endpoint in self._here:
            return ours
        if _DOTTED.search(path):
            return self._not_passed_on(path)
        known = {takes: endpoint for endpoint, takes, paths in self._rules if paths.fullmatch(path)}
        endpoint = known.get("GET" if method == "HEAD" else method)
        if endpoint is not None:
            return RouteMatch(endpoint)
        if self._more is not None and self._more.fullmatch(path):
            return RouteMatch(Endpoint.PASSED_ON)
        if isinstance(ours, RouteMatch) and ours.endpoint is Endpoint.OPENAPI:
            return ours  # unless it is passed on, for the server has its own
        for takes in known:
            return NoRoute(405, f"{path} takes {takes}, not {method}", allow=takes)
        return self._not_passed_on(path)

    @staticmethod
    def _not_passed_on(path: str) -> NoRoute:
        message = (
            f"{shown(path)} is not passed on to the model's server: only inference, metadata and "
            "health of its protocol are, and what spec.model.passPaths names"
        )
        return NoRoute(404, message)
