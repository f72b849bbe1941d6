"""The HTTP edge: the Open Inference Protocol v2, its batch extension and what the proxy follows.

Translates between bodies and batches, and every error into a status with `{"error": ...}`. Decides
nothing about batches or about the model.
"""

import asyncio
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Final

import orjson
from aiohttp import web

from batchedmodel_contract.inference.batch_wire import (
    EXTENSION,
)
from batchedmodel_contract.inference.packed import PACKED
from batchedmodel_contract.inference.v2 import BINARY_EXTENSION, HEADER_LENGTH
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.processes.server_api import (
    INDEX,
    ModelState,
    events_path,
    generation_path,
    infer_path,
    labels_path,
    load_path,
    model_path,
    profile_path,
    release_path,
    tokenizer_path,
    unload_path,
)
from batchedmodel_http.response import Response
from batchedmodel_model_server.errors import UnknownModel
from batchedmodel_model_server.http.inference import arrived, failure, infer, told
from batchedmodel_model_server.http.shared_regions import Regions
from batchedmodel_model_server.lifecycle.service import ModelService

MAX_BODY_BYTES: Final = 1 << 30
_SERVICE: Final = web.AppKey("service", ModelService)
_REGIONS: Final = web.AppKey("regions", Regions)
_NAME: Final = "{name}"
_VERSION: Final = "{version}"
_NUMBER: Final = "{number:[0-9]{1,10}}"

ServiceHandler = Callable[[web.Request, ModelService], Awaitable[web.StreamResponse]]
RequestHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(service: ModelService, regions: Regions) -> web.Application:
    """The application around a service, which its caller brings up and drains.

    `regions`: the memory that callers share.
    """
    app = web.Application(middlewares=[_answered], client_max_size=MAX_BODY_BYTES)
    app[_SERVICE] = service
    app[_REGIONS] = regions
    app.add_routes(
        [
            web.get("/v2", _server),
            web.get("/v2/health/live", _live),
            web.get("/v2/health/ready", _ready),
            web.get(events_path(_NAME), _of_model(_events)),
            web.get(labels_path(_NAME, _NUMBER), _of_model(_labels)),
            web.post(INDEX, _index),
            web.post(load_path(_NAME), _of_model(_load)),
            web.post(unload_path(_NAME), _of_model(_unload)),
            web.post(release_path(_NAME, _VERSION), _of_model(_release)),
        ]
    )
    for asked in (None, _VERSION):  # the version that serves, or one by name
        app.add_routes(
            [
                web.get(model_path(_NAME, asked), _of_model(_metadata)),
                web.get(f"{model_path(_NAME, asked)}/ready", _of_model(_model_ready)),
                web.get(profile_path(_NAME, asked), _of_model(_profile)),
                web.get(tokenizer_path(_NAME, asked), _of_model(_tokenizer)),
                web.get(generation_path(_NAME, asked), _of_model(_generation)),
                web.post(infer_path(_NAME, asked), _of_model(_infer)),
            ]
        )
    return app


def _of_model(handle: ServiceHandler) -> RequestHandler:
    async def handler(request: web.Request) -> web.StreamResponse:
        service, name = request.app[_SERVICE], request.match_info["name"]
        if name != service.name:
            raise UnknownModel(f"model {name!r} is not served here, only {service.name!r}")
        return await handle(request, service)

    return handler


@web.middleware
async def _answered(request: web.Request, handler: RequestHandler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPRequestEntityTooLarge:
        return _web(told(413, f"the body is larger than {MAX_BODY_BYTES} bytes"))
    except web.RequestPayloadError:
        return _web(told(400, "body: cannot be decoded as its headers say"))
    except web.HTTPException as error:
        return _web(told(error.status, f"{request.method} {request.path}: {error.reason}"))
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return _web(failure(error, f"{request.method} {request.path}"))


async def _server(request: web.Request) -> web.Response:
    document = {
        "name": "batchedmodel-model-server",
        "version": version("batchedmodel"),
        "extensions": [BINARY_EXTENSION, EXTENSION],
    }
    return _json(document)


async def _live(request: web.Request) -> web.Response:
    live = request.app[_SERVICE].live
    return _json({"live": live}, status=200 if live else 503)


async def _ready(request: web.Request) -> web.Response:
    ready = request.app[_SERVICE].ready
    return _json({"ready": ready}, status=200 if ready else 503)


async def _model_ready(request: web.Request, service: ModelService) -> web.Response:
    version = _version(request)
    ready = service.ready
    if version is not None:
        ready = ready and service.of(version).state is ModelState.READY
    return _json({"name": service.name, "ready": ready}, status=200 if ready else 503)


async def _metadata(request: web.Request, service: ModelService) -> web.Response:
    return _json(service.of(_version(request)).description.to_metadata())


async def _profile(request: web.Request, service: ModelService) -> web.Response:
    return _json(service.of(_version(request)).profile.to_mapping())


async def _tokenizer(request: web.Request, service: ModelService) -> web.Response:
    tokenizer = service.of(_version(request)).tokenizer
    if tokenizer is None:
        return _web(told(404, f"model {service.name} has no tokenizer"))
    return web.Response(body=tokenizer, content_type="application/json")


async def _generation(request: web.Request, service: ModelService) -> web.Response:
    generation = service.of(_version(request)).generation
    if generation is None:
        return _web(told(404, f"model {service.name} generates nothing"))
    return _json(generation.to_mapping())


async def _labels(request: web.Request, service: ModelService) -> web.Response:
    adapters, number = service.of().adapters, request.match_info["number"]
    labels = None if adapters is None else adapters.labels_of(int(number))
    if labels is None:
        return _web(told(404, f"adapter {number} has no labels of its own"))
    return _json(labels)


async def _index(request: web.Request) -> web.Response:
    wishes = await _wishes(request, "ready")
    return _json(request.app[_SERVICE].index(ready_only=wishes.get("ready") is True))


async def _load(request: web.Request, service: ModelService) -> web.Response:
    await _wishes(request)
    await service.load()
    return _json({})


async def _unload(request: web.Request, service: ModelService) -> web.Response:
    # Stock clients send whether dependent models should go, too; there are none.
    await _wishes(request, "unload_dependents")
    await service.unload()
    return _json({})


async def _release(request: web.Request, service: ModelService) -> web.Response:
    service.of(_version(request)).release()
    return _json({})


async def _wishes(request: web.Request, *known: str) -> dict[str, object]:
    """What a body of the repository API asks for, as itself or as parameters.

    Raises `TooSlow`, and `InvalidInput` for what is not known: a configuration or files that are
    sent along, which Triton takes, would otherwise seem to be in force.
    """
    body = await arrived(request)
    try:
        document = orjson.loads(body) if body.strip() else {}
    except orjson.JSONDecodeError as error:
        raise InvalidInput("body", f"is no JSON: {error}") from error
    parameters = document.pop("parameters", {}) if isinstance(document, dict) else None
    if not isinstance(parameters, dict):
        raise InvalidInput("body", "is not an object whose parameters are one, too")
    wishes = {**document, **parameters}
    for name in wishes:
        if name not in known:
            raise InvalidInput(name, "is not taken here")
    return wishes


async def _events(request: web.Request, service: ModelService) -> web.StreamResponse:
    stream = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await stream.prepare(request)
    # The stream ends with the server, which should not wait for another request behind it. It ends
    # where it fails, too: whoever follows it would wait for ever.
    stream.force_close()
    async for event in service.lifecycle.follow():
        try:
            await stream.write(orjson.dumps(event.to_mapping()) + b"\n")
        except ConnectionResetError:
            break  # the reader has left, and this handler was not cancelled yet
    return stream


async def _infer(request: web.Request, service: ModelService) -> web.Response:
    if (request.content_length or 0) > MAX_BODY_BYTES:
        # Before it is read: `read` itself would take in the whole gigabyte first.
        raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, request.content_length or 0)
    header_length = request.headers.get(HEADER_LENGTH)
    response = await infer(
        service,
        _version(request),
        header_length,
        request,
        request.app[_REGIONS],
        packed=request.content_type == PACKED,
        packs=request.headers.get("Accept") == PACKED,
    )
    return _web(response)


def _version(request: web.Request) -> str | None:
    return request.match_info.get("version")


def _json(document: object, status: int = 200) -> web.Response:
    return _web(Response((orjson.dumps(document),), status=status))


def _web(response: Response) -> web.Response:
    """As aiohttp writes it."""
    return web.Response(
        body=b"".join(response.parts),
        status=response.status,
        content_type=response.content_type,
        headers=response.headers,
    )
