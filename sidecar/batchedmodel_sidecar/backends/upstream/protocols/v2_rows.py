"""Reads the tensors of a v2 body as rows, JSON or bytes, without a look at their values."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import orjson

from batchedmodel_contract.inference.tensors import (
    BINARY_SIZE,
    Buffer,
    Datatype,
    Shape,
    Tensor,
    bytes_to_values,
    rows,
    values_to_bytes,
)
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.backends.upstream.protocols.json_values import (
    Fields,
    Write,
    object_in,
    refuse_lists,
    texts,
)
from batchedmodel_sidecar.calls import Value
from batchedmodel_sidecar.errors import Unserved, refuse_many

_FLOATS: Final = {Datatype.FP32: "<f4", Datatype.FP64: "<f8"}
_OF_INPUTS: Final = frozenset({"name", "shape", "datatype", "parameters", "data"})
"""What is understood of an input; a request that says more of one is passed on as it came."""
_COMPOUND: Final = frozenset({list, dict})
MOST_TENSORS: Final = 256
"""Of a request that shares batches: each is an object of its own until the call is answered."""
_MOST_DIMENSIONS: Final = 64  # of any array library; to look at more would only cost time
_AT_ONCE: Final = 16_384
"""Numbers that are made into text together."""
_NOT_ITS_SHAPE: Final = "has other than its shape says"


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input of a request, without its rows."""

    name: str
    datatype: str
    parameters: Fields
    nested: bool
    """Whether its rows, as text, are arrays of their own."""


Columns = tuple[tuple[Input, ...], tuple[Shape, ...], list[list[Buffer]]]
"""Inputs, their shapes without batch dimension, and for each input its rows."""


def columns_of(
    listed: Any,
    tensors: Sequence[Tensor] | None,
    ranks: Mapping[str, int],
    most_rows: int,
    write: Write,
    *,
    binary: bool,
) -> Columns | None:
    """The inputs of a body; None when they have no rows in common.

    `tensors`: the same inputs, where the caller or the server, or both, use bytes. `ranks`: what is
    known of the model's inputs. `binary`: the rows are wanted as bytes. Raises `InvalidInput` for a
    tensor that cannot be understood, and `Rejected` for more than so many rows.
    """
    if not isinstance(listed, list) or len(listed) > MOST_TENSORS:
        return None
    if any(not isinstance(entry, dict) or not entry.keys() <= _OF_INPUTS for entry in listed):
        return None
    if tensors is None:
        shapes = [shape_of(entry.get("shape")) for entry in listed]
    else:
        shapes = [tensor.shape if tensor.elements else None for tensor in tensors]
    known = [shape for shape in shapes if shape]
    names = [name_of(entry, f"inputs[{index}]") for index, entry in enumerate(listed)]
    if len(known) != len(names) or not _have_rows(names, known, ranks, most_rows):
        return None
    inputs, columns = [], []
    for index, (name, entry, shape) in enumerate(zip(names, listed, known, strict=True)):
        parameters = object_in(entry.get("parameters"), f"inputs[{index}].parameters")
        data = entry.get("data")
        nested = tensors is None and is_nested(data, shape)
        if tensors is not None:
            parameters = {one: parameters[one] for one in parameters if one != BINARY_SIZE}
            column = rows(tensors[index])
            if not binary:
                column = [as_json(row, tensors[index].datatype, name) for row in column]
        elif is_block(data, shape):
            column = cut(data, shape, write)
        else:
            return None
        inputs.append(
            Input(
                name=name,
                datatype=datatype_of(entry, f"inputs[{index}]").value,
                parameters=tuple(sorted(texts(parameters, write))),
                nested=nested,
            )
        )
        columns.append(column)
    return tuple(inputs), tuple(shape[1:] for shape in known), columns


def _have_rows(
    names: Sequence[str], shapes: Sequence[Shape], ranks: Mapping[str, int], most_rows: int
) -> bool:
    """Whether the inputs have rows in common; raises `Rejected` for more than so many.

    Where a rank is another than the model's, the first dimension may not be what counts rows.
    """
    if not shapes or any(shape[0] != shapes[0][0] for shape in shapes):
        return False
    if any(ranks.get(*one) != one[1] for one in zip(names, map(len, shapes), strict=True)):
        return False
    refuse_many(shapes[0][0], most_rows)
    return True


def is_nested(data: Any, shape: Shape) -> bool:
    """Whether each row of this array is an array of its own."""
    return len(shape) > 1 and isinstance(data, list) and bool(data) and isinstance(data[0], list)


def is_block(data: Any, shape: Shape) -> bool:
    """Whether this array holds exactly the values of a shape, flat or nested as it says.

    A row that held more or fewer would move the values of others for a server that flattens what
    it is sent. What the values are is the server's matter.
    """
    if not isinstance(data, list) or len(shape) > _MOST_DIMENSIONS:
        return False
    level: list[Any] = [data]
    sizes = shape if is_nested(data, shape) else (math.prod(shape),)
    for size in sizes[:-1]:
        if any(not isinstance(one, list) or len(one) != size for one in level):
            return False
        level = list(chain.from_iterable(level))
    return all(
        isinstance(one, list) and len(one) == sizes[-1] and _COMPOUND.isdisjoint(map(type, one))
        for one in level
    )


def cut(data: list[Any], shape: Shape, write: Write) -> list[Buffer]:
    """The text of each row of an array that has the rows, or all the values, of a shape."""
    if len(shape) == 1 or is_nested(data, shape):
        return [write(row) for row in data]
    step = math.prod(shape[1:])
    return [write(data[at : at + step])[1:-1] for at in range(0, len(data), step)]


def name_of(entry: Mapping[str, Any], field: str) -> str:
    """The name of a tensor; raises `InvalidInput`."""
    name = entry.get("name")
    if not isinstance(name, str):
        raise InvalidInput(f"{field}.name", "is not a string")
    return name


def datatype_of(entry: Mapping[str, Any], field: str) -> Datatype:
    """The datatype of a tensor; raises `InvalidInput`."""
    try:
        return Datatype(str(entry.get("datatype")))
    except ValueError as error:
        raise InvalidInput(f"{field}.datatype", "is not a datatype of the protocol") from error


def shape_of(sizes: Any, smallest: int = 1) -> Shape | None:
    """A shape whose rows can be told apart; None for any other."""
    if not isinstance(sizes, list) or not sizes:
        return None
    if any(type(size) is not int or size < smallest for size in sizes):
        return None
    return tuple(sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputForm:
    """One output of an answer, without its rows."""

    name: str
    datatype: Datatype
    parameters: Fields
    binary: bool
    whole: Value | None = None
    """All of it, where it is for every row that was asked."""


def output_of(
    entry: Any,
    field: str,
    rows_asked: int,
    tensors: dict[str, Tensor],
    replicated: Collection[str],
    write: Write,
    *,
    alone: bool,
) -> tuple[OutputForm, list[Value] | None]:
    """One output and its rows; raises `InvalidInput` when they are not as many as were asked.

    One of the `replicated` has none. `alone`: the answer is one caller's.
    """
    if not isinstance(entry, dict):
        raise InvalidInput(field, "is not a JSON object")
    name = name_of(entry, field)
    parameters = dict(object_in(entry.get("parameters"), f"{field}.parameters"))
    size = parameters.pop(BINARY_SIZE, None)
    tensor = tensors.get(name)
    # Where no output has a byte, some servers send no binary part.
    if size and tensor is None:
        rule = "names the size of binary data, and the answer has none"
        raise InvalidInput(f"outputs.{name}.parameters.{BINARY_SIZE}", rule)
    binary = size is not None
    whole, values = None, None
    if name in replicated:
        whole = _whole(entry, field, tensor if binary else None, write)
    else:
        if not alone:
            refuse_lists((f"outputs.{name}.{one}", value) for one, value in parameters.items())
        shape = shape_of(entry.get("shape"), smallest=0)
        if shape is None or shape[0] != rows_asked:
            rule = (
                f"has not {rows_asked} rows in its first dimension; "
                "an output without rows must be one of spec.model.replicatedOutputs"
            )
            raise InvalidInput(f"outputs.{name}.shape", rule, shape and list(shape))
        column = _column(entry.get("data"), shape, tensor, write, binary=binary)
        if column is None:
            raise InvalidInput(f"outputs.{name}.data", _NOT_ITS_SHAPE)
        values = [Value(shape[1:], row) for row in column]
    form = OutputForm(
        name=name,
        datatype=datatype_of(entry, field),
        parameters=texts(parameters, write),
        binary=binary,
        whole=whole,
    )
    return form, values


def _column(
    data: Any, shape: Shape, tensor: Tensor | None, write: Write, *, binary: bool
) -> list[Buffer] | None:
    """The rows of an output; None where it has other than its shape says."""
    if binary:
        if tensor is not None and tensor.elements:
            return rows(tensor)
        return [b""] * shape[0] if tensor is not None or 0 in shape else None
    nested = is_nested(data, shape)
    if math.prod(shape) == 0 and not nested:
        return None if data else [b""] * shape[0]
    count = shape[0] if nested else math.prod(shape)
    if not isinstance(data, list) or len(data) != count:
        return None
    return cut(data, shape, write)


def _whole(entry: Mapping[str, Any], field: str, tensor: Tensor | None, write: Write) -> Value:
    """An output as it is, whatever its shape; raises `InvalidInput`."""
    if tensor is not None:
        return Value(tensor.shape, bytes(tensor.data))
    sizes, data = entry.get("shape"), entry.get("data")
    if not isinstance(sizes, list) or any(type(size) is not int or size < 0 for size in sizes):
        raise InvalidInput(f"{field}.shape", "is not a shape")
    if data is None and math.prod(sizes) == 0:
        return Value(tuple(sizes), b"")
    if not isinstance(data, list):
        raise InvalidInput(f"{field}.data", "is not an array")
    return Value(tuple(sizes), write(data)[1:-1])


def as_bytes(output: OutputForm, shape: list[int], items: list[Buffer]) -> bytes:
    """The values as binary data, of an output that is text; raises `InvalidInput`."""
    try:
        values = orjson.loads(b"[" + b",".join(item for item in items if item) + b"]")
    except orjson.JSONDecodeError as error:
        # Such as NaN, which may be passed on as text and cannot be read here.
        message = f"outputs.{output.name}: the model answers what cannot be read: {error}"
        raise Unserved(message, status=502) from error
    return values_to_bytes(values, output.datatype, tuple(shape), f"outputs.{output.name}")


def as_json(data: Buffer, datatype: Datatype, field: str) -> bytes:
    """Binary values as JSON between commas, floating-point numbers in the shortest text for them.

    Made in pieces: as values they take much more memory. Raises `InvalidInput` for what has no
    JSON form.
    """
    view = memoryview(data)
    if datatype not in _FLOATS:
        step = _AT_ONCE * datatype.size or max(1, len(view))
        pieces = [view[at : at + step] for at in range(0, len(view), step)]
        return b",".join(
            orjson.dumps(bytes_to_values(piece, datatype, field))[1:-1] for piece in pieces
        )
    numbers = np.frombuffer(view, _FLOATS[datatype])
    if not np.isfinite(numbers).all():
        rule = "holds NaN or infinity, which JSON cannot express; ask for binary data"
        raise InvalidInput(field, rule)
    return orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
