"""A batch from its body to its answer's, whoever received it.

Called by the application and by the connections, which read heads; knows nothing of sockets.
"""

import asyncio
from typing import Final, Protocol

import orjson

from batchedmodel_contract.inference.batch_wire import to_request, write_reply
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.inference.v2 import HEADER_LENGTH, read_body, read_options, write_answer
from batchedmodel_http.response import Response
from batchedmodel_model_server.errors import TooSlow
from batchedmodel_model_server.http.plain_v2 import is_batch, items_as_rows, rows_as_items
from batchedmodel_model_server.lifecycle.service import ModelService

BODY_SECONDS: Final = 30.0
"""A body has so long from its head on: a gigabyte takes a second over this socket."""
_JSON: Final = "application/json"
_BINARY: Final = "application/octet-stream"


class Arriving(Protocol):
    """A body that is still on its way."""

    async def read(self) -> bytes:
        """The whole of it."""
        ...


async def arrived(source: Arriving) -> bytes:
    """The whole of a body; raises `TooSlow`. Needs a task of its own."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await source.read()
    except TimeoutError as error:
        raise TooSlow(f"the body did not arrive within {BODY_SECONDS:g} s") from error


async def infer(
    service: ModelService, version: str | None, header_length: str | None, source: Arriving | bytes
) -> Response:
    """The answer to a batch, or to a plain request of the protocol.

    `header_length`: the header of that name. Raises what `ModelService.admitted`, `arrived`,
    `read_body` and `Runner.run` do.
    """
    with service.admitted(version) as runner:
        described = service.of(version).description
        body = source if isinstance(source, bytes) else await arrived(source)
        head, tensors = read_body(body, header_length, "inputs", orjson.loads)
        if is_batch(tensors):
            return _response(
                *write_reply(await runner.run(to_request(head, tensors)), orjson.dumps)
            )
        outputs = [spec.name for spec in described.outputs]
        options = read_options(head, outputs, described.params)
        items = rows_as_items(tensors, head.get("parameters"), described.params)
        reply = await runner.run(items)
    answer = {"model_name": service.name, "model_version": described.version}
    if options.id is not None:
        answer["id"] = options.id
    rows = items_as_rows(reply, options.selects)
    return _response(*write_answer(answer, rows, options.wants_binary, orjson.dumps))


def _response(head_length: int | None, parts: list[Buffer]) -> Response:
    if head_length is None:
        return Response(parts, _JSON)
    return Response(parts, _BINARY, headers=((HEADER_LENGTH, str(head_length)),))
