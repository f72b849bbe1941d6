"""Answers what is asked of the server, its model and its adapters, and what can be asked.

Called by the data handler. A page for people and an OpenAPI document say what `openapi.json` beside
this module says of each path, of those paths that the model answers which is served now.
"""

from collections.abc import Callable
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Final

import orjson

from batchedmodel_contract.inference.batch import SHAPES
from batchedmodel_contract.inference.description import RAGGED, ModelDescription, TensorSpec
from batchedmodel_contract.inference.params import BINARY_OUTPUT, PRIORITY, TIMEOUT, Param
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_http.response import Response
from batchedmodel_sidecar.backends.native.link import NativeLink
from batchedmodel_sidecar.discovery.example import Task, example_of, tasks_of
from batchedmodel_sidecar.errors import RETRY_SOON, CallError
from batchedmodel_sidecar.lora.served import ServedAdapters
from batchedmodel_sidecar.model import MAX_ORDER_BYTES, LinkStatus, ReadyModel
from batchedmodel_sidecar.protocols import openai, v2
from batchedmodel_sidecar.protocols.routes import Endpoint, NoRoute, RouteMatch, refuse_version

_DOCUMENT: Final = orjson.loads(files(__package__).joinpath("openapi.json").read_bytes())
_VERSION: Final = version("batchedmodel")
_THEIRS: Final = (Endpoint.PASSED_ON, Endpoint.ALONE)
_THEIR_BODIES: Final[dict[str, Any]] = {
    name: {"type": "object"} for name in ("Chat", "Completions", "Embeddings", "Infer", "Predict")
}
"""Which a server of one's own judges by itself."""
_TYPES: Final = {"BOOL": "boolean", "INT64": "integer", "FP32": "number", "BYTES": "string"}
"""Of parameters, in JSON Schema."""
_OF_VERSION: Final = {"parameters": [{"$ref": "#/components/parameters/version"}]}

Find = Callable[[str, str], RouteMatch | NoRoute]


class Discovery:
    """For one model, of our server or of a `upstream` one."""

    def __init__(
        self,
        name: str,
        find: Find,
        adapters: ServedAdapters,
        *,
        upstream: bool,
        repository: NativeLink | None = None,
    ) -> None:
        """`find`: what a method means with a path. `repository`: of our own server."""
        self._name = name
        self._adapters = adapters
        self._repository = repository
        self._find = find
        self._upstream = upstream
        self._responses: dict[Endpoint, tuple[tuple[ReadyModel | None, str, bool], Response]] = {}
        """The last answers: to make one takes the loop's time, and anybody may ask."""

    def answer(self, route: RouteMatch, status: LinkStatus, *, works: bool) -> Response:
        """What is said of the server, of the one model of this name, or of its adapters.

        Raises `CallError`. `works`: whether nothing but the model's absence keeps requests from
        being taken.
        """
        model = status.model
        ready = works and model is not None
        code = 200 if ready else 503
        match route.endpoint:
            case Endpoint.ABOUT | Endpoint.OPENAPI as endpoint:
                return self.document(endpoint, status, works=works)
            case Endpoint.SERVER:
                return _json(v2.server_metadata(_VERSION))
            case Endpoint.LIVE:
                return _json({"live": True})
            case Endpoint.READY:
                return _json({"ready": ready}, code)
        adapter = route.adapter
        chosen = None
        if model is not None:
            refuse_version(route.version, model.description.version)
            chosen = None if adapter is None else self._adapters.choose(adapter)
        if route.endpoint is Endpoint.MODEL_READY:
            return _json({"name": adapter or self._name, "ready": ready}, code)
        if model is None:
            raise CallError(status.reason, status=503, retry_after=RETRY_SOON)
        match route.endpoint:
            case Endpoint.V2_MODEL:
                return _json(v2.metadata(model, chosen))
            case Endpoint.MODEL:
                return _json(openai.about_model(model, adapter))
        return _json(openai.models(model, self._adapters.ready()))

    def refuse_large_order(self, declared: int) -> None:
        """Raise `CallError` for a longer body than one that is sent on with `index`."""
        if declared > MAX_ORDER_BYTES:
            raise CallError(f"the body is larger than {MAX_ORDER_BYTES} bytes", status=413)

    async def index(self, body: bytes) -> Response:
        """The model server's list of versions; raises `CallError`."""
        assert self._repository is not None, "only in front of our server: our bug"
        answer = await self._repository.index(body)
        return Response([answer.body], status=answer.status)

    def document(self, endpoint: Endpoint, status: LinkStatus, *, works: bool) -> Response:
        """The page, or the document, which needs a model of ours to be there.

        Raises `CallError`. `works`: see `answer`.
        """
        model, state = status.model, (status.model, status.reason, works)
        entry = self._responses.get(endpoint)
        if entry is not None and entry[0] == state:
            return entry[1]
        if endpoint is Endpoint.ABOUT:
            document = self._page(*state)
        elif model is None and not self._upstream:
            raise CallError(status.reason, status=503, retry_after=RETRY_SOON)
        else:
            document = self._openapi(None if self._upstream else model)
        response = Response((orjson.dumps(document, option=orjson.OPT_INDENT_2),))
        self._responses[endpoint] = state, response
        return response

    def _page(self, model: ReadyModel | None, reason: str, works: bool) -> dict[str, Any]:
        page: dict[str, Any] = {"model": self._name, "ready": works and model is not None}
        tasks: tuple[Task, ...] = (Task.INFERENCE,)
        if model is None:
            page["reason"] = reason
        else:
            tasks, told = tasks_of(model.description, model.generation), v2.metadata(model)
            page |= {"tasks": tasks, "inputs": told["inputs"], "outputs": told["outputs"]}
            page["example"] = example_of(model.description, model.generation)._asdict()
        page["paths"] = {
            f"{method.upper()} {path}": operation["summary"]
            for path, item in self._items(tasks).items()
            for method, operation in item.items()
        }
        return page | {"openapi": "/openapi.json", "docs": _DOCUMENT["externalDocs"]["url"]}

    def _openapi(self, model: ReadyModel | None) -> dict[str, Any]:
        """Of a model of ours; None: of a server of one's own."""
        own, tasks = _THEIR_BODIES, tuple(Task)
        if model is not None:
            own = _schemas(model.description)
            tasks = tasks_of(model.description, model.generation)
        paths, of_model = self._items(tasks), f"/models/{self._name}"
        for path in [path for path in paths if of_model in path]:
            of_version = path.replace(of_model, f"{of_model}/versions/{{version}}")
            paths[of_version] = _OF_VERSION | paths[path]
        components = _DOCUMENT["components"]
        components = components | {"schemas": components["schemas"] | own}
        info = _DOCUMENT["info"] | {"title": self._name, "version": _VERSION}
        return {**_DOCUMENT, "info": info, "paths": paths, "components": components}

    def _items(self, tasks: tuple[Task, ...]) -> dict[str, dict[str, Any]]:
        """What is said of each path that the sidecar answers for these tasks."""
        items = {}
        for path, item in _DOCUMENT["paths"].items():
            example = path.replace("{name}", self._name)
            ((method, operation),) = item.items()
            route = self._find(method.upper(), example)
            answered = isinstance(route, RouteMatch) and route.endpoint not in _THEIRS
            if answered and operation["x-task"] in tasks:
                items[example] = item
        return items


def _json(document: Any, status: int = 200) -> Response:
    return Response((orjson.dumps(document),), status=status)


def _schemas(model: ModelDescription) -> dict[str, Any]:
    """The schemas of the OpenAPI document that differ from model to model."""
    inputs = [_tensor(spec) for spec in model.inputs]
    if model.text is not None:
        inputs.append(_tensor(TensorSpec(name=model.text.name, datatype=Datatype.BYTES, shape=())))
    names = [f"{spec.name}{end}" for spec in model.outputs for end in ("", SHAPES)]
    parameters = {name: _parameter(param) for name, param in model.params.items()}
    known: dict[str, Any] = {TIMEOUT: {}, PRIORITY: {}, BINARY_OUTPUT: {}, **parameters}
    closed = {"type": ["object", "null"], "properties": known, "additionalProperties": False}
    return {"Input": {"oneOf": inputs}, "OutputName": {"enum": names}, "Parameters": closed}


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    lettered = {"type": "integer", "minimum": spec.min_length}
    if spec.max_length is not None:
        lettered["maximum"] = spec.max_length
    sizes = [lettered if size == RAGGED else {"const": size} for size in spec.shape]
    # A column of texts has one or two dimensions.
    most = 2 if spec.datatype is Datatype.BYTES else 1 + len(sizes)
    shape = {"prefixItems": [{"minimum": 1}, *sizes], "minItems": 1 + len(sizes), "maxItems": most}
    told = {"name": {"const": spec.name}, "datatype": {"const": spec.datatype}, "shape": shape}
    return {"allOf": [{"$ref": "#/components/schemas/Tensor"}, {"properties": told}]}


def _parameter(param: Param) -> dict[str, Any]:
    rules = {"minimum": param.min, "maximum": param.max, "enum": [*param.choices, None]}
    holds = {name: rule for name, rule in rules.items() if rule not in (None, [None])}
    return {"type": [_TYPES[param.datatype], "null"], "default": param.default, **holds}
