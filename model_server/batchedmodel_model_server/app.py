"""The HTTP edge: the Open Inference Protocol v2, its batch extension and what the proxy follows.

Translates between bodies and batches, and every error into a status with `{"error": ...}`. Decides
nothing about batches or about the model.
"""

import logging
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, Final

import orjson
from aiohttp import web

from batchedmodel_contract.batch_wire import EXTENSION, to_request, write_reply
from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_contract.server_api import (
    events_path,
    infer_path,
    model_path,
    profile_path,
    tokenizer_path,
)
from batchedmodel_contract.v2 import HEADER_LENGTH, read_body, to_json, write_body
from batchedmodel_model_server.declaration import VERSION
from batchedmodel_model_server.errors import NotReady, Overloaded, UnknownModel
from batchedmodel_model_server.plain_v2 import (
    RowFailed,
    is_batch,
    items_as_rows,
    rows_as_items,
    wanted,
)
from batchedmodel_model_server.service import ModelService

MAX_BODY_BYTES: Final = 1 << 30
_SERVICE: Final = web.AppKey("service", ModelService)
_NAME: Final = "{name}"
_log = logging.getLogger(__name__)

_STATUSES: Final[dict[type[Exception], int]] = {
    InvalidInput: 400,
    UnknownModel: 404,
    NotReady: 503,
    Overloaded: 503,
}


def make_app(service: ModelService) -> web.Application:
    """The application around a service, which its caller brings up and drains."""
    app = web.Application(middlewares=[_errors], client_max_size=MAX_BODY_BYTES)
    app[_SERVICE] = service
    app.add_routes(
        [
            web.get("/v2", _server),
            web.get("/v2/health/live", _live),
            web.get("/v2/health/ready", _ready),
            web.get(model_path(_NAME), _of_model(_metadata)),
            web.get(f"{model_path(_NAME)}/ready", _of_model(_model_ready)),
            web.get(profile_path(_NAME), _of_model(_profile)),
            web.get(tokenizer_path(_NAME), _of_model(_tokenizer)),
            web.get(events_path(_NAME), _of_model(_events)),
            web.post(infer_path(_NAME), _of_model(_infer)),
        ]
    )
    return app


ServiceHandler = Callable[[web.Request, ModelService], Awaitable[web.StreamResponse]]
RequestHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _of_model(handle: ServiceHandler) -> RequestHandler:
    async def handler(request: web.Request) -> web.StreamResponse:
        service, name = request.app[_SERVICE], request.match_info["name"]
        if name != service.name:
            raise UnknownModel(f"model {name!r} is not served here, only {service.name!r}")
        return await handle(request, service)

    return handler


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except tuple(_STATUSES) as error:
        return _error(_STATUSES[type(error)], str(error))
    except RowFailed as error:
        return _error(error.status, str(error))
    except web.HTTPRequestEntityTooLarge:
        return _error(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
    except web.HTTPException as error:
        return _error(error.status, f"{request.method} {request.path}: {error.reason}")
    except Exception as error:
        _log.exception("%s %s failed", request.method, request.path)
        return _error(500, f"{type(error).__name__}: {error}")


async def _server(request: web.Request) -> web.Response:
    document = {
        "name": "batchedmodel-model-server",
        "version": version("batchedmodel"),
        "extensions": ["binary_tensor_data", EXTENSION],
    }
    return _json(document)


async def _live(request: web.Request) -> web.Response:
    return _json({"live": True})


async def _ready(request: web.Request) -> web.Response:
    ready = request.app[_SERVICE].ready
    return _json({"ready": ready}, status=200 if ready else 503)


async def _model_ready(request: web.Request, service: ModelService) -> web.Response:
    document = {"name": service.name, "ready": service.ready}
    return _json(document, status=200 if service.ready else 503)


async def _metadata(request: web.Request, service: ModelService) -> web.Response:
    return _json(service.description.to_metadata())


async def _profile(request: web.Request, service: ModelService) -> web.Response:
    return _json(service.profile.to_mapping())


async def _tokenizer(request: web.Request, service: ModelService) -> web.Response:
    if service.tokenizer is None:
        return _error(404, f"model {service.name} has no tokenizer")
    return web.Response(body=service.tokenizer, content_type="application/json")


async def _events(request: web.Request, service: ModelService) -> web.StreamResponse:
    stream = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await stream.prepare(request)
    async for event in service.lifecycle.follow():
        await stream.write(orjson.dumps(event.to_mapping()) + b"\n")
    return stream


async def _infer(request: web.Request, service: ModelService) -> web.Response:
    if (request.content_length or 0) > MAX_BODY_BYTES:
        # Before it is read: aiohttp itself would take in the whole gigabyte first.
        raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, request.content_length or 0)
    body = await request.read()
    head, tensors = read_body(body, request.headers.get(HEADER_LENGTH), "inputs", orjson.loads)
    if is_batch(tensors):
        return _binary(*write_reply(await service.infer(to_request(tensors))))
    outputs = [spec.name for spec in service.description.outputs]
    asked = wanted(head, outputs)
    reply = await service.infer(rows_as_items(tensors))
    answer = {"model_name": service.name, "model_version": VERSION}
    if asked.identity is not None:
        answer["id"] = asked.identity
    rows = items_as_rows(reply, asked.outputs)
    if asked.binary:
        return _binary(*write_body(answer, rows, "outputs", orjson.dumps))
    return _json({**answer, "outputs": [to_json(tensor) for tensor in rows]})


def _binary(head_length: int, parts: list[Any]) -> web.Response:
    return web.Response(
        body=b"".join(parts),
        content_type="application/octet-stream",
        headers={HEADER_LENGTH: str(head_length)},
    )


def _json(document: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(document), status=status, content_type="application/json")


def _error(status: int, message: str) -> web.Response:
    return _json({"error": message}, status)
