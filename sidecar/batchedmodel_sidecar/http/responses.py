"""HTTP answers of the data port: an adapter's body, a document, an error with when to come back.

Made by the data handler. The connections write them.
"""

import math
import random
import re
from collections.abc import Sequence
from typing import Any, Final

import orjson
from aiohttp import web

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_http.response import SERVER, Response, is_empty
from batchedmodel_sidecar.body.buffers import body_of
from batchedmodel_sidecar.body.encodings import Compression
from batchedmodel_sidecar.calls import Timing
from batchedmodel_sidecar.errors import CallError
from batchedmodel_sidecar.protocols.adapter import Body

_OUTCOME_HEADER: Final = "x-request-outcome"
_BATCH_SIZE_HEADER: Final = "x-batch-size"
_QUEUE_TIME_HEADER: Final = "x-queue-time-ms"
_MODEL_TIME_HEADER: Final = "x-model-time-ms"
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_RETRY_SPREAD: Final = 0.1  # callers that were refused together should not all come back together


def as_web(response: Response) -> web.Response:
    """As aiohttp writes it."""
    named = (*response.headers, ("Server", SERVER))
    body: Any = None
    if not is_empty(response.status):
        # As a header and not as an argument: a server's own may have parameters, as a charset.
        named = (*named, ("Content-Type", response.content_type))
        body = body_of(response.parts, response.content_type)
    headers = [(name, writable(value)) for name, value in named]
    return web.Response(status=response.status, body=body, headers=headers)


def model_response(body: Body, timing: Timing | None) -> Response:
    """An answer of the model; `timing`: how it was served, for a caller that wants to know."""
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


async def gzipped(response: Response, compression: Compression, share: Share) -> Response:
    """The same answer, shorter."""
    headers = (*response.headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))
    return response._replace(
        parts=(await compression.gzipped(response.parts, share),), headers=headers
    )


def error_response(error: CallError, body: Body) -> Response:
    """An error in its protocol's form, with its reason and, where that makes sense, a delay."""
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


def json_response(document: Any, status: int = 200) -> Response:
    """A document about the server or its model."""
    return Response((orjson.dumps(document),), status=status)


def writable(value: str) -> str:
    """A header's value, or a reason, as aiohttp can write it.

    That is UTF-8; other bytes stand for Latin-1. A control character becomes a space (RFC 9110,
    5.5): aiohttp would write nothing at all.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        value = value.encode(errors="surrogateescape").decode("latin-1")
    return _CONTROL.sub(" ", value)
