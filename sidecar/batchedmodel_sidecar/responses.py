"""HTTP answers of the data port: an adapter's body, a document, an error with when to come back."""

import math
import random
from typing import Any, Final

import orjson
from aiohttp import web

from batchedmodel_sidecar.buffers import body_of, size_of
from batchedmodel_sidecar.calls import Timing
from batchedmodel_sidecar.encodings import Codec, wants_gzip
from batchedmodel_sidecar.errors import CallError
from batchedmodel_sidecar.protocols.adapter import Body

_OUTCOME_HEADER: Final = "x-request-outcome"
_BATCH_SIZE_HEADER: Final = "x-batch-size"
_QUEUE_TIME_HEADER: Final = "x-queue-time-ms"
_MODEL_TIME_HEADER: Final = "x-model-time-ms"
_RETRY_SPREAD: Final = 0.1  # callers that were refused together should not all come back together


async def body_response(
    body: Body, request: web.BaseRequest, codec: Codec, timing: Timing | None
) -> web.Response:
    """An answer of the model; compressed when it is large and the caller asked for that.

    `timing`: how it was served, for a caller that wants to know.
    """
    parts = [body.data, *body.tail]
    compressed = wants_gzip(request.headers.get("Accept-Encoding"), size_of(parts))
    data = await codec.gzipped(parts) if compressed else body_of(parts, body.content_type)
    response = _response(body, data)
    if compressed:
        response.headers["Content-Encoding"] = "gzip"
        response.headers.add("Vary", "Accept-Encoding")
    if timing is not None:
        response.headers[_BATCH_SIZE_HEADER] = str(timing.batch_size)
        response.headers[_QUEUE_TIME_HEADER] = f"{timing.queue_seconds * 1000:.3f}"
        response.headers[_MODEL_TIME_HEADER] = f"{timing.model_seconds * 1000:.3f}"
    return response


def error_response(error: CallError, body: Body) -> web.Response:
    """An error in its protocol's form, with its reason and, where that makes sense, a delay."""
    response = _response(body, body.data)
    response.set_status(error.status)
    if error.counted_as is not None:
        response.headers[_OUTCOME_HEADER] = error.counted_as
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
        spread = random.uniform(1, 1 + _RETRY_SPREAD)
        response.headers["retry-after-ms"] = str(math.ceil(error.retry_after * spread * 1000))
    return response


def json_response(document: Any, status: int = 200) -> web.Response:
    """A document about the server or its model."""
    return web.Response(status=status, body=orjson.dumps(document), content_type="application/json")


def _response(body: Body, data: Any) -> web.Response:
    # As a header and not as an argument: a server's own may have parameters, such as a charset.
    headers = (*body.headers, ("Content-Type", body.content_type))
    return web.Response(body=data, headers=headers)
