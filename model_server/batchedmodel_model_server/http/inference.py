"""A batch from its body to its answer's, whoever received it, and every error as an answer.

Called by the application and by the connections, which read heads; knows nothing of sockets. Plain
v2 requests, as any client of the standard sends them, are brought into the batch form: rows of a
rectangular tensor become items, and the answer is rectangular again. A plain request has one
status, so one bad row fails it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson
from aiohttp import web

from batchedmodel_contract.inference import packed as packed_form
from batchedmodel_contract.inference.batch import OK, BatchReply, BatchRequest, check_items
from batchedmodel_contract.inference.batch_wire import (
    SHAPES,
    RegionGone,
    answer_room,
    to_request,
    write_reply,
)
from batchedmodel_contract.inference.params import Param, columns, read_values
from batchedmodel_contract.inference.ragged import Ragged
from batchedmodel_contract.inference.tensors import Buffer, Tensor
from batchedmodel_contract.inference.v2 import HEADER_LENGTH, read_body, read_options, write_answer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.processes.server_api import AT_WORK
from batchedmodel_http.response import Response
from batchedmodel_model_server.errors import (
    CannotLoad,
    DeviceLost,
    NotReady,
    Overloaded,
    RowFailed,
    TooSlow,
    UnknownModel,
    legible,
)
from batchedmodel_model_server.execution.torch_errors import words
from batchedmodel_model_server.http.shared_regions import Placing, Regions
from batchedmodel_model_server.lifecycle.service import ModelService

_LARGE: Final = 4 << 20
BODY_SECONDS: Final = 30.0
"""A body has so long from its head on: a gigabyte takes a second over this socket."""
_JSON: Final = "application/json"
_BINARY: Final = "application/octet-stream"
_STATUSES: Final[dict[type[Exception], int]] = {
    RegionGone: 503,  # it was sent before the other side noticed, so its rows are sent again
    InvalidInput: 400,
    CannotLoad: 400,
    UnknownModel: 404,
    TooSlow: 408,
    NotReady: 503,
    Overloaded: 503,
    DeviceLost: 503,
}
_log = logging.getLogger(__name__)


async def arrived(request: web.Request) -> bytes:
    """The whole of a body; raises `TooSlow`. Needs a task of its own."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError as error:
        raise TooSlow(f"the body did not arrive within {BODY_SECONDS:g} s") from error


async def infer(
    service: ModelService,
    version: str | None,
    header_length: str | None,
    source: web.Request | bytes,
    regions: Regions,
    *,
    packed: bool,
    packs: bool,
) -> Response:
    """The answer to a batch, or to a plain request, whose body is the source or yet to arrive.

    `header_length`: the header of that name; `regions`: the memory that callers share; `packed`:
    whether it is a packed batch; `packs`: whether the reply may be packed. Raises what
    `ModelService.admitted`, `arrived`, `read_body` and `Runner.run` do.
    """
    with service.admitted(version) as runner:
        described = service.of(version).description
        body = source if isinstance(source, bytes) else await arrived(source)
        if packed:
            return _replied(await runner.run(packed_form.read_batch(body)), packs=packs)
        head, tensors = read_body(body, header_length, "inputs", orjson.loads)
        if is_batch(tensors):
            batch = to_request(head, tensors, regions.rows)
            placing = regions.placing(answer_room(head))
            reply = await runner.run(batch)
            if placing is None:
                return _replied(reply, packs=packs)
            if sum(output.size for output in reply.outputs) > _LARGE:
                # To copy it would stop the loop.
                return _response(*await asyncio.to_thread(_placed, reply, placing))
            return _response(*_placed(reply, placing))
        outputs = [spec.name for spec in described.outputs]
        options = read_options(head, outputs, described.params)
        items = rows_as_items(tensors, head.get("parameters"), described.params)
        reply = await runner.run(items)
    answer = {"model_name": service.name, "model_version": described.version}
    if options.id is not None:
        answer["id"] = options.id
    rows = items_as_rows(reply, options.selects)
    return _response(*write_answer(answer, rows, options.wants_binary, orjson.dumps))


def _replied(reply: BatchReply, *, packs: bool) -> Response:
    if packs and packed_form.can_pack_reply(reply):
        return Response(packed_form.write_reply(reply), packed_form.PACKED)
    return _response(*write_reply(reply, orjson.dumps))


def _placed(reply: BatchReply, placing: Placing) -> tuple[int, list[Buffer]]:
    with placing as place:
        return write_reply(reply, orjson.dumps, place)


def _response(head_length: int | None, parts: list[Buffer]) -> Response:
    if head_length is None:
        return Response(parts, _JSON)
    return Response(parts, _BINARY, headers=((HEADER_LENGTH, str(head_length)),))


def is_batch(tensors: Sequence[Tensor]) -> bool:
    """Whether the request speaks the batch extension."""
    return any(tensor.name.endswith(SHAPES) for tensor in tensors)


def rows_as_items(
    tensors: Sequence[Tensor],
    parameters: Mapping[str, Any] | None = None,
    known: Mapping[str, Param] | None = None,
) -> BatchRequest:
    """Each row of the tensors as one item; raises `InvalidInput`.

    What the request's `parameters` set of the `known` ones holds for each of its items.
    """
    inputs = []
    for tensor in tensors:
        if not tensor.shape or tensor.elements == 0:
            # Rows that hold nothing are refused too: a few bytes could claim billions of them.
            rule = "has no rows that hold a value; the first dimension counts rows"
            raise InvalidInput(tensor.name, rule, tensor.shape)
        count, inner = tensor.shape[0], tensor.shape[1:]
        check_items(tensor.name, count)
        inputs.append(
            Ragged(
                name=tensor.name,
                datatype=tensor.datatype,
                shapes=(inner,) * count,
                parts=(tensor.data,),
            )
        )
    values = read_values(parameters, known or {})
    sent = columns([values] * len(inputs[0].shapes), known) if known and values else ()
    return BatchRequest(inputs=tuple(inputs), params=sent)


def items_as_rows(reply: BatchReply, selects: Callable[[str], bool]) -> list[Tensor]:
    """The selected outputs as rectangular tensors; raises `RowFailed`, `InvalidInput`."""
    for row, status in enumerate(reply.statuses):
        if status != OK:
            raise RowFailed(status, f"row {row}: {reply.errors[row]}")
    tensors = []
    for output in reply.outputs:
        if not selects(output.name):
            continue
        if len(set(output.shapes)) > 1:
            rule = "differs in shape from row to row; ask for the rows one by one"
            raise InvalidInput(output.name, rule)
        tensors.append(
            Tensor(
                name=output.name,
                datatype=output.datatype,
                shape=(len(output.shapes), *output.shapes[0]),
                data=output.data,
            )
        )
    return tensors


def failure(error: BaseException, asked: str) -> Response:
    """The answer to a request, named by its method and path, that ended with this error."""
    if isinstance(error, RowFailed):
        return told(error.status, str(error))
    for kind, status in _STATUSES.items():
        # By kind and not by exact type: a subclass is one of these, too.
        if isinstance(error, kind):
            answer = told(status, str(error))
            return answer.with_header(AT_WORK, "lost") if kind is DeviceLost else answer
    _log.error("%s failed", asked, exc_info=error)
    return told(500, words(error))


def told(status: int, message: str) -> Response:
    """An error's answer."""
    return Response((orjson.dumps({"error": legible(message)}),), status=status)
