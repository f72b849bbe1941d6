"""JSON of callers and of servers behind: taken apart, and written again as the same values.

Integers keep all their digits and floating-point numbers their value, `NaN` and `Infinity`
included, which some servers write although JSON lacks them. How a number or a text is spelled may
change.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import orjson

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.protocols.json_bodies import refuse_doubled

Write = Callable[[Any], bytes]
"""Makes JSON of a value of one document."""
Fields = tuple[tuple[str, str], ...]
"""Names and the JSON text of their values."""

_MOST_BESIDE: Final = 1024 * 1024
"""Bytes of a request beside its rows, which are kept, compared and sent again with each batch."""
_SHOWN: Final = 80  # characters of what is too large
_MOST_FIELDS: Final = 1000
_MARKS: Final = bytes.maketrans(b"123456789[: -\n\r\t", b"000000000,,,,,,,")
_LONG_INTEGER: Final = b"," + b"0" * 19
"""The beginning of an integer that may need more than 64 bits, of which orjson makes a float."""


def read(body: Buffer, *, of_request: bool = False) -> tuple[dict[str, Any], Write]:
    """The object in a body, and what writes its values; raises `InvalidInput`.

    No object of a request may name a field twice.
    """
    raw = bytes(body)
    document, write = _document(raw)
    if not isinstance(document, dict):
        raise InvalidInput("body", "is not a JSON object")
    if of_request:
        refuse_doubled(raw, document)
    _refuse_many(document, "body")
    return document, write


def _document(raw: bytes) -> tuple[Any, Write]:
    if _LONG_INTEGER not in raw.translate(_MARKS):
        with suppress(orjson.JSONDecodeError):
            return orjson.loads(raw), write_values
    try:
        # Takes longer, knows NaN and integers of any size, and says what is wrong.
        return json.loads(str(raw, "utf-8")), _write_slowly
    except UnicodeDecodeError as error:
        raise InvalidInput("body", "is not UTF-8 text") from error
    except RecursionError as error:
        raise InvalidInput("body", "is nested too deeply") from error
    except ValueError as error:
        raise InvalidInput("body", f"is not JSON: {error}") from error


def write_values(value: Any) -> bytes:
    """JSON of what orjson has read; raises `InvalidInput`."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # it writes less deeply than it reads
        return _write_slowly(value)


def _write_slowly(value: Any) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except RecursionError as error:
        raise InvalidInput("body", "is nested too deeply") from error


def _refuse_many(given: Mapping[str, Any], field: str) -> None:
    """Each is an object of its own until its call is answered, and some are compared or joined."""
    if len(given) > _MOST_FIELDS:
        raise InvalidInput(field, f"has more than {_MOST_FIELDS} fields")


def refuse_large(given: Iterable[tuple[str, str]]) -> None:
    """Raise `InvalidInput` where these texts beside a request's rows are larger than is kept."""
    fields = list(given)
    size = sum([len(name) + len(text) for name, text in fields])
    if size > _MOST_BESIDE:
        name, text = max(fields, key=lambda field: len(field[0]) + len(field[1]))
        rule = f"is part of {size} characters beside the rows, of which {_MOST_BESIDE} are taken"
        raise InvalidInput(name[:_SHOWN], rule, text[:_SHOWN])


def refuse_lists(beside: Iterable[tuple[str, Any]]) -> None:
    """Raise `InvalidInput` for what may hold something for each row of several callers.

    `beside`: what an answer says beside its rows, by field.
    """
    for field, value in beside:
        if isinstance(value, list | dict) and value:
            rule = "is not a single value, and the answer is for several callers"
            raise InvalidInput(field, rule)


def texts(given: Mapping[str, Any], write: Write) -> Fields:
    """The fields of an object as text, in their order."""
    return tuple((name, write(value).decode()) for name, value in given.items())


def object_in(given: Any, field: str) -> dict[str, Any]:
    """An object that may be absent; raises `InvalidInput`."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise InvalidInput(field, "is not a JSON object")
    _refuse_many(given, field)
    return given


def object_of(parts: Iterable[tuple[str, str]]) -> str:
    """The object of these fields, each with the text of its value."""
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in parts) + "}"


def spliced(
    name: str,
    values: Iterable[Sequence[Buffer]],
    *,
    before: Iterable[tuple[str, str]] = (),
    after: Iterable[tuple[str, str]] = (),
) -> list[Buffer]:
    """The object with an array of values that stay where they lie, each in some buffers.

    Other fields have the text of their values. Large rows are never joined or copied here.
    """
    opening = "".join(f"{json.dumps(field)}:{value}," for field, value in before)
    parts: list[Buffer] = [f"{{{opening}{json.dumps(name)}:[".encode()]
    for value in values:
        parts += value
        parts.append(b",")
    if len(parts) > 1:
        parts.pop()
    closing = "".join(f",{json.dumps(field)}:{value}" for field, value in after)
    parts.append(f"]{closing}}}".encode())
    return parts
