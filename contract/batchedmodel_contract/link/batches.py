"""Batches and their replies as the contents of frames: numbers in columns, then the data.

Each tensor's items are concatenated, never padded; the sizes of all items stand beside it. Items of
a batch may lie in memory that both ends see: then the tensor has places, a pair for each item
(where it begins, or -1 for one that is in the content, and how many bytes it has). Readers raise
`InvalidInput` for what contradicts itself. Compiled: one of each is written and read per batch.
"""

import math
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from batchedmodel_contract.inference.batch import (
    OK,
    BatchFailure,
    BatchReply,
    BatchRequest,
    Ragged,
    check_items,
)
from batchedmodel_contract.inference.tensors import (
    Buffer,
    Datatype,
    Shape,
    Tensor,
    join_byte_elements,
    split_byte_elements,
)
from batchedmodel_contract.invalid_input import InvalidInput

Place = Callable[[Buffer], int | None]
"""Where in the shared memory these bytes begin; None where they must be in the content."""

_BATCH: Final = struct.Struct("<IHHBxHQ16x")
"""Items, inputs, parameters, whether adapters follow, bytes of the version's name, one more than
the microseconds for which the batch is wanted (0: for ever), 16 bytes without a meaning."""
_REPLY: Final = struct.Struct("<IHBxQQQQQQI")
"""Items, outputs, whether statuses and errors follow, microseconds of the passes and before them,
tokens, padded tokens, passes, one more than the largest cost (0: not known), long rows."""
_TENSOR: Final = struct.Struct("<BBHBxxxQ")
"""Datatype, rank, bytes of the name, whether places follow, bytes of the data in the content. The
name follows, then the sizes of all items, then the places. The data of all tensors comes last."""
_FAILURE: Final = struct.Struct("<HB")
_SIZE: Final = 8
_MICRO: Final = 1e6
_MOST: Final = 2**63 - 1
_MOST_TENSORS: Final = 1024
_MAX_RANK: Final = 16
_ELSEWHERE: Final = -1
"""In a place: the item is in the content."""
_DATATYPES: Final = tuple(Datatype)
_CODES: Final = {datatype: code for code, datatype in enumerate(_DATATYPES)}
_BROKEN: Final = (struct.error, UnicodeDecodeError, IndexError)


def write_batch(batch: BatchRequest, place: Place | None = None) -> list[Buffer]:
    """The parts of a frame, without what lies in the shared memory."""
    wanted = batch.wanted_seconds
    version = (batch.version or "").encode()
    items = len(batch.inputs[0].shapes)
    params = [Ragged(one.name, one.datatype, ((),) * items, (one.data,)) for one in batch.params]
    head = _BATCH.pack(
        items,
        len(batch.inputs),
        len(params),
        bool(batch.adapters),
        len(version),
        0 if wanted is None else 1 + max(0, round(wanted * _MICRO)),
    )
    adapters = array("i", batch.adapters).tobytes()
    return [head, version, adapters, *_written((*batch.inputs, *params), place)]


def read_batch(content: memoryview, shared: Buffer | None = None) -> BatchRequest:
    """What `write_batch` wrote. `shared`: the memory in which items may lie."""
    try:
        items, inputs, params, adapted, named, wanted = _BATCH.unpack_from(content)
        check_items("batch", items)
        position = _BATCH.size + named
        version = str(content[_BATCH.size : position], "utf-8") or None
        adapters: tuple[int, ...] = ()
        if adapted:
            adapters, position = _column(content, position, items)
            if min(adapters, default=0) < 0:
                raise InvalidInput("adapters", "has a negative number", min(adapters))
        tensors = _read(content, position, items, inputs + params, shared)
    except _BROKEN as error:
        raise InvalidInput("batch", f"cannot be read: {error}") from error
    return BatchRequest(
        inputs=tensors[:inputs],
        params=tuple([_param(one, items) for one in tensors[inputs:]]),
        wanted_seconds=(wanted - 1) / _MICRO if wanted else None,
        version=version,
        adapters=adapters if any(adapters) else (),
    )


def _column(content: memoryview, position: int, items: int) -> tuple[tuple[int, ...], int]:
    """One INT32 for each item, and where what follows begins."""
    end = position + 4 * items
    if end > len(content):
        raise InvalidInput("content", f"ends inside a column of {items} numbers")
    return tuple(array("i", bytes(content[position:end]))), end


def _param(tensor: Ragged, items: int) -> Tensor:
    if tensor.shapes and tensor.shapes[0]:
        raise InvalidInput(tensor.name, "is not one value for each item", tensor.shapes[0])
    return Tensor(tensor.name, tensor.datatype, (items,), tensor.data)


def write_reply(reply: BatchReply) -> list[Buffer]:
    """The parts of a frame."""
    items = len(reply.statuses)
    whole = reply.statuses.count(OK) == items
    head = _REPLY.pack(
        items,
        len(reply.outputs),
        not whole,
        round(reply.compute_seconds * _MICRO),
        round(reply.queue_seconds * _MICRO),
        reply.tokens,
        reply.padded_tokens,
        reply.passes,
        0 if reply.max_cost is None else reply.max_cost + 1,
        reply.long_rows,
    )
    parts: list[Buffer] = [head]
    if not whole:
        errors = join_byte_elements(error.encode(errors="replace") for error in reply.errors)
        statuses = array("i", reply.statuses).tobytes()
        parts += [statuses, struct.pack("<Q", len(errors)), errors]
    return [*parts, *_written(reply.outputs, None)]


def read_reply(content: memoryview) -> BatchReply:
    """What `write_reply` wrote."""
    try:
        (
            items, outputs, failed, compute, queue, tokens, padded, passes, cost, long_rows
        ) = _REPLY.unpack_from(content)  # fmt: skip
        check_items("reply", items)
        if max(compute, queue, tokens, padded, passes, cost) > _MOST:
            raise InvalidInput("reply", "has a number above 2^63")
        position = _REPLY.size
        statuses, errors = (OK,) * items, ("",) * items
        if failed:
            statuses, errors, position = _statuses(content, position, items)
        tensors = _read(content, position, items, outputs, None)
    except _BROKEN as error:
        raise InvalidInput("reply", f"cannot be read: {error}") from error
    return BatchReply(
        outputs=tensors,
        statuses=statuses,
        errors=errors,
        compute_seconds=compute / _MICRO,
        queue_seconds=queue / _MICRO,
        tokens=tokens,
        padded_tokens=padded,
        passes=passes,
        max_cost=max(1, cost - 1) if cost else None,
        long_rows=long_rows,
    )


def _statuses(
    content: memoryview, position: int, items: int
) -> tuple[tuple[int, ...], tuple[str, ...], int]:
    statuses, end = _column(content, position, items)
    for status in statuses:
        if status != OK and not 400 <= status <= 599:
            raise InvalidInput("status", f"is neither {OK} nor the status of an error", status)
    (size,) = struct.unpack_from("<Q", content, end)
    position, end = end + _SIZE, end + _SIZE + size
    errors = split_byte_elements(content[position:end])
    if len(errors) != items or end > len(content):
        raise InvalidInput("status", "is not one for each item")
    return statuses, tuple([str(error, "utf-8", "replace") for error in errors]), end


def write_failure(failure: BatchFailure) -> list[Buffer]:
    """The parts of a FAILED frame."""
    message = failure.message.encode(errors="replace")
    return [_FAILURE.pack(failure.status, failure.at_work), message]


def read_failure(content: memoryview) -> BatchFailure:
    """What `write_failure` wrote."""
    try:
        status, at_work = _FAILURE.unpack_from(content)
    except struct.error as error:
        raise InvalidInput("failure", f"cannot be read: {error}") from error
    message = str(content[_FAILURE.size :], "utf-8", "replace")
    return BatchFailure(status=status, message=message, at_work=bool(at_work))


def _written(tensors: Sequence[Ragged], place: Place | None) -> list[Buffer]:
    heads: list[Buffer] = []
    data: list[Buffer] = []
    for one in tensors:
        parts, places = one.parts, b""
        if place is not None and len(parts) == len(one.shapes):
            found = [place(part) for part in parts]
            if any(start is not None for start in found):
                numbers = array("q")
                for start, part in zip(found, parts, strict=True):
                    numbers.extend((_ELSEWHERE if start is None else start, len(part)))
                places = numbers.tobytes()
                parts = tuple(
                    [part for start, part in zip(found, parts, strict=True) if start is None]
                )
        name, rank = one.name.encode(), len(one.shapes[0]) if one.shapes else 0
        size = sum(map(len, parts))
        head = _TENSOR.pack(_CODES[one.datatype], rank, len(name), bool(places), size)
        sizes = array("q", [size for shape in one.shapes for size in shape]).tobytes()
        heads.append(b"".join((head, name, sizes, places)))
        data += parts
    return heads + data


class _TensorHead(NamedTuple):
    name: str
    datatype: Datatype
    shapes: tuple[Shape, ...]
    places: list[int]
    size: int
    """Bytes of the data in the content."""


def _read(
    content: memoryview, position: int, items: int, count: int, shared: Buffer | None
) -> tuple[Ragged, ...]:
    if not 0 < count <= _MOST_TENSORS:
        raise InvalidInput("tensors", f"are not 1 to {_MOST_TENSORS}", count)
    heads: list[_TensorHead] = []
    for _ in range(count):
        head, position = _tensor_head(content, position, items)
        heads.append(head)
    tensors: list[Ragged] = []
    for head in heads:
        end = position + head.size
        if end > len(content):
            raise InvalidInput(head.name, "leads past the end of the content", head.size)
        data = content[position:end]
        position = end
        if head.places:
            parts = _placed(head, data, shared)
            tensors.append(Ragged(head.name, head.datatype, head.shapes, parts, shared=True))
            continue
        each = head.datatype.size
        if each and len(data) != each * sum([math.prod(shape) for shape in head.shapes]):
            raise InvalidInput(head.name, "has another size than its shapes", len(data))
        tensors.append(Ragged(head.name, head.datatype, head.shapes, (data,)))
    if position != len(content):
        raise InvalidInput("content", f"has {len(content) - position} bytes that no tensor claims")
    return tuple(tensors)


def _tensor_head(content: memoryview, position: int, items: int) -> tuple[_TensorHead, int]:
    code, rank, named, placed, size = _TENSOR.unpack_from(content, position)
    position += _TENSOR.size
    name = str(content[position : position + named], "utf-8")
    position += named
    end = position + _SIZE * rank * items
    last = end + (2 * _SIZE * items if placed else 0)
    if rank > _MAX_RANK or last > len(content):
        raise InvalidInput(name, "has no room for the sizes of its items")
    flat = array("q", bytes(content[position:end])).tolist()
    if flat and min(flat) < 0:
        raise InvalidInput(name, "has a negative size")
    if rank == 1:
        shapes: tuple[Shape, ...] = tuple([(size,) for size in flat])
    else:
        shapes = tuple([tuple(flat[row * rank : (row + 1) * rank]) for row in range(items)])
    places = array("q", bytes(content[end:last])).tolist() if placed else []
    return _TensorHead(name, _DATATYPES[code], shapes, places, size), last


def _placed(head: _TensorHead, data: memoryview, shared: Buffer | None) -> tuple[Buffer, ...]:
    """The bytes of each item, of which some lie in the shared memory and the rest in the data."""
    if shared is None:
        raise InvalidInput(head.name, "names places in memory that is not shared here")
    region, each, position = memoryview(shared), head.datatype.size, 0
    if sum(head.places[1::2]) > len(region) + len(data):
        # Items are copied before they are judged, and several may name the same bytes.
        raise InvalidInput(head.name, f"names more bytes than the memory's {len(region)}")
    parts: list[Buffer] = []
    for index, shape in enumerate(head.shapes):
        start, size = head.places[2 * index], head.places[2 * index + 1]
        if size < 0 or (each and size != math.prod(shape) * each):
            raise InvalidInput(head.name, f"gives item {index} another size than its shape", size)
        if start == _ELSEWHERE:
            if position + size > len(data):
                raise InvalidInput(head.name, f"leads past the data at item {index}", size)
            parts.append(data[position : position + size])
            position += size
        elif 0 <= start <= len(region) - size:
            parts.append(region[start : start + size])
        else:
            rule = f"leads out of the shared memory's {len(region)} bytes at item {index}"
            raise InvalidInput(head.name, rule, start)
    if position != len(data):
        raise InvalidInput(head.name, f"leaves {len(data) - position} bytes of the data unused")
    return tuple(parts)
