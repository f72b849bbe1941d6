"""Reads the tensors of a v2 body as rows, text or bytes, without looking at their values."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import orjson

from batchedmodel_contract.inference.tensors import (
    Buffer,
    Datatype,
    Shape,
    Tensor,
    rows,
    values_to_bytes,
)
from batchedmodel_contract.inference.v2 import BINARY_SIZE
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.backends.upstream.protocols import json_text
from batchedmodel_sidecar.calls import Value
from batchedmodel_sidecar.errors import Unserved, refuse_many

Fields = tuple[tuple[str, str], ...]
"""Names and the JSON text of their values."""

_FLOATS: Final = {Datatype.FP32: "<f4", Datatype.FP64: "<f8"}
_NESTED: Final = re.compile(r"\[\s*\[")
_STRING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_NO_VALUE: Final = re.compile(r"\[\s*\]")
_NO_MARKS: Final = bytes(byte for byte in range(256) if byte not in b"[],")
_OF_INPUTS: Final = frozenset({"name", "shape", "datatype", "parameters", "data"})
"""What is understood of an input; a request that says more of one is passed on as it came."""
MOST_TENSORS: Final = 256
"""Of a request that shares batches: each is an object of its own until the call is answered."""
_MOST_DIMENSIONS: Final = 64  # of any array library; to look at more would only cost time


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


def columns_of(head: Mapping[str, str], ranks: Mapping[str, int], most_rows: int) -> Columns | None:
    """The inputs of a JSON body as text; None when they have no rows in common.

    `ranks`: what is known of the model's inputs. Raises `InvalidInput` for a tensor that cannot be
    understood, and `Rejected` for more than so many rows.
    """
    entries = []
    texts = json_text.elements(head.get("inputs", "[]"), "inputs")
    if len(texts) > MOST_TENSORS:
        return None
    for index, text in enumerate(texts):
        field = f"inputs[{index}]"
        entry = json_text.fields(text, field)
        shape, data = shape_of(entry.get("shape", "")), entry.get("data", "")
        if not entry.keys() <= _OF_INPUTS or shape is None or not data.startswith("["):
            return None
        entries.append((field, name_of(entry, field), entry, shape, data))
    if not _have_rows([(name, shape) for _, name, _, shape, _ in entries], ranks, most_rows):
        return None
    inputs, shapes, columns = [], [], []
    for field, name, entry, shape, data in entries:
        nested = is_nested(data, shape)
        if not is_block(data, shape, nested=nested):
            return None
        column = cut(data, shape, nested=nested, field=field)
        if column is None:
            return None
        inputs.append(
            Input(
                name=name,
                datatype=datatype_of(entry, field).value,
                parameters=tuple(
                    sorted(object_in(entry.get("parameters"), f"{field}.parameters").items())
                ),
                nested=nested,
            )
        )
        shapes.append(shape[1:])
        columns.append(column)
    if len({len(column) for column in columns}) != 1:
        return None
    return tuple(inputs), tuple(shapes), columns


def columns_of_tensors(
    tensors: Sequence[Tensor],
    head: Mapping[str, str],
    ranks: Mapping[str, int],
    most_rows: int,
    *,
    binary: bool,
) -> Columns | None:
    """The same where the caller or the server, or both, use bytes.

    `binary` says whether the rows are wanted as bytes.
    """
    if len(tensors) > MOST_TENSORS:
        return None
    if any(tensor.elements == 0 or not tensor.shape for tensor in tensors):
        return None
    if not _have_rows([(tensor.name, tensor.shape) for tensor in tensors], ranks, most_rows):
        return None
    texts = json_text.elements(head["inputs"], "inputs")
    inputs = []
    for tensor, text in zip(tensors, texts, strict=True):
        entry = json_text.fields(text)
        if not entry.keys() <= _OF_INPUTS:
            return None
        parameters = object_in(entry.get("parameters"), "parameters")
        parameters.pop(BINARY_SIZE, None)
        inputs.append(
            Input(
                name=tensor.name,
                datatype=tensor.datatype.value,
                parameters=tuple(sorted(parameters.items())),
                nested=False,
            )
        )
    shapes = tuple(tensor.shape[1:] for tensor in tensors)
    columns = [rows(tensor) if binary else _texts(tensor) for tensor in tensors]
    return tuple(inputs), shapes, columns


def _have_rows(
    shapes: Sequence[tuple[str, Shape]], ranks: Mapping[str, int], most_rows: int
) -> bool:
    """Whether the inputs have rows in common; raises `Rejected` for more than so many.

    Where a rank is another than the model's, the first dimension may not be what counts rows.
    """
    counts = {shape[:1] for _, shape in shapes}
    if any(ranks.get(name, len(shape)) != len(shape) for name, shape in shapes):
        return False
    if len(counts) != 1 or counts == {()}:
        return False
    ((count,),) = counts
    refuse_many(count, most_rows)
    return True


def _texts(tensor: Tensor) -> list[Buffer]:
    """The rows of a tensor as JSON text."""
    column = cut(
        f"[{json_text.numbers(tensor.data, tensor.datatype).decode()}]",
        tensor.shape,
        nested=False,
        field=tensor.name,
    )
    assert column is not None, "a tensor holds as many values as its shape says"
    return column


def is_nested(data: str, shape: Shape) -> bool:
    """Whether each row of this array is an array of its own."""
    return len(shape) > 1 and _NESTED.match(data) is not None


def is_block(data: str, shape: Shape, *, nested: bool) -> bool:
    """Whether this JSON array holds exactly the values of a shape, flat or nested as it says.

    A row that held more or fewer would move the values of others for a server that flattens what
    it is sent. Only brackets and commas are looked at: what is between them is the server's matter.
    """
    if len(shape) > _MOST_DIMENSIONS or math.prod(shape) > len(data):
        return False
    plain = _STRING.sub("0", data) if '"' in data else data
    if "{" in plain or _NO_VALUE.search(plain):
        return False
    marks = plain.encode().translate(None, _NO_MARKS)
    sizes = shape if nested else (math.prod(shape),)
    length = 0
    for size in reversed(sizes):
        length = size * (length + 1) + 1
    if length != len(marks):  # sizes of one cost no value, and two brackets
        return False
    block = b""
    for size in reversed(sizes):
        block = b"[" + ((block + b",") * size)[:-1] + b"]"
    return marks == block


def cut(data: str, shape: Shape, *, nested: bool, field: str) -> list[Buffer] | None:
    """The text of each row of an array; None when the shape says otherwise."""
    count = shape[0]
    if not nested and len(shape) > 1:
        large = json_text.every(data, math.prod(shape[1:]))
        if large is not None:
            return list(large) if len(large) == count else None
    parts = json_text.elements(data, field)
    if nested or len(shape) == 1:
        return [part.encode() for part in parts] if len(parts) == count else None
    step = math.prod(shape[1:])
    if len(parts) != count * step:
        return None
    return [",".join(parts[at : at + step]).encode() for at in range(0, len(parts), step)]


def name_of(entry: Mapping[str, str], field: str) -> str:
    """The name of a tensor; raises `InvalidInput`."""
    text = entry.get("name", "")
    if not text.startswith('"'):
        raise InvalidInput(f"{field}.name", "is not a string")
    try:
        name: str = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{field}.name", f"cannot be read: {error}") from error
    return name


def datatype_of(entry: Mapping[str, str], field: str) -> Datatype:
    """The datatype of a tensor; raises `InvalidInput`."""
    try:
        return Datatype(entry.get("datatype", "").strip('"'))
    except ValueError as error:
        raise InvalidInput(f"{field}.datatype", "is not a datatype of the protocol") from error


def shape_of(text: str, smallest: int = 1) -> Shape | None:
    """A shape whose rows can be told apart; None for any other."""
    try:
        sizes = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(sizes, list) or not sizes:
        return None
    if any(type(size) is not int or size < smallest for size in sizes):
        return None
    return tuple(sizes)


def object_in(text: str | None, field: str) -> dict[str, str]:
    """The fields of an object that may be absent; raises `InvalidInput`."""
    return {} if text in (None, "null") else json_text.fields(str(text), field)


def flag(text: str | None, field: str, *, default: bool) -> bool:
    """True or false, which may be absent; raises `InvalidInput`."""
    if text is None:
        return default
    if text not in ("true", "false"):
        raise InvalidInput(field, "is not true or false")
    return text == "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSaid:
    """One output of an answer, without its rows."""

    name: str
    datatype: Datatype
    parameters: Fields
    binary: bool
    whole: Value | None = None
    """All of it, where it is for every row that was asked."""


def output_of(
    text: str,
    field: str,
    rows_asked: int,
    tensors: dict[str, Tensor],
    replicated: Collection[str] = (),
) -> tuple[OutputSaid, list[Value] | None]:
    """One output and its rows; raises `InvalidInput` when they are not as many as were asked.

    One of the `replicated` has none.
    """
    entry = json_text.fields(text, field)
    name = name_of(entry, field)
    parameters = object_in(entry.get("parameters"), f"{field}.parameters")
    size = parameters.pop(BINARY_SIZE, "null")
    binary = size != "null"
    # Where no output has a byte, some servers send no binary part.
    if binary and name not in tensors and size != "0":
        rule = "names the size of binary data, and the answer has none"
        raise InvalidInput(f"outputs.{name}.parameters.{BINARY_SIZE}", rule)
    if name in replicated:
        said = OutputSaid(
            name=name,
            datatype=datatype_of(entry, field),
            parameters=tuple(parameters.items()),
            binary=binary,
            whole=_whole(entry, field, tensors.get(name) if binary else None),
        )
        return said, None
    shape = shape_of(entry.get("shape", ""), smallest=0)
    if shape is None or shape[0] != rows_asked:
        rule = (
            f"has not {rows_asked} rows in its first dimension; "
            "an output without rows must be one of spec.model.replicatedOutputs"
        )
        raise InvalidInput(f"outputs.{name}.shape", rule, shape and list(shape))
    if binary:
        tensor = tensors.get(name)
        if tensor is None and 0 not in shape:
            raise InvalidInput(f"outputs.{name}.data", "has other than its shape says")
        items = rows(tensor) if tensor is not None and tensor.elements else [b""] * rows_asked
    else:
        data = entry.get("data", "")
        nested = is_nested(data, shape)
        if math.prod(shape) == 0 and not nested:
            if data and json_text.elements(data, field):
                raise InvalidInput(f"outputs.{name}.data", "has other than its shape says")
            items = [b""] * rows_asked
        else:
            column = cut(data, shape, nested=nested, field=field)
            if column is None:
                raise InvalidInput(f"outputs.{name}.data", "has other than its shape says")
            items = column
    said = OutputSaid(
        name=name,
        datatype=datatype_of(entry, field),
        parameters=tuple(parameters.items()),
        binary=binary,
    )
    return said, [Value(shape[1:], item) for item in items]


def refuse_lists(kept: Sequence[tuple[str, str]], said: Sequence[OutputSaid]) -> None:
    """Raise `InvalidInput` for what may hold something for each row of several callers.

    `kept`: what an answer says beside its outputs.
    """
    parameters = object_in(dict(kept).get("parameters"), "parameters")
    beside = [
        *((name, text) for name, text in kept if name != "parameters"),
        *((f"parameters.{name}", text) for name, text in parameters.items()),
        *(
            (f"outputs.{one.name}.{name}", text)
            for one in said
            for name, text in one.parameters
            if one.whole is None
        ),
    ]
    for name, text in beside:
        if text.startswith(("[", "{")) and text[1:-1].strip():
            rule = "is not a single value, and the answer is for several callers"
            raise InvalidInput(name, rule)


def _whole(entry: Mapping[str, str], field: str, tensor: Tensor | None) -> Value:
    """An output as it is, whatever its shape; raises `InvalidInput`."""
    if tensor is not None:
        return Value(tensor.shape, bytes(tensor.data))
    try:
        sizes = orjson.loads(entry.get("shape", ""))
    except orjson.JSONDecodeError:
        sizes = None
    data = entry.get("data", "")
    if not isinstance(sizes, list) or any(type(size) is not int or size < 0 for size in sizes):
        raise InvalidInput(f"{field}.shape", "is not a shape")
    if not data and math.prod(sizes) == 0:
        return Value(tuple(sizes), b"")
    if not data.startswith("["):
        raise InvalidInput(f"{field}.data", "is not an array")
    return Value(tuple(sizes), data[1:-1].encode())


def as_bytes(output: OutputSaid, shape: list[int], items: list[Buffer]) -> bytes:
    """The values as binary data, of an output that is text; raises `InvalidInput`."""
    try:
        values = orjson.loads(b"[" + b",".join(item for item in items if item) + b"]")
    except orjson.JSONDecodeError as error:
        # Such as NaN, which may be passed on as text and cannot be read here.
        message = f"outputs.{output.name}: the model answers what cannot be read: {error}"
        raise Unserved(message, status=502) from error
    return values_to_bytes(values, output.datatype, tuple(shape), f"outputs.{output.name}")


def as_text(output: OutputSaid, items: list[Buffer]) -> bytes:
    """The values as JSON, floating-point numbers in the shortest text that means the same."""
    data = b"".join(items)
    if output.datatype not in _FLOATS:
        return json_text.numbers(data, output.datatype)
    numbers = np.frombuffer(data, _FLOATS[output.datatype])
    if not np.isfinite(numbers).all():
        rule = "holds NaN or infinity, which JSON cannot express; ask for binary data"
        raise InvalidInput(f"outputs.{output.name}", rule)
    return orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
