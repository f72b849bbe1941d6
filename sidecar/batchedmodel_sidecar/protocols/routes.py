"""Which path of the data port means what, for the one model that is served. Pure.

Paths are compared as they were sent: nothing is decoded, so no path can become another.
"""

import re
from enum import Enum, auto
from typing import Final, NamedTuple

from batchedmodel_contract.invalid_input import shown
from batchedmodel_contract.processes.sidecar_api import INDEX
from batchedmodel_sidecar.errors import ModelNotFound


class Endpoint(Enum):
    """What may be asked."""

    V2_INFER = auto()
    V1_PREDICT = auto()
    EMBEDDINGS = auto()
    CLASSIFY = auto()
    RERANK = auto()
    SERVER = auto()
    """About the server itself, as v2 has it."""
    LIVE = auto()
    READY = auto()
    MODEL_READY = auto()
    V2_MODEL = auto()
    """The model's v2 metadata."""
    MODEL = auto()
    """The model as OpenAI's and KServe's v1 clients ask for it."""
    MODELS = auto()
    INDEX = auto()
    """The versions of the model that its server knows."""
    ABOUT = auto()
    """What can be asked, for people."""
    OPENAPI = auto()
    """The same for programs."""
    PASSED_ON = auto()
    """What a server of one's own answers; it gets the request as it is."""
    GENERATES = auto()
    """Text that is generated: requests wait here for the server, whichever it is."""
    ALONE = auto()
    """An inference that such a server answers at once and whole: it gets it in its turn."""


class RouteMatch(NamedTuple):
    """A path that means something; `version` is the model's version that it names."""

    endpoint: Endpoint
    version: str | None = None
    adapter: str | None = None
    """What it names in the model's place: an adapter of it, if there is one of this name."""


class NoRoute(NamedTuple):
    """A path that means nothing, or not with this method."""

    status: int
    message: str
    allow: str | None = None
    """The method that the path takes, where there is one."""
    adapter: None = None


PATHS: Final = {
    "/v1/embeddings": ("POST", Endpoint.EMBEDDINGS),
    "/classify": ("POST", Endpoint.CLASSIFY),
    "/predict": ("POST", Endpoint.CLASSIFY),
    "/v1/chat/completions": ("POST", Endpoint.GENERATES),
    "/v1/completions": ("POST", Endpoint.GENERATES),
    "/rerank": ("POST", Endpoint.RERANK),
    "/v1/rerank": ("POST", Endpoint.RERANK),
    "/v2/rerank": ("POST", Endpoint.RERANK),
    "/v2": ("GET", Endpoint.SERVER),
    "/v2/health/live": ("GET", Endpoint.LIVE),
    "/v2/health/ready": ("GET", Endpoint.READY),
    "/v1/models": ("GET", Endpoint.MODELS),
    INDEX: ("POST", Endpoint.INDEX),
    "/": ("GET", Endpoint.ABOUT),
    "/openapi.json": ("GET", Endpoint.OPENAPI),
}
"""By path: the method that it takes, and what it means."""
OF_MODEL: Final = {
    "/v2/models/{}/infer": ("POST", Endpoint.V2_INFER),
    "/v2/models/{}/generate": ("POST", Endpoint.GENERATES),
    "/v2/models/{}/generate_stream": ("POST", Endpoint.GENERATES),
    "/v2/models/{}/ready": ("GET", Endpoint.MODEL_READY),
    "/v2/models/{}": ("GET", Endpoint.V2_MODEL),
    "/v1/models/{}:predict": ("POST", Endpoint.V1_PREDICT),
    "/v1/models/{}": ("GET", Endpoint.MODEL),
}
"""The same of paths with the model's name in them, or with its name and a version."""
_VERSION: Final = re.compile(r"/versions/([A-Za-z0-9._~@+=,-]+)")
_MODEL: Final = re.compile(r"/v[12]/models/([^/:]+)")


class Routes:
    """The paths in front of one model."""

    def __init__(self, name: str, *, adapters: bool = False) -> None:
        """`adapters`: whether other names may be those of adapters."""
        self._name = name
        self._adapters = adapters
        of_model = {path.format(name): target for path, target in OF_MODEL.items()}
        self._methods = {
            path: (method, RouteMatch(endpoint))
            for path, (method, endpoint) in (PATHS | of_model).items()
        }
        self._versioned = {f"/v{number}/models/{name}/versions/" for number in (1, 2)}

    def find(self, method: str, path: str) -> RouteMatch | NoRoute:
        """What the request means. `HEAD` asks for what `GET` would answer."""
        named = _MODEL.match(path) if self._adapters else None
        if named is None or named[1] == self._name:
            return self._find(method, path)
        match = self._find(method, f"{path[: named.start(1)]}{self._name}{path[named.end(1) :]}")
        return match if isinstance(match, NoRoute) else match._replace(adapter=named[1])

    def _find(self, method: str, path: str) -> RouteMatch | NoRoute:
        target, version = self._methods.get(path), None
        if target is None and any(path.startswith(prefix) for prefix in self._versioned):
            named = _VERSION.search(path)
            if named is not None and named[1] not in (".", ".."):
                version = named[1]
                target = self._methods.get(path[: named.start()] + path[named.end() :])
        if target is None:
            return self._nothing(path)
        allowed, match = target
        if allowed != ("GET" if method == "HEAD" else method):
            return NoRoute(405, f"{path} takes {allowed}, not {method}", allow=allowed)
        return match if version is None else RouteMatch(match.endpoint, version)

    def _nothing(self, path: str) -> NoRoute:
        named = _MODEL.match(path)
        if named is not None and named[1] != self._name:
            message = f"model: {shown(named[1])} is not served here; {self._name} is"
            return NoRoute(404, message)
        return NoRoute(404, f"there is nothing at {shown(path)}")


def refuse_version(version: str | None, served: str) -> None:
    """Raise `ModelNotFound` for a request that names another version than the one served."""
    if version not in (None, served):
        raise ModelNotFound(f"version: {shown(version)} is not served here; {served} is")
