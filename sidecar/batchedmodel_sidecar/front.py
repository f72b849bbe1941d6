"""The data port: admission, reading, parsing, submitting, answering, for every public protocol.

Callers' requests come in here and nothing of HTTP goes further in. Refusals come as early as they
can be known: the gate and the queue before the body is read, the body's size before it is parsed.
"""

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable
from importlib import metadata
from typing import Any, Final

import orjson
from aiohttp import web

from batchedmodel_contract.mistakes import InvalidInput, shown
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_contract.v2 import BINARY_EXTENSION, HEADER_LENGTH
from batchedmodel_sidecar.batcher import Batcher
from batchedmodel_sidecar.bodies import BodyReader
from batchedmodel_sidecar.byte_budget import Hold
from batchedmodel_sidecar.calls import Answer
from batchedmodel_sidecar.connections import DataServer
from batchedmodel_sidecar.errors import CallError, Rejected, TooLate
from batchedmodel_sidecar.ledger import Ledger
from batchedmodel_sidecar.lifecycle import Lifecycle
from batchedmodel_sidecar.link import Link
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols import openai, v2
from batchedmodel_sidecar.protocols.adapter import Adapter, Body, Parsed
from batchedmodel_sidecar.recorder import FlightRecorder
from batchedmodel_sidecar.terms import Wishes, combined, limit_of, wishes_of_headers
from batchedmodel_sidecar.upstream.catalogue import Foreign

_RETRY_NOT_READY: Final = 1.0
_RETRY_SPREAD: Final = 0.1  # callers that were refused together should not all come back together
_OUTCOME_HEADER: Final = "x-request-outcome"
logger: Final = logging.getLogger(__name__)

VERSION: Final = metadata.version("batchedmodel")

Route = Callable[[web.BaseRequest], Awaitable[web.Response]]


class Front:
    """Routes of one model."""

    def __init__(
        self,
        name: str,
        *,
        batcher: Batcher,
        link: Link,
        foreign: Foreign | None,
        lifecycle: Lifecycle,
        ledger: Ledger,
        recorder: FlightRecorder,
        bodies: BodyReader,
        clock: Callable[[], float],
    ) -> None:
        self._name = name
        self._batcher = batcher
        self._link = link
        self._lifecycle = lifecycle
        self._ledger = ledger
        self._recorder = recorder
        self._bodies = bodies
        self._clock = clock
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
        self._foreign = foreign
        if foreign is not None:
            # What a server of one's own takes, its own protocol says.
            for path in (f"{model}/infer", "/v1/embeddings"):
                del self._routes["POST", path]
            self._routes["GET", f"/v1/models/{name}"] = self._ready
        self._methods = {path: method for method, path in self._routes}

    async def handle(self, request: web.BaseRequest, server: DataServer) -> web.Response:
        """Answer one request, and close its connection behind it when it is time."""
        method = "GET" if request.method == "HEAD" else request.method
        route = self._routes.get((method, request.path), self._unknown)
        if self._foreign is not None and self._foreign.infer_path.fullmatch(request.path):
            route = self._infer_abroad if method == "POST" else self._unknown
        with server.at_work(request.protocol):
            response = await route(request)
        if self._lifecycle.draining or server.retires(request.protocol):
            response.force_close()
        return response

    async def _infer_abroad(self, request: web.BaseRequest) -> web.Response:
        assert self._foreign is not None
        return await self._infer(request, self._foreign.adapter(request.path, request.headers))

    async def _infer(self, request: web.BaseRequest, adapter: Adapter) -> web.Response:
        try:
            parsed, model, answer = await self._answer(request, adapter)
            return _response(adapter.render(parsed, answer, model))
        except CallError as error:
            if isinstance(error, Rejected):
                self._ledger.rejected[error.reason] += 1
                logger.debug("refused: %s: %s", error.reason, error)
            return _error_response(error, adapter.error(error))
        except InvalidInput as error:
            # The model's answer has no form in which the caller asked for it.
            unfit = CallError(str(error), status=400, field=error.mistake.field)
            return _error_response(unfit, adapter.error(unfit))
        except Exception as bug:
            failed = CallError(_ours("answering", bug), status=500)
            return _error_response(failed, adapter.error(failed))

    async def _answer(
        self, request: web.BaseRequest, adapter: Adapter
    ) -> tuple[Parsed, ReadyModel, Answer]:
        arrived = self._clock()
        with self._bodies.hold() as held:
            try:
                parsed, model, wishes = await self._understood(request, adapter, held, arrived)
            except Rejected as refused:
                self._recorder.refused_unread(refused.reason, self._clock())
                raise
            answer = await self._batcher.submit(parsed.call, arrived, wishes)
        return parsed, model, answer

    async def _understood(
        self, request: web.BaseRequest, adapter: Adapter, held: Hold, arrived: float
    ) -> tuple[Parsed, ReadyModel, Wishes]:
        """Everything before the verdict; whoever leaves or fails here is counted as rejected."""
        try:
            self._admit(request.content_length or 0)
            wishes = wishes_of_headers(request.headers)
            limit = limit_of(wishes, self._batcher.settings)
            body = await self._bodies.read(request, held, limit)
            # Now, not before: the model may have been restarted while the body arrived.
            model = self._open_for_work()
            async with asyncio.timeout(limit - (self._clock() - arrived)):
                parsed = await adapter.parse(body, request.headers.get(HEADER_LENGTH), model)
            self._open_for_work()
        except asyncio.CancelledError:
            # Nothing was promised yet, but the books must know of everyone who came.
            self._ledger.rejected[Rejection.ABANDONED] += 1
            raise
        except InvalidInput as error:
            field = error.mistake.field
            raise Rejected(Rejection.INVALID, str(error), field=field) from error
        except TimeoutError as error:
            raise TooLate(limit) from error
        except Rejected:
            raise
        except Exception as bug:
            raise Rejected(Rejection.INVALID, _ours("reading", bug), status=500) from bug
        return parsed, model, combined(wishes, parsed.wishes)

    def _open_for_work(self) -> ReadyModel:
        """The model, if calls are taken and it is there; raises `Rejected`."""
        if self._lifecycle.refusing:
            message = "this pod is stopping; another one will answer"
            raise Rejected(Rejection.DRAINING, message, retry_after=_RETRY_NOT_READY)
        status = self._link.status
        if status.model is None:
            raise Rejected(Rejection.NOT_READY, status.reason, retry_after=_RETRY_NOT_READY)
        if self._batcher.closed is not None:
            raise Rejected(Rejection.NOT_READY, self._batcher.closed, retry_after=_RETRY_NOT_READY)
        return status.model

    def _admit(self, declared: int) -> None:
        """Refuse what can be refused before the body is read; raises `Rejected`."""
        self._open_for_work()
        self._bodies.refuse_declared(declared)
        refusal = self._batcher.refusal()
        if refusal is not None:
            raise refusal

    async def _unknown(self, request: web.BaseRequest) -> web.Response:
        path = request.path
        adapter = self._embeddings if path.startswith("/v1/") else self._v2
        if path in self._methods:
            allowed = self._methods[path]
            error = CallError(f"{path} takes {allowed}, not {request.method}", status=405)
            response = _error_response(error, adapter.error(error))
            response.headers["Allow"] = allowed
            return response
        if path.startswith("/v2/models/") and not path.startswith(f"/v2/models/{self._name}/"):
            asked = shown(path.split("/")[3])
            error = CallError(f"model: {asked} is not served here; {self._name} is", status=404)
        else:
            error = CallError(f"there is nothing at {shown(path)}", status=404)
        if request.method == "POST":
            self._ledger.rejected[Rejection.INVALID] += 1
        return _error_response(error, adapter.error(error))

    async def _server_metadata(self, request: web.BaseRequest) -> web.Response:
        return _json({"name": "batchedmodel", "version": VERSION, "extensions": [BINARY_EXTENSION]})

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


def _ours(doing: str, bug: Exception) -> str:
    """An error of our own while answering one call: logged whole, told in a few words."""
    logger.error("error while %s a call", doing, exc_info=bug)
    return f"error in the sidecar while {doing} this call: {type(bug).__name__}"


def _response(body: Body) -> web.Response:
    # As a header and not as an argument: a server's own may have parameters, such as a charset.
    return web.Response(
        body=body.data, headers=(*body.headers, ("Content-Type", body.content_type))
    )


def _error_response(error: CallError, body: Body) -> web.Response:
    response = _response(body)
    response.set_status(error.status)
    if error.counted_as is not None:
        response.headers[_OUTCOME_HEADER] = error.counted_as
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
        spread = random.uniform(1, 1 + _RETRY_SPREAD)
        response.headers["retry-after-ms"] = str(math.ceil(error.retry_after * spread * 1000))
    return response


def _json(document: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(document), content_type="application/json")
