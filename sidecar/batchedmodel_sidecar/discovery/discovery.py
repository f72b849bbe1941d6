"""Answers what can be asked: a page for people, and an OpenAPI document.

Called by the data handler. Both say what `openapi.json` beside this module says of each path, of
those paths that the model answers which is served now.
"""

from collections.abc import Callable
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Final

import orjson

from batchedmodel_http.response import Response
from batchedmodel_sidecar.discovery.example import Task, example_of, tasks_of
from batchedmodel_sidecar.discovery.schemas import schemas_of
from batchedmodel_sidecar.errors import RETRY_SOON, CallError
from batchedmodel_sidecar.model import LinkStatus, ReadyModel
from batchedmodel_sidecar.protocols import v2
from batchedmodel_sidecar.protocols.routes import Endpoint, Found, Lost

_DOCUMENT: Final = orjson.loads(files(__package__).joinpath("openapi.json").read_bytes())
_VERSION: Final = version("batchedmodel")
_THEIRS: Final = (Endpoint.PASSED_ON, Endpoint.ALONE)
_THEIR_BODIES: Final[dict[str, Any]] = {
    name: {"type": "object"} for name in ("Chat", "Completions", "Embeddings", "Infer", "Predict")
}
"""Which a server of one's own judges by itself."""
_OF_VERSION: Final = {"parameters": [{"$ref": "#/components/parameters/version"}]}

Find = Callable[[str, str], Found | Lost]


class Discovery:
    """For one model, of our server or of a `upstream` one."""

    def __init__(self, name: str, find: Find, *, upstream: bool) -> None:
        """`find`: what a method means with a path."""
        self._name = name
        self._find = find
        self._upstream = upstream
        self._kept: dict[Endpoint, tuple[tuple[ReadyModel | None, str, bool], Response]] = {}
        """The last answers: to make one takes the loop's time, and anybody may ask."""

    def answer(self, endpoint: Endpoint, status: LinkStatus, *, works: bool) -> Response:
        """The page, or the document, which needs a model of ours to be there.

        Raises `CallError`. `works`: whether nothing but the model's absence keeps requests from
        being taken.
        """
        model, state = status.model, (status.model, status.reason, works)
        kept = self._kept.get(endpoint)
        if kept is not None and kept[0] == state:
            return kept[1]
        if endpoint is Endpoint.ABOUT:
            document = self._page(*state)
        elif model is None and not self._upstream:
            raise CallError(status.reason, status=503, retry_after=RETRY_SOON)
        else:
            document = self._openapi(None if self._upstream else model)
        response = Response((orjson.dumps(document, option=orjson.OPT_INDENT_2),))
        self._kept[endpoint] = state, response
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
            f"{method.upper()} {path}": said["summary"]
            for path, item in self._items(tasks).items()
            for method, said in item.items()
        }
        return page | {"openapi": "/openapi.json", "docs": _DOCUMENT["externalDocs"]["url"]}

    def _openapi(self, model: ReadyModel | None) -> dict[str, Any]:
        """Of a model of ours; None: of a server of one's own."""
        own, tasks = _THEIR_BODIES, tuple(Task)
        if model is not None:
            own = schemas_of(model.description)
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
            asked = path.replace("{name}", self._name)
            ((method, said),) = item.items()
            found = self._find(method.upper(), asked)
            answered = isinstance(found, Found) and found.endpoint not in _THEIRS
            if answered and said["x-task"] in tasks:
                items[asked] = item
        return items
