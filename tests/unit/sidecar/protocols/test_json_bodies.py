"""Bodies in which a field is named twice: found whatever else the text holds, and nowhere else."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.protocols.json_bodies import read_json

TEXTS = st.text(st.sampled_from('":\\,{}[] \n\tab\u00e4'), max_size=8)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)


@given(DOCUMENTS, st.sampled_from([None, 1]), st.booleans())
def test_a_document_without_doubled_fields_is_read(
    document: Any, indent: int | None, ascii_only: bool
) -> None:
    body = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()
    assert read_json(body) == orjson.loads(body)


@given(
    st.dictionaries(TEXTS, DOCUMENTS, min_size=1), st.lists(st.booleans(), max_size=3), st.data()
)
def test_a_doubled_field_is_found_at_any_depth(
    document: dict[str, Any], around: list[bool], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(document)))
    text = f"{json.dumps(document)[:-1]}, {json.dumps(name)} : {json.dumps(data.draw(DOCUMENTS))}}}"
    for within_object in around:
        text = f'{{"in": [{text}]}}' if within_object else f"[1.5, {text}]"
    with pytest.raises(InvalidInput, match="body: .* names a field twice"):
        read_json(text.encode())


def test_the_doubled_field_is_named_and_only_within_one_object() -> None:
    assert read_json(b'[{"a": 1}, {"a": {"a": 2}}]') == [{"a": 1}, {"a": {"a": 2}}]
    with pytest.raises(InvalidInput, match=r'body: "b" names a field twice'):
        read_json(b'[{"a": 1}, {"a": {"b": 2, "\\u0062": 3}}]')


def test_a_doubled_field_beside_the_deepest_lists_is_refused_as_well() -> None:
    """The reader that names the field reads less deeply: such a body was a 500."""
    with pytest.raises(InvalidInput, match="names a field twice"):
        read_json(b'{"x":' + 1020 * b"[" + 1020 * b"]" + b',"a":1,"a":1}')
