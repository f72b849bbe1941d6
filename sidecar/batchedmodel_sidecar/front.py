"""The data port: admission, reading, parsing, submitting, answering, for every public protocol.

Callers' requests come in here and nothing of HTTP goes further in. Refusals come as early as they
can be known: the gate and the queue before the body is read, the body's size before it is parsed.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from importlib import metadata
from typing import Any, Final

import orjson
from aiohttp import web

from batchedmodel_contract.mistakes import InvalidInput, shown
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_contract.v2 import HEADER_LENGTH
from batchedmodel_sidecar.batcher import Batcher
from batchedmodel_sidecar.byte_budget import ByteBudget
from batchedmodel_sidecar.calls import Answer
from batchedmodel_sidecar.connections import DataServer
from batchedmodel_sidecar.errors import CallError, Rejected
from batchedmodel_sidecar.ledger import Ledger
from batchedmodel_sidecar.lifecycle import Lifecycle
from batchedmodel_sidecar.link import Link
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols import openai, v2
from batchedmodel_sidecar.protocols.adapter import Adapter, Body, Parsed

_RETRY_NOT_READY: Final = 1.0
VERSION: Final = metadata.version("batchedmodel")
_EXTENSIONS: Final = ["binary_tensor_data"]

Route = Callable[[web.BaseRequest], Awaitable[web.Response]]


class Front:
    """Routes of one model."""

    def __init__(
        self,
        name: str,
        *,
        batcher: Batcher,
        link: Link,
        lifecycle: Lifecycle,
        ledger: Ledger,
        max_body_bytes: int,
        max_held_bytes: int,
    ) -> None:
        self._name = name
        self._batcher = batcher
        self._link = link
        self._lifecycle = lifecycle
        self._ledger = ledger
        self._max_body_bytes = max_body_bytes
        self._budget = ByteBudget(max_held_bytes)
        self._v2 = v2.V2Adapter()
        self._embeddings = openai.EmbeddingsAdapter()
        model = f"/v2/models/{name}"
        self._routes: dict[tuple[str, str], Route] = {
            ("POST", f"{model}/infer"): lambda request: self._infer(request, self._v2),
            ("POST", "/v1/embeddings"): lambda request: self._infer(request, self._embeddings),
            ("GET", "/v2"): self._server_metadata,
            ("GET", "/v2/health/live"): self._live,
            ("GET", "/v2/health/ready"): self._ready,
            ("GET", model): self._model_metadata,
            ("GET", f"{model}/ready"): self._ready,
            ("GET", "/v1/models"): self._models,
        }
        self._methods = {path: method for method, path in self._routes}

    async def handle(self, request: web.BaseRequest, server: DataServer) -> web.Response:
        """Answer one request, and close its connection behind it when it is time."""
        route = self._routes.get((request.method, request.path), self._unknown)
        response = await route(request)
        if self._lifecycle.draining or server.retires(request.protocol):
            response.force_close()
        return response

    async def _infer(self, request: web.BaseRequest, adapter: Adapter) -> web.Response:
        try:
            parsed, model, answer = await self._answer(request, adapter)
        except CallError as error:
            if isinstance(error, Rejected):
                self._ledger.rejected[error.reason] += 1
            return _error_response(error, adapter.error(error))
        return _response(adapter.render(parsed, answer, model))

    async def _answer(
        self, request: web.BaseRequest, adapter: Adapter
    ) -> tuple[Parsed, ReadyModel, Answer]:
        declared = request.content_length or 0
        model = self._admit(declared)
        with self._budget.hold(declared) as held:
            try:
                body = await self._read(request)
                held.resize(len(body))
                parsed = await _parse(request, adapter, body, model)
            except asyncio.CancelledError:
                # Nothing was promised yet, but the books must know of everyone who came.
                self._ledger.rejected[Rejection.ABANDONED] += 1
                raise
            answer = await self._batcher.submit(parsed.call)
        return parsed, model, answer

    def _admit(self, declared: int) -> ReadyModel:
        """Refuse what can be refused before the body is read."""
        if self._lifecycle.refusing:
            message = "this pod is stopping; another one will answer"
            raise Rejected(Rejection.DRAINING, message, retry_after=_RETRY_NOT_READY)
        model = self._link.status.model
        if model is None:
            reason = self._link.status.reason
            raise Rejected(Rejection.NOT_READY, reason, retry_after=_RETRY_NOT_READY)
        if declared > self._max_body_bytes:
            raise self._too_large()
        if not self._budget.has_room_for(declared):
            message = f"the bodies held take {self._budget.held} bytes; {declared} more do not fit"
            raise Rejected(Rejection.QUEUE_FULL, message, retry_after=_RETRY_NOT_READY)
        refusal = self._batcher.refusal()
        if refusal is not None:
            self._batcher.count_unseen()
            raise refusal
        return model

    async def _read(self, request: web.BaseRequest) -> bytes:
        try:
            if request.content.is_eof():
                return await request.read()
            async with asyncio.timeout(self._batcher.settings.request_timeout_seconds):
                return await request.read()
        except TimeoutError as error:
            message = "the body did not arrive in time"
            raise Rejected(Rejection.INVALID, message, status=408) from error
        except web.HTTPRequestEntityTooLarge as error:
            raise self._too_large() from error
        except (ConnectionError, web.RequestPayloadError) as error:
            raise Rejected(Rejection.ABANDONED, f"the body ended early: {error}") from error

    def _too_large(self) -> Rejected:
        message = f"the body is larger than the {self._max_body_bytes} bytes taken here"
        return Rejected(Rejection.TOO_LARGE, message)

    async def _unknown(self, request: web.BaseRequest) -> web.Response:
        path = request.path
        adapter = self._embeddings if path.startswith("/v1/") else self._v2
        if path in self._methods:
            allowed = self._methods[path]
            error = CallError(f"{path} takes {allowed}, not {request.method}", status=405)
        elif path.startswith("/v2/models/") and not path.startswith(f"/v2/models/{self._name}/"):
            asked = shown(path.split("/")[3])
            error = CallError(f"model: {asked} is not served here; {self._name} is", status=404)
        else:
            error = CallError(f"there is nothing at {shown(path)}", status=404)
        if request.method == "POST":
            self._ledger.rejected[Rejection.INVALID] += 1
        return _error_response(error, adapter.error(error))

    async def _server_metadata(self, request: web.BaseRequest) -> web.Response:
        return _json({"name": "batchedmodel", "version": VERSION, "extensions": _EXTENSIONS})

    async def _live(self, request: web.BaseRequest) -> web.Response:
        return _json({"live": True})

    async def _ready(self, request: web.BaseRequest) -> web.Response:
        ready = self._link.status.model is not None and not self._lifecycle.draining
        return _json({"name": self._name, "ready": ready}, status=200 if ready else 503)

    async def _model_metadata(self, request: web.BaseRequest) -> web.Response:
        return self._about(v2.metadata, self._v2)

    async def _models(self, request: web.BaseRequest) -> web.Response:
        return self._about(openai.models, self._embeddings)

    def _about(self, document: Callable[[ReadyModel], Any], adapter: Adapter) -> web.Response:
        if self._link.status.model is not None:
            return _json(document(self._link.status.model))
        error = CallError(self._link.status.reason, status=503, retry_after=_RETRY_NOT_READY)
        return _error_response(error, adapter.error(error))


async def _parse(
    request: web.BaseRequest, adapter: Adapter, body: bytes, model: ReadyModel
) -> Parsed:
    try:
        return await adapter.parse(body, request.headers.get(HEADER_LENGTH), model)
    except InvalidInput as error:
        raise Rejected(Rejection.INVALID, str(error)) from error


def _response(body: Body) -> web.Response:
    return web.Response(body=body.data, content_type=body.content_type, headers=body.headers)


def _error_response(error: CallError, body: Body) -> web.Response:
    response = web.Response(status=error.status, body=body.data, content_type=body.content_type)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    return response


def _json(document: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(document), content_type="application/json")
