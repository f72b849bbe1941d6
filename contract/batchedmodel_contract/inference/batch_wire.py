"""The batch extension: one v2 body that carries a whole batch of items of differing shapes.

Spoken between the sidecar and our model server only. Each tensor's items are concatenated, never
padded; beside ``<name>`` travels ``<name>:shapes`` (INT64, items x rank). A parameter that
items' requests set travels as ``<name>:parameter``, one value for each item; their adapters travel
as ``:adapters`` (INT32, one number per item, 0 for none). Items that lie in memory which both see
stay there: ``<name>:shared`` says where. So do items of the answer, in room that the request names.
The answer adds ``:status`` (INT32, one HTTP status per item) and ``:error`` (BYTES), so that one
failed item stays inside a 200 answer and inside the standard's rule that parameters are scalars.
"""

import json
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchedmodel_contract.inference.batch import OK, BatchReply, BatchRequest, check_items
from batchedmodel_contract.inference.ragged import Ragged
from batchedmodel_contract.inference.tensors import (
    Buffer,
    Datatype,
    Scattered,
    Tensor,
    join_byte_elements,
    split_byte_elements,
)
from batchedmodel_contract.inference.v2 import Dumps, Loads, read_body, write_body
from batchedmodel_contract.invalid_input import InvalidInput

EXTENSION: Final = "batchedmodel.batch"
"""How a server says in its v2 metadata that it speaks this."""

SHAPES: Final = ":shapes"
PARAMETER: Final = ":parameter"
SHARED: Final = ":shared"
ADAPTERS: Final = ":adapters"
STATUS: Final = ":status"
ERROR: Final = ":error"
_WANTED: Final = "wanted_us"
_REGION: Final = "region"
_ANSWER_REGION: Final = "answer_region"
_ANSWER_NUMBER: Final = "answer_number"
_ANSWER_START: Final = "answer_start"
_ANSWER_SIZE: Final = "answer_size"
_ELSEWHERE: Final = -1
"""Where an item lies that travels in the body."""
_LARGEST_NUMBER: Final = 2.0**63  # refuses infinity and NaN as well
_MAX_RANK: Final = 16


def _dumps(head: Any) -> bytes:
    return json.dumps(head, separators=(",", ":")).encode()


class RegionGone(InvalidInput):
    """A batch refers to shared memory that is not known here, or not any more."""


class SharedRows(NamedTuple):
    """Memory in which items may lie that need not travel."""

    region: str
    """By which the server knows it."""
    place: Callable[[Buffer], int | None]
    """Where in it these bytes begin; None where they lie elsewhere."""


class AnswerRoom(NamedTuple):
    """Memory in which a server may put items of its answer, instead of sending them."""

    region: str
    number: int
    """No other room of the region ever has it; see `shared_region`."""
    start: int
    size: int
    """In bytes."""


def write_request(
    request: BatchRequest,
    dumps: Dumps = _dumps,
    shared: SharedRows | None = None,
    room: AnswerRoom | None = None,
) -> tuple[int, list[Buffer]]:
    """Length of the JSON head and the body's parts, without what lies in the shared memory."""
    tensors = flattened(request.inputs, None if shared is None else shared.place)
    parameters: dict[str, Any] = {}
    if request.wanted_seconds is not None:
        parameters[_WANTED] = max(0, round(request.wanted_seconds * 1e6))
    if shared is not None and any(tensor.name.endswith(SHARED) for tensor in tensors):
        parameters[_REGION] = shared.region
    if room is not None:
        parameters[_ANSWER_REGION], parameters[_ANSWER_NUMBER] = room.region, room.number
        parameters[_ANSWER_START], parameters[_ANSWER_SIZE] = room.start, room.size
    for param in request.params:
        tensors.append(param._replace(name=param.name + PARAMETER))
    if request.adapters:
        numbers = array("i", request.adapters).tobytes()
        tensors.append(Tensor(ADAPTERS, Datatype.INT32, (len(request.adapters),), numbers))
    return write_body({"parameters": parameters} if parameters else {}, tensors, "inputs", dumps)


def to_request(
    head: dict[str, Any], tensors: Sequence[Tensor], regions: Mapping[str, Buffer] | None = None
) -> BatchRequest:
    """The batch in a body that was read already; raises `InvalidInput`.

    Its items are counted first, for empty items cost no bytes and could be any number. `regions`:
    the shared memory by its names; raises `RegionGone` where it lacks the one that is named.
    """
    for tensor in tensors:
        if tensor.name.endswith(SHAPES) and tensor.shape:
            check_items(tensor.name, tensor.shape[0])
    parameters = head.get("parameters")
    told = parameters if isinstance(parameters, dict) else {}
    memory: Buffer | None = None
    if _REGION in told:
        region = told[_REGION]
        memory = (regions or {}).get(region) if isinstance(region, str) else None
        if memory is None:
            raise RegionGone(f"parameters.{_REGION}", "is no shared memory known here", region)
    adapters = [tensor for tensor in tensors if tensor.name == ADAPTERS]
    tensors = [tensor for tensor in tensors if tensor.name != ADAPTERS]
    inputs = _ragged([one for one in tensors if not one.name.endswith(PARAMETER)], memory)
    params = [tensor for tensor in tensors if tensor.name.endswith(PARAMETER)]
    for param in params:
        if param.shape != (len(inputs[0].shapes),):
            raise InvalidInput(param.name, "is not one value for each item", param.shape)
    return BatchRequest(
        inputs=inputs,
        params=tuple(one._replace(name=one.name.removesuffix(PARAMETER)) for one in params),
        wanted_seconds=_number(head, _WANTED) / 1e6 if _WANTED in told else None,
        adapters=_adapters(adapters[0], len(inputs[0].shapes)) if adapters else (),
    )


def _adapters(told: Tensor, items: int) -> tuple[int, ...]:
    if told.datatype is not Datatype.INT32 or told.shape != (items,):
        raise InvalidInput(ADAPTERS, "is not INT32, one number for each item", told.shape)
    numbers = tuple(array("i", bytes(told.data)))
    if min(numbers, default=0) < 0:
        raise InvalidInput(ADAPTERS, "has a negative number", min(numbers))
    return numbers if any(numbers) else ()


def answer_room(head: dict[str, Any]) -> AnswerRoom | None:
    """The room that a request has for its answer, if it names any; raises `InvalidInput`."""
    parameters = head.get("parameters")
    region = parameters.get(_ANSWER_REGION) if isinstance(parameters, dict) else None
    if not isinstance(region, str):
        return None
    number, start, size = (
        int(_number(head, name)) for name in (_ANSWER_NUMBER, _ANSWER_START, _ANSWER_SIZE)
    )
    return AnswerRoom(region, number, start, size)


def write_reply(
    reply: BatchReply, dumps: Dumps = _dumps, place: Callable[[Buffer], int | None] | None = None
) -> tuple[int, list[Buffer]]:
    """Length of the JSON head and the body's parts.

    `place` puts an item's bytes where the caller sees them, and says where in the room for the
    answer that is; None where they must be sent.
    """
    count = (len(reply.statuses),)
    parameters = {
        "compute_us": round(reply.compute_seconds * 1e6),
        "queue_us": round(reply.queue_seconds * 1e6),
        "tokens": reply.tokens,
        "padded_tokens": reply.padded_tokens,
        "passes": reply.passes,
    }
    if reply.max_cost is not None:
        parameters["max_cost"] = reply.max_cost
    if reply.long_rows:
        parameters["long_rows"] = reply.long_rows
    errors = (error.encode(errors="replace") for error in reply.errors)
    settled = [
        Tensor(STATUS, Datatype.INT32, count, array("i", reply.statuses).tobytes()),
        Tensor(ERROR, Datatype.BYTES, count, join_byte_elements(errors)),
    ]
    outputs: list[Tensor | Scattered] = []
    for output in reply.outputs:
        if place is None or output.datatype is Datatype.BYTES:
            outputs += flattened((output,))
        else:
            outputs += flattened((output._replace(parts=tuple(output.items())),), place)
    return write_body({"parameters": parameters}, [*outputs, *settled], "outputs", dumps)


def read_reply(
    body: Buffer,
    header_length: str | None,
    loads: Loads = json.loads,
    room: Buffer | None = None,
) -> BatchReply:
    """The reply in an answer's body; raises `InvalidInput` when it contradicts itself.

    `room`: where the server may have put items.
    """
    head, tensors = read_body(body, header_length, "outputs", loads)
    named = {tensor.name: tensor for tensor in tensors}
    if STATUS not in named or ERROR not in named:
        raise InvalidInput("outputs", f"lacks {STATUS} or {ERROR}")
    for name, datatype in ((STATUS, Datatype.INT32), (ERROR, Datatype.BYTES)):
        if named[name].datatype is not datatype:
            raise InvalidInput(name, f"is not {datatype}", named[name].datatype)
    statuses = array("i", bytes(named[STATUS].data))
    for status in statuses:
        if status != OK and not 400 <= status <= 599:
            raise InvalidInput(STATUS, f"is neither {OK} nor the status of an error", status)
    errors = split_byte_elements(named[ERROR].data)
    outputs = _ragged([tensor for tensor in tensors if tensor.name not in (STATUS, ERROR)], room)
    # A server that changes its answers afterwards harms nobody but those that it answers.
    outputs = tuple(output._replace(shared=False) for output in outputs)
    counts = {len(statuses), len(errors), *(len(output.shapes) for output in outputs)}
    if len(counts) != 1:
        raise InvalidInput("outputs", f"disagree about the number of items: {sorted(counts)}")
    parameters = head.get("parameters") or ()
    return BatchReply(
        outputs=outputs,
        statuses=tuple(statuses),
        errors=tuple(str(error, "utf-8", "replace") for error in errors),
        compute_seconds=_number(head, "compute_us") / 1e6,
        queue_seconds=_number(head, "queue_us") / 1e6,
        tokens=int(_number(head, "tokens")),
        padded_tokens=int(_number(head, "padded_tokens")),
        passes=int(_number(head, "passes")),
        max_cost=max(1, int(_number(head, "max_cost"))) if "max_cost" in parameters else None,
        long_rows=int(_number(head, "long_rows")) if "long_rows" in parameters else 0,
    )


def _number(head: dict[str, Any], name: str) -> float:
    parameters = head.get("parameters")
    value = parameters.get(name) if isinstance(parameters, dict) else None
    is_bool = isinstance(value, bool)
    if isinstance(value, int | float) and not is_bool and 0 <= value <= _LARGEST_NUMBER:
        return float(value)
    raise InvalidInput(f"parameters.{name}", "is not a number from 0 to 2^63", value)


def flattened(
    tensors: Sequence[Ragged], place: Callable[[Buffer], int | None] | None = None
) -> list[Tensor | Scattered]:
    """Each tensor as it travels: its data flat, its shapes in a tensor beside it.

    What `place` finds in shared memory stays there, and another tensor says where.
    """
    flat: list[Tensor | Scattered] = []
    for tensor in tensors:
        count, rank = len(tensor.shapes), len(tensor.shapes[0]) if tensor.shapes else 0
        elements = [math.prod(shape) for shape in tensor.shapes]
        sizes = array("q", [size for shape in tensor.shapes for size in shape])
        parts = tensor.parts
        places: list[int | None] = []
        if place is not None and len(parts) == count:
            places = [place(part) for part in parts]
        if all(found is None for found in places):
            places = []
        else:
            kept = [index for index, found in enumerate(places) if found is None]
            parts = tuple(parts[index] for index in kept)
            elements = [elements[index] for index in kept]
        flat += [
            Scattered(tensor.name, tensor.datatype, (sum(elements),), parts),
            Tensor(tensor.name + SHAPES, Datatype.INT64, (count, rank), sizes.tobytes()),
        ]
        if places:
            where = array("q")
            for found, part in zip(places, tensor.parts, strict=True):
                where.extend((_ELSEWHERE if found is None else found, len(part)))
            name = tensor.name + SHARED
            flat.append(Tensor(name, Datatype.INT64, (count, 2), where.tobytes()))
    return flat


def _ragged(tensors: Sequence[Tensor], memory: Buffer | None = None) -> tuple[Ragged, ...]:
    shapes = {t.name: t for t in tensors if t.name.endswith(SHAPES)}
    shared = {t.name: t for t in tensors if t.name.endswith(SHARED)}
    if shared and memory is None:
        raise InvalidInput(next(iter(shared)), "names places in memory that is not shared here")
    found = []
    for tensor in tensors:
        if tensor.name.endswith((SHAPES, SHARED)):
            continue
        described = shapes.pop(tensor.name + SHAPES, None)
        if described is None:
            raise InvalidInput(tensor.name, f"travels without {tensor.name}{SHAPES}")
        placed = shared.pop(tensor.name + SHARED, None)
        one = _ragged_of(tensor, described, whole=placed is None)
        if placed is not None and memory is not None:
            one = one._replace(parts=_placed(one, placed, memory), shared=True)
        found.append(one)
    if shapes or shared:
        raise InvalidInput(next(iter({**shapes, **shared})), "describes a tensor that is not there")
    if len({len(one.shapes) for one in found}) > 1:
        raise InvalidInput("tensors", "disagree about the number of items")
    return tuple(found)


def _placed(tensor: Ragged, placed: Tensor, memory: Buffer) -> tuple[Buffer, ...]:
    """The bytes of each item, of which some lie in the memory and the rest came in the body."""
    count = len(tensor.shapes)
    if placed.datatype is not Datatype.INT64 or placed.shape != (count, 2):
        raise InvalidInput(placed.name, "is not INT64 of items x 2", placed.shape)
    numbers = array("q", bytes(placed.data)).tolist()
    sent, region = memoryview(tensor.data), memoryview(memory)
    each, position = tensor.datatype.size, 0
    parts: list[Buffer] = []
    if sum(numbers[1::2]) > len(region) + len(sent):
        # Items of requests are copied, and several may name the same bytes.
        raise InvalidInput(placed.name, f"names more bytes than the memory's {len(region)}")
    for index, shape in enumerate(tensor.shapes):
        start, size = numbers[2 * index], numbers[2 * index + 1]
        if size < 0 or (each and size != math.prod(shape) * each):
            raise InvalidInput(placed.name, f"gives item {index} another size than its shape", size)
        if start == _ELSEWHERE:
            if position + size > len(sent):
                raise InvalidInput(placed.name, f"leads past the data at item {index}", size)
            parts.append(sent[position : position + size])
            position += size
        elif 0 <= start <= len(region) - size:
            parts.append(region[start : start + size])
        else:
            rule = f"leads out of the shared memory's {len(region)} bytes at item {index}"
            raise InvalidInput(placed.name, rule, start)
    if position != len(sent):
        raise InvalidInput(placed.name, f"leaves {len(sent) - position} bytes of the data unused")
    return tuple(parts)


def _ragged_of(tensor: Tensor, described: Tensor, *, whole: bool) -> Ragged:
    """`whole`: all items' data is in the tensor."""
    if described.datatype is not Datatype.INT64 or len(described.shape) != 2:
        raise InvalidInput(described.name, "is not INT64 of items x rank")
    count, rank = described.shape
    # Without sizes the count alone claims items, as many as it likes.
    if rank > _MAX_RANK or (rank == 0 and whole and count != tensor.elements):
        rule = f"does not fit {tensor.elements} elements in items of rank 0 to {_MAX_RANK}"
        raise InvalidInput(described.name, rule, described.shape)
    sizes = array("q", bytes(described.data)).tolist()
    if any(size < 0 for size in sizes):
        raise InvalidInput(described.name, "has a negative size")
    shapes = tuple(tuple(sizes[row * rank : (row + 1) * rank]) for row in range(count))
    return Ragged(tensor.name, tensor.datatype, shapes, (tensor.data,))
