"""Plain batches and their replies as packed records: what `batch_wire` says, without JSON.

A head of JSON is made of dozens of objects and read with as many checks, which a lone caller waits
for beside the device. Here a head is a few numbers. A batch whose items have parameters or adapters
or lie in shared memory, and a reply with a failed item, travel as `batch_wire` writes them.

The proxy asks for packed replies in each request. A server that gives one reads packed batches.
"""

import math
import struct
from array import array
from typing import Final

from batchedmodel_contract.inference.batch import OK, BatchReply, BatchRequest, check_items
from batchedmodel_contract.inference.batch_wire import (
    SharedRows,
)
from batchedmodel_contract.inference.ragged import Ragged
from batchedmodel_contract.inference.tensors import Buffer, Datatype, Shape
from batchedmodel_contract.invalid_input import InvalidInput

PACKED: Final = "application/x-batchedmodel-packed"
"""The content type of both, by which a reply is also asked for."""
_BATCH: Final = struct.Struct("<IIQ")
"""Items, inputs, and one more than the microseconds for which it is wanted, 0 where not told."""
_REPLY: Final = struct.Struct("<IIQQQQQQ")
"""Items, outputs, microseconds of the passes and before them, tokens, padded ones, passes, and one
more than the largest cost, 0 where none is told."""
_TENSOR: Final = struct.Struct("<BBHIQ")
"""Datatype, rank, bytes of the name, nothing, bytes of the data. The name follows, then the sizes
of all items. Behind the last of these comes the data of all tensors."""
_SIZE: Final = 8
_DATATYPES: Final = tuple(Datatype)
_CODES: Final = {datatype: code for code, datatype in enumerate(_DATATYPES)}
_MICRO: Final = 1e6
_MOST: Final = 2**63 - 1
_MOST_TENSORS: Final = 1024
_MAX_RANK: Final = 16


def can_pack_batch(batch: BatchRequest, shared: SharedRows | None) -> bool:
    """Whether it has no parameters nor adapters, and no item in the memory which both see."""
    if batch.params or batch.adapters:
        return False
    if shared is None:
        return True
    return all(shared.place(part) is None for tensor in batch.inputs for part in tensor.parts)


def can_pack_reply(reply: BatchReply) -> bool:
    """Whether no item of it has failed, and none ran too long beside texts."""
    return not reply.long_rows and reply.statuses.count(OK) == len(reply.statuses)


def write_batch(batch: BatchRequest) -> list[Buffer]:
    """The parts of the body."""
    wanted = batch.wanted_seconds
    told = 0 if wanted is None else 1 + max(0, round(wanted * _MICRO))
    items = len(batch.inputs[0].shapes)
    return [_BATCH.pack(items, len(batch.inputs), told), *_written(batch.inputs)]


def write_reply(reply: BatchReply) -> list[Buffer]:
    """The parts of the body."""
    head = _REPLY.pack(
        len(reply.statuses),
        len(reply.outputs),
        round(reply.compute_seconds * _MICRO),
        round(reply.queue_seconds * _MICRO),
        reply.tokens,
        reply.padded_tokens,
        reply.passes,
        0 if reply.max_cost is None else reply.max_cost + 1,
    )
    return [head, *_written(reply.outputs)]


def read_batch(body: Buffer) -> BatchRequest:
    """The batch in a body; raises `InvalidInput` when it contradicts itself."""
    try:
        items, inputs, wanted = _BATCH.unpack_from(body)
        return BatchRequest(
            inputs=_read(memoryview(body), _BATCH.size, items, inputs),
            wanted_seconds=(wanted - 1) / _MICRO if wanted else None,
        )
    except _BROKEN as error:
        raise InvalidInput("body", f"is no packed batch: {error}") from error


def read_reply(body: Buffer) -> BatchReply:
    """The reply in a body; raises `InvalidInput` when it contradicts itself."""
    try:
        items, outputs, compute, queue, tokens, padded, passes, cost = _REPLY.unpack_from(body)
        if max(compute, queue, tokens, padded, passes, cost) > _MOST:
            raise InvalidInput("body", "has a number above 2^63")
        return BatchReply(
            outputs=_read(memoryview(body), _REPLY.size, items, outputs),
            statuses=(OK,) * items,
            errors=("",) * items,
            compute_seconds=compute / _MICRO,
            queue_seconds=queue / _MICRO,
            tokens=tokens,
            padded_tokens=padded,
            passes=passes,
            max_cost=max(1, cost - 1) if cost else None,
        )
    except _BROKEN as error:
        raise InvalidInput("body", f"is no packed reply: {error}") from error


_BROKEN: Final = (struct.error, UnicodeDecodeError, IndexError)


def _written(tensors: tuple[Ragged, ...]) -> list[Buffer]:
    heads: list[Buffer] = []
    for one in tensors:
        name, rank = one.name.encode(), len(one.shapes[0]) if one.shapes else 0
        size = sum(map(len, one.parts))
        heads.append(_TENSOR.pack(_CODES[one.datatype], rank, len(name), 0, size) + name)
        heads.append(array("q", [size for shape in one.shapes for size in shape]).tobytes())
    for one in tensors:
        heads += one.parts
    return heads


def _read(body: memoryview, position: int, items: int, count: int) -> tuple[Ragged, ...]:
    # Empty items cost no bytes and could be any number.
    check_items("body", items)
    if not 0 < count <= _MOST_TENSORS:
        raise InvalidInput("body", "must have 1 to 1024 tensors", count)
    heads: list[tuple[str, Datatype, tuple[Shape, ...], int]] = []
    for _ in range(count):
        code, rank, named, _, size = _TENSOR.unpack_from(body, position)
        position += _TENSOR.size
        name = str(body[position : position + named], "utf-8")
        position += named
        end = position + _SIZE * rank * items
        if rank > _MAX_RANK or end > len(body):
            raise InvalidInput(name, "has no room for the sizes of its items")
        shapes = _shapes(name, body[position:end], items, rank)
        position = end
        heads.append((name, _DATATYPES[code], shapes, size))
    if len({name for name, _, _, _ in heads}) != count:
        raise InvalidInput("body", "names a tensor twice")
    tensors: list[Ragged] = []
    for name, datatype, shapes, size in heads:
        if size > len(body) - position:
            raise InvalidInput(name, "leads past the end of the body", size)
        each = datatype.size
        if each and size != each * sum([math.prod(shape) for shape in shapes]):
            raise InvalidInput(name, "has another size than its shapes", size)
        tensors.append(Ragged(name, datatype, shapes, (body[position : position + size],)))
        position += size
    if position != len(body):
        raise InvalidInput("body", f"has {len(body) - position} bytes that no tensor claims")
    return tuple(tensors)


def _shapes(name: str, sizes: memoryview, items: int, rank: int) -> tuple[Shape, ...]:
    flat = array("q", bytes(sizes)).tolist()
    if flat and min(flat) < 0:
        raise InvalidInput(name, "has a negative size")
    if rank == 1:
        return tuple([(size,) for size in flat])
    return tuple([tuple(flat[row * rank : (row + 1) * rank]) for row in range(items)])
