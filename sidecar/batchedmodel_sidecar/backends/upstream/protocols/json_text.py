"""Cuts JSON text into its parts without reading them: what was never read cannot be changed.

The protocols behind splice callers' rows and a server's answers by it. Numbers keep their text,
`NaN` and `Infinity` included, which some servers write although JSON lacks them. A body is checked
once; after that large parts are found by their brackets and commas alone.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from batchedmodel_contract.inference.tensors import Buffer, Datatype, bytes_to_values
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.protocols.json_bodies import refuse_doubled

Places = NDArray[np.int64]
_DECODER: Final = json.JSONDecoder()
_SPACE: Final = " \t\n\r"
_SPACES: Final = re.compile(f"[{_SPACE}]*")
_LARGE: Final = 4096
"""Characters above which brackets and commas are sooner found all at once."""
_PIECE: Final = 2**16
_MOST_BESIDE: Final = 1024 * 1024
"""Bytes of a request beside its rows, which are kept, compared and sent again with each batch."""
_SHOWN: Final = 80  # characters of what is too large
_MOST_FIELDS: Final = 1000
_FEW: Final = 16  # values, below which they are as well split one by one
_DEEPEST: Final = 900
"""Arrays in arrays; Python's own decoder, which may read what goes on, takes few more."""
_AT_ONCE: Final = 16_384
"""Numbers that are made into text together."""
_QUOTE, _COMMA = ord('"'), ord(",")
_STEPS: Final = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_MARKS: Final = _STEPS != 0
_MARKS[[_QUOTE, _COMMA]] = True


def refuse_large(given: Iterable[tuple[str, str]]) -> None:
    """Raise `InvalidInput` where these texts beside a request's rows are larger than is kept."""
    fields = list(given)
    size = sum([len(name) + len(text) for name, text in fields])
    if size > _MOST_BESIDE:
        name, text = max(fields, key=lambda field: len(field[0]) + len(field[1]))
        rule = f"is part of {size} characters beside the rows, of which {_MOST_BESIDE} are taken"
        raise InvalidInput(name[:_SHOWN], rule, text[:_SHOWN])


def text_of(body: Buffer) -> str:
    """The text of a body; raises `InvalidInput`."""
    try:
        return str(body, "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput("body", "is not UTF-8 text") from error


def checked_fields(body: Buffer, *, of_request: bool = False) -> dict[str, str]:
    """The fields of an answer or a request; raises `InvalidInput`.

    All of it must be JSON: only then do its parts stay parts beside those of others. No object of a
    request may name a field twice.
    """
    text = text_of(body)
    document = _document(text)
    if of_request:
        refuse_doubled(body, document)
    return fields(text)


def _document(text: str) -> Any:
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(text)
    try:
        return _DECODER.decode(text)  # which takes longer, knows NaN, and says what is wrong
    except RecursionError as error:
        raise InvalidInput("body", "is nested too deeply") from error
    except ValueError as error:
        raise InvalidInput("body", f"is not JSON: {error}") from error


def fields(text: str, field: str = "body") -> dict[str, str]:
    """The text of each value of an object; raises `InvalidInput`."""
    position = _past_space(text, 0)
    if text[position : position + 1] != "{":
        raise InvalidInput(field, "is not a JSON object")
    found: dict[str, str] = {}
    if len(text) > _LARGE:
        raw = text.encode()
        for part in _between(raw, _outer_ends(raw, field)):
            name, start = _named(part, 0, field, found)
            found[name] = part[start:]
            _refuse_many(found, field)
        return found
    position = _past_space(text, position + 1)
    if text[position : position + 1] == "}":
        return found
    while True:
        name, start = _named(text, position, field, found)
        position = _end(text, start, field)
        found[name] = text[start:position]
        _refuse_many(found, field)
        position = _past_space(text, position)
        if text[position : position + 1] == "}":
            return found
        position = _past_space(text, _expect(text, position, ",", field))


def _refuse_many(found: dict[str, str], field: str) -> None:
    """Each is an object of its own until its call is answered, and some are compared or joined."""
    if len(found) > _MOST_FIELDS:
        raise InvalidInput(field, f"has more than {_MOST_FIELDS} fields")


def _named(text: str, position: int, field: str, known: Iterable[str]) -> tuple[str, int]:
    """The name that stands here, and where its value starts."""
    name, position = _scan(text, position, field)
    if not isinstance(name, str):
        raise InvalidInput(field, "is not a JSON object")
    if name in known:
        raise InvalidInput(field, "names a field twice", name)
    return name, _past_space(text, _expect(text, position, ":", field))


def _uncounted(count: int) -> None:
    """Any number of elements is taken."""


def elements(text: str, field: str, counted: Callable[[int], None] = _uncounted) -> list[str]:
    """The text of each element of an array; raises `InvalidInput`.

    `counted` is told how many a large array has before any is made; what it raises goes on.
    """
    position = _past_space(text, 0)
    if text[position : position + 1] != "[":
        raise InvalidInput(field, "is not an array")
    end = _plain_end(text, position)
    if end:
        inner = text[position + 1 : end - 1]
        counted(inner.count(",") + 1)
        parts = [part.strip(_SPACE) for part in inner.split(",")]
        return [] if parts == [""] else parts
    if len(text) > _LARGE:
        raw = text.encode()
        ends = _outer_ends(raw, field)
        counted(sum(map(len, ends)))
        return list(_between(raw, ends))
    position = _past_space(text, position + 1)
    found: list[str] = []
    while True:
        end = _end(text, position, field)
        found.append(text[position:end])
        position = _past_space(text, end)
        if text[position : position + 1] == "]":
            return found
        position = _past_space(text, _expect(text, position, ",", field))


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


def every(text: str, step: int) -> list[bytes] | None:
    """The text of so many values each of a large array of plain values; None for any other array.

    None too where the values are no multiple of that, or where so many are few.
    """
    if len(text) <= _LARGE or step < _FEW or text[0] != "[" or _plain_end(text, 0) != len(text):
        return None
    raw = text[1:-1].encode()
    commas = np.flatnonzero(np.frombuffer(raw, np.uint8) == _COMMA)
    if (len(commas) + 1) % step:
        return None
    ends = [*commas[step - 1 :: step].tolist(), len(raw)]
    starts = [0, *(end + 1 for end in ends[:-1])]
    return [raw[start:end].strip() for start, end in zip(starts, ends, strict=True)]


def _outer_ends(raw: bytes, field: str) -> list[Places]:
    """Where the values of a large array or object end, or its entries, that is known to be JSON.

    A piece of the text at a time, as the places of its marks take many times its memory.
    """
    # What is escaped is no mark, and where it stands does not change.
    plain = raw.replace(b"\\\\", b"--").replace(b'\\"', b"--") if b"\\" in raw else raw
    codes = np.frombuffer(plain, np.uint8)
    depth, inside = 0, 0
    ends: list[Places] = []
    for at in range(0, len(raw), _PIECE):
        places = np.flatnonzero(_MARKS[codes[at : at + _PIECE]]) + at
        marks = codes[places]
        quoted = (np.cumsum(marks == _QUOTE, dtype=np.int32) + inside) % 2
        steps = np.where(quoted, 0, _STEPS[marks])
        depths = np.cumsum(steps, dtype=np.int32) + depth
        if not len(depths):
            continue
        depth, inside = int(depths[-1]), int(quoted[-1])
        if depths.max() > _DEEPEST:
            raise InvalidInput(field, "is nested too deeply")
        outer = (marks == _COMMA) & (depths == 1) | (steps < 0) & (depths == 0)
        ends.append(places[outer & (quoted == 0)])
    return ends


def _between(raw: bytes, ends: Iterable[Places]) -> Iterator[str]:
    """What stands before each of these places, behind the one before."""
    start = len(raw) - len(raw.lstrip()) + 1
    for end in chain.from_iterable(some.tolist() for some in ends):
        part = raw[start:end].strip()
        start = end + 1
        if part:
            yield part.decode()


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


def numbers(data: Buffer, datatype: Datatype) -> bytes:
    """The elements as JSON text between commas, made in pieces: as values they take much more."""
    step = _AT_ONCE * datatype.size or max(1, len(data))
    view = memoryview(data)
    pieces = (view[at : at + step] for at in range(0, len(view), step))
    return b",".join(orjson.dumps(bytes_to_values(piece, datatype))[1:-1] for piece in pieces)
