"""Parameters of requests: what a handler lets every caller say beside the tensors.

A handler declares them, each with a type and a default; the sidecar reads them from requests by the
declaration, they travel per item, and items that differ in them share a batch all the same. Pure.
"""

import math
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any, Final

from batchedmodel_contract.inference.tensors import (
    ARRAY_CODES,
    Datatype,
    Tensor,
    bytes_to_values,
    join_byte_elements,
)
from batchedmodel_contract.invalid_input import InvalidInput

BINARY_OUTPUT: Final = "binary_data_output"
"""Whether outputs are wanted as binary data, unless one says otherwise."""
TIMEOUT: Final = "timeout"
PRIORITY: Final = "priority"
RESERVED: Final = frozenset({BINARY_OUTPUT, TIMEOUT, PRIORITY})
"""Parameters of a v2 request that mean something to us, whatever the handler."""
LONGEST_TEXT: Final = 256
"""Bytes of a text: it travels once for each row of its request."""

Scalar = bool | int | float | str
Values = Mapping[str, Scalar]
"""What one request sets; the others have their defaults."""

_LARGEST: Final = {Datatype.INT64: 2**63 - 1, Datatype.FP32: (2 - 2**-23) * 2.0**127}
_SMALLEST: Final = {Datatype.INT64: -(2**63), Datatype.FP32: -_LARGEST[Datatype.FP32]}
_FIELDS: Final = ("datatype", "default", "min", "max", "choices")
_SINGLE: Final = struct.Struct("<f")
_KINDS: Final[Mapping[Datatype, tuple[str, tuple[type, ...]]]] = {
    Datatype.BOOL: ("true or false", (bool,)),
    Datatype.INT64: ("a whole number", (int,)),
    Datatype.FP32: ("a number", (int, float)),
    Datatype.BYTES: ("a text", (str,)),
}


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter: its datatype (BOOL, INT64, FP32, or BYTES for a text) and its default.

    `min` and `max` bound numbers, within what the datatype holds; those of FP32 mean the nearest
    single-precision numbers. `choices` names the texts that are taken; a text without choices may
    have `LONGEST_TEXT` bytes. Raises `ValueError` when the declaration contradicts itself.
    """

    datatype: str
    default: Scalar
    min: float | None = None
    max: float | None = None
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.datatype not in _KINDS:
            raise ValueError(f"datatype {self.datatype!r} is not one of {', '.join(_KINDS)}")
        if self.datatype not in _LARGEST and (self.min is not None or self.max is not None):
            raise ValueError(f"min and max are for numbers, not for {self.datatype}")
        for name, bound in (("min", self.min), ("max", self.max)):
            if bound is not None:
                self._check_bound(name, bound)
        if self.choices and self.datatype != Datatype.BYTES:
            raise ValueError(f"choices are for BYTES, not for {self.datatype}")
        choices: Any = self.choices
        if not isinstance(choices, tuple) or not all(isinstance(one, str) for one in choices):
            raise ValueError(f"choices {choices!r} are not a tuple of texts")
        try:
            self.read(self.default, "default")
        except InvalidInput as error:
            raise ValueError(str(error)) from error

    def read(self, given: object, field: str) -> Scalar:
        """The value that a request sets; raises `InvalidInput`, naming the field."""
        datatype = Datatype(self.datatype)
        name, kinds = _KINDS[datatype]
        # Of exactly these types: true is no number here, though it is one to Python.
        if type(given) not in kinds:
            raise InvalidInput(field, f"is not {name}", given)
        if isinstance(given, str):
            return self._text(given, field)
        if isinstance(given, int | float) and datatype in _LARGEST:
            least = _held(_SMALLEST[datatype] if self.min is None else self.min, datatype)
            largest = _held(_LARGEST[datatype] if self.max is None else self.max, datatype)
            value = _held(given, datatype)
            # Not the other way round: NaN is neither below nor above anything.
            if not least <= value <= largest:
                raise InvalidInput(field, f"is not {name} from {least:g} to {largest:g}", given)
            return value
        assert isinstance(given, bool), "a kind without a rule: our bug"
        return given

    def _check_bound(self, name: str, bound: object) -> None:
        datatype = Datatype(self.datatype)
        if not isinstance(bound, int | float) or isinstance(bound, bool):
            raise ValueError(f"{name} {bound!r} is not a number")
        least, largest = _SMALLEST[datatype], _LARGEST[datatype]
        if not least <= _held(bound, datatype) <= largest:
            raise ValueError(f"{name} {bound!r} is not within what {datatype} holds")

    def _text(self, given: str, field: str) -> str:
        if self.choices and given not in self.choices:
            raise InvalidInput(field, f"is not one of {', '.join(self.choices)}", given)
        if len(given.encode(errors="replace")) > LONGEST_TEXT:
            raise InvalidInput(field, f"is longer than {LONGEST_TEXT} bytes", given)
        return given

    def to_mapping(self) -> dict[str, Any]:
        """The form that it has in metadata."""
        return asdict(self)


def param_from_mapping(mapping: Mapping[str, Any]) -> Param:
    """What `to_mapping` gave; raises `KeyError`, `TypeError` or `ValueError`."""
    datatype, default, least, most, choices = itemgetter(*_FIELDS)(mapping)
    return Param(datatype, default, least, most, tuple(choices))


def read_values(given: Mapping[str, Any] | None, known: Mapping[str, Param]) -> Values | None:
    """The known parameters that a request sets; None when it sets none. Raises `InvalidInput`.

    Other parameters are passed over; the reader of the request refuses those.
    """
    if not given or known.keys().isdisjoint(given):
        return None
    # null means what leaving it out means, as elsewhere in v2.
    return {
        name: known[name].read(value, f"parameters.{name}")
        for name, value in given.items()
        if name in known and value is not None
    } or None


def columns(rows: Sequence[Values | None], known: Mapping[str, Param]) -> tuple[Tensor, ...]:
    """For each parameter that any row sets, the values of all rows as a tensor [rows]."""
    named = {name for values in rows if values is not None for name in values}
    return tuple(
        _column(
            name, param, [param.default if v is None else v.get(name, param.default) for v in rows]
        )
        for name, param in known.items()
        if name in named
    )


def column_values(column: Tensor, param: Param) -> list[Scalar]:
    """The values in a column; raises `InvalidInput` when it has another datatype."""
    field = f"parameters.{column.name}"
    if column.datatype != param.datatype:
        raise InvalidInput(field, f"is not {param.datatype}", column.datatype)
    values: list[Scalar] = bytes_to_values(column.data, column.datatype, field)
    return values


def _held(number: float, datatype: Datatype) -> float:
    """The number as it travels: the nearest single-precision one for FP32, or infinity.

    Both ends compare this one: 0.8 as it travels is above the double 0.8.
    """
    if datatype is not Datatype.FP32:
        return number
    try:
        single: float = _SINGLE.unpack(_SINGLE.pack(float(number)))[0]
    except OverflowError:
        return math.inf if number > 0 else -math.inf
    return single


def _column(name: str, param: Param, values: Sequence[Any]) -> Tensor:
    datatype = Datatype(param.datatype)
    if datatype is Datatype.BYTES:
        data = join_byte_elements(value.encode(errors="replace") for value in values)
    else:
        data = array(ARRAY_CODES[datatype], values).tobytes()
    return Tensor(name, datatype, (len(values),), data)
