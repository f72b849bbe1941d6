"""Tensors as they travel: a name, a datatype, a shape and little-endian row-major bytes.

Shared by the public protocol parsers of the sidecar and by the HTTP edge of the model server.
Datatypes are those of the Open Inference Protocol v2.
"""

import math
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any, Final

from batchedmodel_contract.mistakes import InvalidInput

Buffer = bytes | bytearray | memoryview
Shape = tuple[int, ...]

_BYTES_PREFIX: Final = struct.Struct("<I")


class Datatype(StrEnum):
    """Element types; `size` is in bytes, 0 where elements carry their own length."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BYTES = "BYTES"

    @property
    def size(self) -> int:
        """Bytes of one element; 0 for BYTES, whose elements carry their own length."""
        return _SIZES[self]


_SIZES: Final = {
    Datatype.BOOL: 1, Datatype.UINT8: 1, Datatype.UINT16: 2, Datatype.UINT32: 4,
    Datatype.UINT64: 8, Datatype.INT8: 1, Datatype.INT16: 2, Datatype.INT32: 4,
    Datatype.INT64: 8, Datatype.FP16: 2, Datatype.FP32: 4, Datatype.FP64: 8, Datatype.BYTES: 0,
}  # fmt: skip

# array's type codes; FP16 has no JSON form in the protocol and BYTES none in `array`.
_CODES: Final = {
    Datatype.BOOL: "B", Datatype.UINT8: "B", Datatype.UINT16: "H", Datatype.UINT32: "I",
    Datatype.UINT64: "Q", Datatype.INT8: "b", Datatype.INT16: "h", Datatype.INT32: "i",
    Datatype.INT64: "q", Datatype.FP32: "f", Datatype.FP64: "d",
}  # fmt: skip
_WHOLE: Final[set[type]] = {int}
_KINDS: Final[dict[Datatype, set[type]]] = {
    Datatype.BOOL: {bool},
    Datatype.FP32: {int, float},
    Datatype.FP64: {int, float},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One rectangular tensor. `data` holds exactly the elements of `shape`."""

    name: str
    datatype: Datatype
    shape: Shape
    data: Buffer

    @property
    def elements(self) -> int:
        """How many elements the shape holds."""
        return math.prod(self.shape)


def values_to_bytes(values: object, datatype: Datatype, shape: Shape, field: str) -> bytes:
    """The bytes of a JSON array, flat or nested as the shape says; raises `InvalidInput`."""
    flat = _flat(values, shape, field)
    kinds = set(map(type, flat))
    if datatype is Datatype.BYTES:
        _require(kinds <= {str}, field, "has a value that is not a string")
        try:
            return join_byte_elements(text.encode() for text in flat)
        except UnicodeEncodeError as error:
            raise InvalidInput(field, "has a string with half of a surrogate pair") from error
    if datatype is Datatype.FP16:
        raise InvalidInput(field, "FP16 has no JSON form in this protocol; send it as binary data")
    _require(kinds <= _KINDS.get(datatype, _WHOLE), field, f"has a value that is not a {datatype}")
    try:
        if datatype is Datatype.FP32:
            # `array` would make infinity of a number that is too large.
            return struct.pack(f"<{len(flat)}f", *flat)
        return array(_CODES[datatype], flat).tobytes()
    except (OverflowError, struct.error) as error:
        raise InvalidInput(field, f"has a value outside the range of {datatype}") from error


def bytes_to_values(data: Buffer, datatype: Datatype) -> list[Any]:
    """The elements as JSON values, flat. FP16 is widened, BYTES must be UTF-8 (`InvalidInput`)."""
    if datatype is Datatype.BYTES:
        try:
            return [str(element, "utf-8") for element in split_byte_elements(data)]
        except UnicodeDecodeError as error:
            raise InvalidInput("data", "is not UTF-8; ask for binary data") from error
    if datatype is Datatype.FP16:
        return [value for (value,) in struct.iter_unpack("<e", data)]
    if datatype is Datatype.BOOL:
        return [bool(value) for value in bytes(data)]
    elements = array(_CODES[datatype])
    elements.frombytes(data)
    return elements.tolist()


def join_byte_elements(elements: Iterator[bytes]) -> bytes:
    """BYTES elements on the wire: each behind its length as four bytes."""
    return b"".join(chain.from_iterable((_BYTES_PREFIX.pack(len(e)), e) for e in elements))


def split_byte_elements(data: Buffer) -> list[memoryview]:
    """The elements of a BYTES tensor; raises `InvalidInput` when a length leads past the end."""
    view, position, elements = memoryview(data), 0, []
    while position < len(view):
        start = position + _BYTES_PREFIX.size
        if start > len(view):
            raise InvalidInput("data", "ends inside the length of an element")
        end = start + _BYTES_PREFIX.unpack_from(view, position)[0]
        if end > len(view):
            raise InvalidInput("data", "ends inside an element")
        elements.append(view[start:end])
        position = end
    return elements


def check_size(tensor: Tensor, field: str) -> None:
    """Raise `InvalidInput` unless the data holds exactly the elements that the shape says."""
    if tensor.datatype is Datatype.BYTES:
        held: int = len(split_byte_elements(tensor.data))
        _require(held == tensor.elements, field, f"holds {held} elements, not {tensor.elements}")
        return
    expected = tensor.elements * tensor.datatype.size
    held = len(tensor.data)
    _require(held == expected, field, f"is {held} bytes long; shape and datatype need {expected}")


def rows(tensor: Tensor) -> list[Buffer]:
    """The data of each row, where the first dimension counts rows.

    Raises `InvalidInput` when the tensor has no rows or when its rows hold nothing: a few bytes
    could then claim any number of rows.
    """
    if tensor.elements == 0 or not tensor.shape:
        raise InvalidInput(f"{tensor.name}.shape", "has no rows that hold a value", tensor.shape)
    count = tensor.shape[0]
    if count == 1:
        return [tensor.data]
    view = memoryview(tensor.data)
    if tensor.datatype is not Datatype.BYTES:
        step = len(view) // count
        return [view[start : start + step] for start in range(0, len(view), step)]
    elements = split_byte_elements(view)
    each = len(elements) // count
    return [
        join_byte_elements(bytes(e) for e in elements[row * each : (row + 1) * each])
        for row in range(count)
    ]


def _flat(values: object, shape: Shape, field: str) -> Sequence[Any]:
    if not isinstance(values, list):
        raise InvalidInput(field, "is not an array", values)
    level: list[Any] = values
    if level and isinstance(level[0], list):
        rule = f"does not nest as shape {list(shape)}"
        _require(bool(shape) and len(level) == shape[0], field, rule)
        for size in shape[1:]:
            fits = all(isinstance(part, list) and len(part) == size for part in level)
            _require(fits, field, rule)
            level = list(chain.from_iterable(level))
    expected = math.prod(shape)
    _require(len(level) == expected, field, f"has {len(level)} values; the shape needs {expected}")
    return level


def _require(holds: bool, field: str, rule: str) -> None:
    if not holds:
        raise InvalidInput(field, rule)
