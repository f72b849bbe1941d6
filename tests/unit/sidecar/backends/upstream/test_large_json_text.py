"""Large JSON is cut by its brackets and commas alone, into the same parts as small JSON."""

import json
import random
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.spec import ServerProtocol
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.backends.upstream.catalogue import upstream
from batchedmodel_sidecar.backends.upstream.protocol import ParsedRequest
from batchedmodel_sidecar.backends.upstream.protocols import json_text
from batchedmodel_sidecar.backends.upstream.protocols.v2_rows import cut, is_block
from batchedmodel_sidecar.errors import Rejected
from support.steps import steps

FAR = " " * 5000
"""Before a text it makes it a large one."""

letters = st.text('ab[]{},:"\\é ', max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | letters,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(letters, inner, max_size=4),
    max_leaves=12,
)
spaces = st.sampled_from([(",", ":"), (", ", ": "), ("\n,\t", " : ")])


@given(st.lists(values), spaces, st.booleans())
def test_an_array_has_the_same_elements(
    value: list[Any], separators: tuple[str, str], plain: bool
) -> None:
    text = json.dumps(value, separators=separators, ensure_ascii=plain)
    assert json_text.elements(FAR + text, "x") == json_text.elements(text, "x")


@given(st.dictionaries(letters, values), spaces, st.booleans())
def test_an_object_has_the_same_fields(
    value: dict[str, Any], separators: tuple[str, str], plain: bool
) -> None:
    text = json.dumps(value, separators=separators, ensure_ascii=plain)
    assert json_text.fields(FAR + text) == json_text.fields(text)


def test_a_field_named_twice_is_refused_in_a_large_object_too() -> None:
    with pytest.raises(InvalidInput, match="names a field twice"):
        json_text.fields('{"a": [1], "a": [2]}' + FAR)


@pytest.mark.parametrize(
    "body",
    [b'{"a": [1, 2}]', b'{"a": [1, 2]', b'{"a": [1,, 2]}', b'{"a": [[1], 2]]}', b'{"a": "b}'],
)
def test_a_large_body_that_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="is not JSON"):
        json_text.checked_fields(FAR.encode() + body)


def test_numbers_that_json_lacks_are_taken_as_they_are() -> None:
    fields = json_text.checked_fields(FAR.encode() + b'{"a": [NaN, -Infinity], "b": 1e999}')
    assert fields == {"a": "[NaN, -Infinity]", "b": "1e999"}


@pytest.mark.parametrize("separator", [",", ", ", " ,\n"])
def test_the_rows_of_a_flat_array_hold_its_values(separator: str) -> None:
    chance = random.Random(5)
    texts = [str(chance.choice([chance.random(), chance.randrange(10**9)])) for _ in range(3000)]
    found = cut(f"[ {separator.join(texts)} ]", (6, 500), nested=False, field="x")
    assert found is not None
    read = [[one.strip() for one in bytes(row).decode().split(",")] for row in found]
    assert read == [texts[at : at + 500] for at in range(0, 3000, 500)]


@pytest.mark.parametrize("count", [2999, 3001, 2500, 3500])
def test_a_flat_array_of_other_than_its_shape_says_has_no_rows(count: int) -> None:
    data = json.dumps([1] * count)
    assert cut(data, (6, 500), nested=False, field="x") is None
    assert not is_block(data, (6, 500), nested=False)


def test_a_large_array_of_nothing_has_no_value() -> None:
    assert cut(f"[{FAR}]", (1, 1), nested=False, field="x") is None
    assert cut(f"[{FAR}]", (1, 100), nested=False, field="x") is None


@pytest.mark.parametrize("part", ['"",', "[],", "[1],", '{"a":1},'])
def test_cutting_takes_a_few_times_the_memory_of_the_text(part: str) -> None:
    text = "[" + part * (2_000_000 // len(part)) + "0]"
    tracemalloc.start()
    parts = json_text.elements(text, "x")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    held = sum(sys.getsizeof(one) for one in parts) + sys.getsizeof(parts)
    assert peak < held + 8 * len(text)


@pytest.mark.parametrize("first", ['"\\\\n",', '"\\\\\\\\",', ""])
@pytest.mark.parametrize("part", ['"",', "[],", "1,"])
def test_a_long_array_is_counted_before_an_element_is_made(first: str, part: str) -> None:
    """Whatever is escaped in it: a list of a million empty ones has three megabytes."""

    def refuse(count: int) -> None:
        raise Rejected(Rejection.TOO_LARGE, str(count))

    text = f"[{first}{part * (99_999 - bool(first))}{part[:-1]}]"

    def refused() -> None:
        with pytest.raises(Rejected, match=r"^100000$"):
            json_text.elements(text, "x", refuse)

    assert steps(refused) < 20_000


def test_inputs_of_several_kinds_are_counted_before_one_is_made() -> None:
    """A number in front makes a list of texts no list of token ids."""
    openai = upstream(ServerProtocol.OPENAI, "m").protocol
    body = b'{"input": [1' + b',""' * 100_000 + b"]}"

    def refused() -> None:
        with pytest.raises(Rejected):
            openai.parse(body, None, 1000)

    assert steps(refused) < 20_000


def test_a_long_list_of_token_ids_is_one_input_and_is_not_taken_apart() -> None:
    openai = upstream(ServerProtocol.OPENAI, "m").protocol
    found: list[ParsedRequest | None] = []

    def parse(last: bytes) -> None:
        body = b'{"input": [1' + b",1" * 100_000 + last + b"]}"
        found.append(openai.parse(body, None, 10))

    assert steps(lambda: parse(b"")) < 20_000
    parse(b", -1")
    ids, others = found
    assert ids is not None
    assert len(ids.rows) == 1
    assert others is None  # for the server to say


def test_nesting_that_others_cannot_read_is_refused_in_large_texts_too() -> None:
    deep = "[" * 950 + "]" * 950
    with pytest.raises(InvalidInput, match="nested too deeply"):
        json_text.checked_fields(f'{FAR}{{"a": {deep}}}'.encode())


def test_sizes_of_one_cost_no_memory_beyond_the_body() -> None:
    data = f"[[{' ' * 300_000}0]]"
    tracemalloc.start()
    assert not is_block(data, (1, 300_000, *[1] * 62), nested=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * len(data)


def test_a_large_array_of_texts_is_cut_at_its_texts() -> None:
    texts = [f"a,{number}]" for number in range(1000)]
    found = cut(json.dumps(texts), (500, 2), nested=False, field="x")
    assert found is not None
    assert [json.loads(b"[" + bytes(row) + b"]") for row in found] == [
        texts[at : at + 2] for at in range(0, 1000, 2)
    ]
