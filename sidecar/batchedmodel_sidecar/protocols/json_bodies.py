"""What the JSON protocols share: bodies that are objects, and values nested as their shapes say."""

import json
from collections.abc import Collection, Mapping
from operator import methodcaller
from typing import Any, Final

import orjson

from batchedmodel_contract.inference.tensors import Buffer, Datatype, bytes_to_values
from batchedmodel_contract.invalid_input import InvalidInput, shown
from batchedmodel_sidecar.calls import Row, Value
from batchedmodel_sidecar.errors import ModelNotFound

NAMELESS: Final = 'model: "" is not served here'
_MOST_ENTRIES: Final = 2048
_IS_OF_NAME: Final = methodcaller("startswith", b":")


def read_json(body: Buffer, *, unique: bool = True) -> Any:
    """What a body says; raises `InvalidInput`.

    `unique`: also for a field that is named twice.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput("body", f"is not JSON: {error}") from error
    if unique:
        refuse_doubled(body, document)
    return document


def refuse_doubled(body: Buffer, document: Any) -> None:
    """Raise `InvalidInput` where an object of a document names a field twice.

    Readers keep the first value or the last. What one allows, the next would not see.
    """
    text = bytes(body)
    if b"\\" in text:
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    # What stands behind a text is behind every second quote.
    written = sum(map(_IS_OF_NAME, map(bytes.lstrip, text.split(b'"')[2::2])))
    names: list[str] = []
    level = [document]
    # Numbers lie deepest, and are not looked at where all names are known before.
    while level and len(names) < written:
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                names.extend(value)
                inner.extend(value.values())
            elif isinstance(value, list):
                inner.extend(value)
        level = inner
    if len(names) < written:
        try:
            json.loads(bytes(body), object_pairs_hook=_once)
        except RecursionError as error:  # it reads less deeply than what has read it before
            raise InvalidInput("body", "names a field twice") from error


def _once(pairs: list[tuple[str, Any]]) -> None:
    names = set[str]()
    for name, _ in pairs:
        if name in names:
            raise InvalidInput("body", "names a field twice", name)
        names.add(name)


def json_object(body: Buffer, known: Collection[str]) -> dict[str, Any]:
    """The object in a body.

    Raises `InvalidInput`, also for a field that is not known: the answer would not be what was
    asked for.
    """
    fields = read_json(body)
    if not isinstance(fields, dict):
        raise InvalidInput("body", "is not a JSON object")
    for field in fields:
        if field not in known:
            rule = f"is not taken here; known: {', '.join(sorted(known))}"
            raise InvalidInput(shown(field)[1:-1] or "a field without a name", rule)
    return fields


def adapter_of(fields: dict[str, Any], served: str, *, named: bool) -> str | None:
    """The name in a body that is not the model's own, perhaps of an adapter; None for the model.

    It must be `named` or may be left out; raises `ModelNotFound` for what is no name.
    """
    given = fields.get("model")
    if given == served or (given is None and not named):
        return None
    if not isinstance(given, str) or not given:
        raise ModelNotFound(f"model: {shown(given)} is not served here; {served} is")
    return given


def unable(named: str | None, served: str, rule: str) -> InvalidInput | ModelNotFound:
    """The error of who asks the model for what it cannot do, or another that is not known yet."""
    if named is None:
        return InvalidInput("model", rule, served)
    return ModelNotFound(f"model: {shown(named)} is not served here; {served} is, and {rule}")


def require_text(fields: dict[str, Any], field: str) -> str:
    """A field that must be a text; raises `InvalidInput`."""
    value = fields.get(field)
    if not isinstance(value, str):
        raise InvalidInput(field, "is not a text", value)
    return value


def optional_text(fields: dict[str, Any], field: str) -> None:
    """Check a field that means nothing here, and may be left out; raises `InvalidInput`."""
    if fields.get(field) is not None:
        require_text(fields, field)


def require_few(given: list[Any], field: str) -> None:
    """Raise `InvalidInput` for more entries than a protocol takes in one request."""
    if len(given) > _MOST_ENTRIES:
        raise InvalidInput(field, f"has {len(given)} entries; at most {_MOST_ENTRIES} are taken")


def flag(fields: Mapping[str, Any], field: str, within: str = "", *, default: bool) -> bool:
    """A field that is true or false; raises `InvalidInput`. `within`: what its name begins with."""
    value = fields.get(field)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidInput(within + field, "is not true or false", value)
    return value


def usage(rows: tuple[Row, ...]) -> dict[str, int]:
    """How many tokens the rows were, as OpenAI's clients read it."""
    tokens = sum(row.length for row in rows)
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def nested(value: Value, datatype: Datatype, name: str) -> Any:
    """A value as JSON: a number or text if it has no dimensions, or lists in lists.

    Raises `InvalidInput`, naming the output, when JSON cannot say it.
    """
    level = bytes_to_values(value.data, datatype, name)
    if not value.shape:
        return level[0]
    for size in reversed(value.shape[1:]):
        level = [level[start : start + size] for start in range(0, len(level), size)]
    return level
