"""Cuts JSON text into its parts without reading them: what was never read cannot be changed.

The protocols behind splice callers' rows and a server's answers by it. Numbers keep their text,
`NaN` and `Infinity` included, which some servers write although JSON lacks them.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput

_DECODER: Final = json.JSONDecoder()
_SPACE: Final = " \t\n\r"
_SPACES: Final = re.compile(f"[{_SPACE}]*")


def text_of(body: Buffer) -> str:
    """The text of a body; raises `InvalidInput`."""
    try:
        return str(body, "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput("body", "is not UTF-8 text") from error


def checked_fields(body: Buffer) -> dict[str, str]:
    """The fields of a request; raises `InvalidInput`.

    All of it must be JSON: only then do its parts stay parts beside those of other requests.
    """
    text = text_of(body)
    try:
        _DECODER.decode(text)
    except RecursionError as error:
        raise InvalidInput("body", "is nested too deeply") from error
    except ValueError as error:
        raise InvalidInput("body", f"is not JSON: {error}") from error
    return fields(text)


def fields(text: str, field: str = "body") -> dict[str, str]:
    """The text of each value of an object; raises `InvalidInput`."""
    position = _past_space(text, 0)
    if text[position : position + 1] != "{":
        raise InvalidInput(field, "is not a JSON object")
    found: dict[str, str] = {}
    position = _past_space(text, position + 1)
    if text[position : position + 1] == "}":
        return found
    while True:
        name, position = _scan(text, position, field)
        if not isinstance(name, str):
            raise InvalidInput(field, "is not a JSON object")
        if name in found:
            raise InvalidInput(field, "names a field twice", name)
        start = _past_space(text, _expect(text, position, ":", field))
        position = _end(text, start, field)
        found[name] = text[start:position]
        position = _past_space(text, position)
        if text[position : position + 1] == "}":
            return found
        position = _past_space(text, _expect(text, position, ",", field))


def elements(text: str, field: str) -> list[str]:
    """The text of each element of an array; raises `InvalidInput`."""
    position = _past_space(text, 0)
    if text[position : position + 1] != "[":
        raise InvalidInput(field, "is not an array")
    end = _plain_end(text, position)
    if end:
        inner = text[position + 1 : end - 1]
        parts = [part.strip(_SPACE) for part in inner.split(",")]
        return [] if parts == [""] else parts
    position = _past_space(text, position + 1)
    found: list[str] = []
    while True:
        end = _end(text, position, field)
        found.append(text[position:end])
        position = _past_space(text, end)
        if text[position : position + 1] == "]":
            return found
        position = _past_space(text, _expect(text, position, ",", field))


def scalars(text: str, field: str) -> list[str]:
    """The text of each value in arrays of arrays, in their order; raises `InvalidInput`."""
    level = elements(text, field)
    while level and level[0].startswith("["):
        level = [part for one in level for part in elements(one, field)]
    return level


def array(parts: Iterable[str]) -> str:
    """The array of these values."""
    return f"[{','.join(parts)}]"


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


def _end(text: str, start: int, field: str) -> int:
    """Where the value that starts here ends."""
    if text[start : start + 1] == "[":
        end = _plain_end(text, start)
        if end:
            return end
    return _scan(text, start, field)[1]


def _plain_end(text: str, start: int) -> int:
    """The end of an array of plain values, found without reading them; 0 for any other array."""
    end = text.find("]", start) + 1
    plain = end and all(text.find(mark, start + 1, end) < 0 for mark in '"[{')
    return end if plain else 0


def _scan(text: str, position: int, field: str) -> tuple[object, int]:
    try:
        return _DECODER.raw_decode(text, position)
    except RecursionError as error:
        raise InvalidInput(field, "is nested too deeply") from error
    except ValueError as error:
        raise InvalidInput(field, f"is not JSON: {error}") from error


def _past_space(text: str, position: int) -> int:
    found = _SPACES.match(text, position)
    assert found is not None, "no space at all is a match as well"
    return found.end()


def _expect(text: str, position: int, mark: str, field: str) -> int:
    position = _past_space(text, position)
    if text[position : position + 1] != mark:
        raise InvalidInput(field, f"is not JSON: {mark} is missing at character {position}")
    return position + 1
