"""Tensors as they travel: a name, a datatype, a shape and little-endian row-major bytes.

Shared by the public protocol parsers of the sidecar and by the HTTP edge of the model server.
Datatypes are those of the Open Inference Protocol v2.
"""

import math
import struct
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple

from batchedmodel_contract.invalid_input import InvalidInput

Buffer = bytes | bytearray | memoryview
Shape = tuple[int, ...]

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
"""Of a v2 body: bytes of its JSON, behind which binary tensor data follows."""
BINARY_SIZE: Final = "binary_data_size"
"""Parameter of a tensor in that JSON: bytes of its data, which follow."""
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
    BF16 = "BF16"
    FP32 = "FP32"
    FP64 = "FP64"
    BYTES = "BYTES"

    @property
    def size(self) -> int:
        """Bytes of one element; 0 for BYTES, whose elements carry their own length."""
        return _SIZES[self]


ARRAY_CODES: Final = {
    Datatype.BOOL: "B", Datatype.UINT8: "B", Datatype.UINT16: "H", Datatype.UINT32: "I",
    Datatype.UINT64: "Q", Datatype.INT8: "b", Datatype.INT16: "h", Datatype.INT32: "i",
    Datatype.INT64: "q", Datatype.FP32: "f", Datatype.FP64: "d",
}  # fmt: skip
"""Type codes of `array`, which knows neither half precision nor BYTES."""
_SIZES: Final = {datatype: array(code).itemsize for datatype, code in ARRAY_CODES.items()} | {
    Datatype.FP16: 2,
    Datatype.BF16: 2,
    Datatype.BYTES: 0,
}
_WHOLE: Final[set[type]] = {int}
_KINDS: Final[dict[Datatype, set[type]]] = {
    Datatype.BOOL: {bool},
    Datatype.FP32: {int, float},
    Datatype.FP64: {int, float},
}
_REAL: Final = frozenset({Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64})
_NO_JSON: Final = frozenset({Datatype.FP16, Datatype.BF16})
"""As in Triton, these are sent as binary data only; in answers they are widened, which is exact."""
_BF16_SHIFT: Final = 16  # BF16 is the upper half of FP32


class Tensor(NamedTuple):
    """One rectangular tensor. `data` holds exactly the elements of `shape`."""

    name: str
    datatype: Datatype
    shape: Shape
    data: Buffer

    @property
    def elements(self) -> int:
        """How many elements the shape holds."""
        return math.prod(self.shape)


class Scattered(NamedTuple):
    """A tensor that is only written, whose data lies in several buffers, one behind the other."""

    name: str
    datatype: Datatype
    shape: Shape
    parts: tuple[Buffer, ...]


def values_to_bytes(values: object, datatype: Datatype, shape: Shape, field: str) -> bytes:
    """The bytes of a JSON array, flat or nested as the shape says; raises `InvalidInput`.

    Integers must be written as integers: 1.0 is refused for an INT64 as it is by Triton, because a
    caller that computes with fractions would lose them silently.
    """
    flat = _flat(values, shape, field)
    kinds = set(map(type, flat))
    if datatype is Datatype.BYTES:
        _require(kinds <= {str}, field, "has a value that is not a string")
        try:
            return join_byte_elements(text.encode() for text in flat)
        except UnicodeEncodeError as error:
            raise InvalidInput(field, "has a string with half of a surrogate pair") from error
    if datatype in _NO_JSON:
        rule = f"{datatype} has no JSON form in this protocol; send it as binary data"
        raise InvalidInput(field, rule)
    _require(kinds <= _KINDS.get(datatype, _WHOLE), field, f"has a value that is not a {datatype}")
    try:
        if datatype is Datatype.FP32:
            # `array` would make infinity of a number that is too large.
            return struct.pack(f"<{len(flat)}f", *flat)
        return array(ARRAY_CODES[datatype], flat).tobytes()
    except (OverflowError, struct.error) as error:
        raise InvalidInput(field, f"has a value outside the range of {datatype}") from error


def bytes_to_values(data: Buffer, datatype: Datatype, field: str = "data") -> list[Any]:
    """The elements as JSON values, flat; FP16 and BF16 are widened.

    Raises `InvalidInput` for what JSON cannot say: text that is not UTF-8, NaN and infinity.
    """
    if datatype is Datatype.BYTES:
        try:
            return [str(element, "utf-8") for element in split_byte_elements(data)]
        except UnicodeDecodeError as error:
            raise InvalidInput(field, "is not UTF-8; ask for binary data") from error
    if datatype is Datatype.BOOL:
        return [bool(value) for value in bytes(data)]
    values = _numbers(data, datatype)
    # The sum of a few hundred numbers costs a microsecond; it is finite unless one of them is not,
    # or unless large ones overflow.
    is_real = datatype in _REAL
    if is_real and not math.isfinite(sum(values)) and not all(map(math.isfinite, values)):
        rule = "holds NaN or infinity, which JSON cannot express; ask for binary data"
        raise InvalidInput(field, rule)
    return values


def contiguous(parts: Sequence[Buffer]) -> Buffer:
    """The parts as one buffer; a single one stays what it is."""
    return parts[0] if len(parts) == 1 else b"".join(parts)


def standing_alone(parts: Sequence[Buffer]) -> list[Buffer]:
    """The parts, of which none keeps a much larger buffer in memory for as long as it is kept.

    A row's answer lies among those of its batch. Who does not read it would keep all of these. Room
    in a shared region, which is another's memory, is bounded by itself and stays what it is.
    """
    kept: dict[int, int] = {}
    for part in parts:
        if isinstance(part, memoryview):
            kept[id(part.obj)] = kept.get(id(part.obj), 0) + len(part)
    return [bytes(part) if _is_piece(part, kept) else part for part in parts] if kept else [*parts]


def _is_piece(part: Buffer, kept: Mapping[int, int]) -> bool:
    if not isinstance(part, memoryview) or getattr(part.obj, "base", None) is not None:
        return False
    return 2 * kept[id(part.obj)] <= memoryview(part.obj).nbytes


def join_byte_elements(elements: Iterator[bytes]) -> bytes:
    """BYTES elements on the wire: each behind its length as four bytes."""
    return b"".join(chain.from_iterable((_BYTES_PREFIX.pack(len(e)), e) for e in elements))


def split_byte_elements(data: Buffer) -> list[memoryview]:
    """The elements of a BYTES tensor; raises `InvalidInput` when a length leads past the end."""
    view, elements, start = memoryview(data), [], 0
    for end in byte_element_ends(view):
        elements.append(view[start + _BYTES_PREFIX.size : end])
        start = end
    return elements


def byte_element_ends(data: Buffer, at_most: int = sys.maxsize, field: str = "data") -> list[int]:
    """Where each element of a BYTES tensor ends, its length included; raises `InvalidInput`.

    Also where there are more than `at_most`: an element without a byte takes four in the data.
    """
    size, position, ends = len(data), 0, list[int]()
    while position < size:
        if len(ends) == at_most:
            raise InvalidInput(field, f"holds more than {at_most} elements")
        start = position + _BYTES_PREFIX.size
        if start > size:
            raise InvalidInput(field, "ends inside the length of an element")
        position = start + _BYTES_PREFIX.unpack_from(data, position)[0]
        if position > size:
            raise InvalidInput(field, "ends inside an element")
        ends.append(position)
    return ends


def check_size(tensor: Tensor, field: str) -> None:
    """Raise `InvalidInput` unless the data holds exactly the elements that the shape says."""
    if tensor.datatype is Datatype.BYTES:
        held: int = len(byte_element_ends(tensor.data, tensor.elements, field))
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
    ends = byte_element_ends(view)
    each = len(ends) // count
    edges = [0, *ends[each - 1 :: each]]
    return [view[start:end] for start, end in pairwise(edges)]


def _numbers(data: Buffer, datatype: Datatype) -> list[Any]:
    if datatype is Datatype.FP16:
        return [value for (value,) in struct.iter_unpack("<e", data)]
    if datatype is Datatype.BF16:
        halves = array("H", bytes(data))
        data = array("I", [half << _BF16_SHIFT for half in halves]).tobytes()
        datatype = Datatype.FP32
    elements = array(ARRAY_CODES[datatype])
    elements.frombytes(data)
    return elements.tolist()


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
