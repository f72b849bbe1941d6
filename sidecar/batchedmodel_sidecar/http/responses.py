"""HTTP answers of the data port: an adapter's body, an error, what is said of server and model.

Made by the data handler. The connections write them. Pure.
"""

import math
import random
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Final

import orjson
from aiohttp import web

from batchedmodel_contract.inference.tensors import Buffer, standing_alone
from batchedmodel_contract.invalid_input import shown
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_http.response import SERVER, Response, is_empty
from batchedmodel_sidecar.body.buffers import body_of
from batchedmodel_sidecar.body.encodings import Compression
from batchedmodel_sidecar.calls import Timing
from batchedmodel_sidecar.errors import RETRY_SOON, CallError, ModelNotFound
from batchedmodel_sidecar.lora.served import ServedAdapters
from batchedmodel_sidecar.model import LinkStatus, ReadyModel
from batchedmodel_sidecar.protocols import openai, v2
from batchedmodel_sidecar.protocols.adapter import Body
from batchedmodel_sidecar.protocols.headers import REQUEST_ID_HEADER, writable
from batchedmodel_sidecar.protocols.routes import Endpoint, Found

VERSION: Final = metadata.version("batchedmodel")
_OUTCOME_HEADER: Final = "x-request-outcome"
_BATCH_SIZE_HEADER: Final = "x-batch-size"
_QUEUE_TIME_HEADER: Final = "x-queue-time-ms"
_MODEL_TIME_HEADER: Final = "x-model-time-ms"
_RETRY_SPREAD: Final = 0.1  # callers who were refused together should not come back together


def as_web(response: Response) -> web.Response:
    """As aiohttp writes it."""
    named = (*response.headers, ("Server", SERVER))
    body: Any = None
    if not is_empty(response.status):
        # As a header and not as an argument: a server's own may have parameters, as a charset.
        named = (*named, ("Content-Type", response.content_type))
        body = body_of(standing_alone(response.parts), response.content_type)
    headers = [(name, writable(value)) for name, value in named]
    return web.Response(status=response.status, body=body, headers=headers)


def model_response(body: Body, timing: Timing | None) -> Response:
    """An answer of the model; `timing` is for a caller that wants to know how it was served."""
    parts: Sequence[Buffer] = (body.data, *body.tail)
    headers = body.headers
    if timing is not None:
        headers = (
            *headers,
            (_BATCH_SIZE_HEADER, str(timing.batch_size)),
            (_QUEUE_TIME_HEADER, f"{timing.queue_seconds * 1000:.3f}"),
            (_MODEL_TIME_HEADER, f"{timing.model_seconds * 1000:.3f}"),
        )
    return Response(parts, body.content_type, headers=headers)


def named(response: Response, request_id: str | None) -> Response:
    """The response with the name that its caller gave the request."""
    return response if request_id is None else response.with_header(REQUEST_ID_HEADER, request_id)


async def gzipped(response: Response, compression: Compression, share: Share) -> Response:
    """The same answer, shorter."""
    headers = (*response.headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))
    parts = (await compression.gzipped(response.parts, share),)
    return Response(parts, response.content_type, response.status, headers)


def error_response(error: CallError, body: Body) -> Response:
    """An error in its protocol's form, with its reason and, where to try again helps, a delay."""
    headers = body.headers
    if error.counted_as is not None:
        headers = (*headers, (_OUTCOME_HEADER, error.counted_as))
    if error.retry_after is not None:
        spread = random.uniform(1, 1 + _RETRY_SPREAD)
        headers = (
            *headers,
            ("Retry-After", str(max(1, math.ceil(error.retry_after)))),
            ("retry-after-ms", str(math.ceil(error.retry_after * spread * 1000))),
        )
    return Response((body.data,), body.content_type, error.status, headers)


def info_response(
    name: str,
    found: Found,
    status: LinkStatus,
    adapters: ServedAdapters,
    *,
    open_for_work: bool,
) -> Response:
    """What is said of the server, of the one model of this name, or of its adapters.

    Raises `CallError`. `open_for_work`: whether nothing but the model's absence keeps requests from
    being taken.
    """
    ready = open_for_work and status.model is not None
    code = 200 if ready else 503
    match found.endpoint:
        case Endpoint.SERVER:
            return _json(v2.server_metadata(VERSION))
        case Endpoint.LIVE:
            return _json({"live": True})
        case Endpoint.READY:
            return _json({"ready": ready}, code)
    other = other_version(found.version, status.model)
    if other is not None:
        raise other
    adapter = found.adapter
    chosen = None
    if adapter is not None and status.model is not None:
        chosen = adapters.choose(adapter)
    if found.endpoint is Endpoint.MODEL_READY:
        return _json({"name": adapter or name, "ready": ready}, code)
    if status.model is None:
        raise CallError(status.reason, status=503, retry_after=RETRY_SOON)
    match found.endpoint:
        case Endpoint.V2_MODEL:
            return _json(v2.metadata(status.model, chosen))
        case Endpoint.MODEL:
            return _json(openai.about_model(status.model, adapter))
    return _json(openai.models(status.model, adapters.ready()))


def other_version(version: str | None, model: ReadyModel | None) -> ModelNotFound | None:
    """The error of a request that names a version of the model which is not served; or None."""
    served = version if model is None else model.description.version
    if version in (None, served):
        return None
    return ModelNotFound(f"version: {shown(version)} is not served here; {served} is")


def _json(document: Any, status: int = 200) -> Response:
    return Response((orjson.dumps(document),), status=status)
