"""Parts of objects are read whatever else stands in them, and lists one item at a time."""

import json
import time
import timeit
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_kube.object_text import (
    DEEPEST,
    LARGEST_PART,
    MOST_CONTAINERS,
    ItemSplitter,
    Unreadable,
    members,
    parsed,
    pick,
    pick_owned,
)

_NAMED: Any = {"metadata": {"name": None}}
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)
_OBJECTS = st.dictionaries(st.text(max_size=4), _VALUES, max_size=5)


def _written(value: object, *, indented: bool = False, ascii_only: bool = True) -> bytes:
    return json.dumps(value, indent=1 if indented else None, ensure_ascii=ascii_only).encode()


@given(_OBJECTS, st.booleans(), st.booleans())
def test_members_are_what_a_parser_finds(
    value: dict[str, Any], indented: bool, ascii_only: bool
) -> None:
    text = _written(value, indented=indented, ascii_only=ascii_only)
    assert {name: json.loads(one) for name, one in members(text)} == value
    assert parsed(text) == value
    assert pick(text, dict.fromkeys(value)) == value


_WANTED = st.dictionaries(
    st.text(max_size=4),
    st.none() | st.dictionaries(st.text(max_size=4), st.none(), max_size=3),
    max_size=4,
)


@given(st.data(), _OBJECTS)
def test_a_small_object_is_read_as_a_large_one_is(
    data: st.DataObject, value: dict[str, Any]
) -> None:
    drawn = data.draw(_WANTED)
    wanted = {name: drawn.get(name) for name in [*drawn, *list(value)[::2]]}
    small = _written({**value, "managed": "x", "metadata": value})
    large = _written({**value, "managed": "x" * 40_000, "metadata": value})
    assert pick(small, wanted) == pick(large, wanted)


@given(st.lists(_OBJECTS, max_size=5), st.integers(1, 40), st.booleans())
def test_a_list_gives_its_items_however_it_is_cut(
    items: list[dict[str, Any]], size: int, indented: bool
) -> None:
    rest = {"kind": "L", "metadata": {"continue": "[{", "resourceVersion": "7"}}
    text = _written({"apiVersion": "v1", "items": items, **rest}, indented=indented)
    splitter = ItemSplitter()
    found = [
        json.loads(item)
        for at in range(0, len(text), size)
        for item in splitter.feed(text[at : at + size])
    ]
    assert found == items
    assert splitter.rest() == {"apiVersion": "v1", "items": [], **rest}


_LETTERS = st.text(st.sampled_from('ab"\\\\{}[],:\né'), max_size=6)
_DENSE = st.recursive(
    _LETTERS | st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_LETTERS, inner, max_size=2),
    max_leaves=12,
)


def _nested(value: object, depth: int) -> object:
    for _ in range(depth):
        value = [value]
    return value


@given(
    st.lists(_DENSE, min_size=1, max_size=4),
    st.integers(1, 600),
    st.integers(0, 60),
    st.integers(500, 5_000),
)
def test_large_values_end_where_a_parser_says_that_they_end(
    values: list[Any], times: int, depth: int, size: int
) -> None:
    large = _nested(values * times, depth)
    item = {"metadata": {"name": "a"}, "spec": large, "status": {"x": values}}
    text = _written(item)
    assert {name: json.loads(one) for name, one in members(text)} == item
    listed = _written({"items": [item, {}, item], "metadata": {"continue": "7"}})
    splitter = ItemSplitter()
    found = [
        json.loads(one)
        for at in range(0, len(listed), size)
        for one in splitter.feed(listed[at : at + size])
    ]
    assert found == [item, {}, item]
    assert splitter.rest() == {"items": [], "metadata": {"continue": "7"}}


@pytest.mark.parametrize("depth", [*range(1, 70), 900])
def test_how_deep_a_value_is_does_not_depend_on_what_stands_beside(depth: int) -> None:
    deep = "[" * depth + '"]["' + "]" * depth
    for text in (deep, f'[{deep[1:-1]},"\\"[[[",[[]],{{}}]'):
        assert _is_refused(text.encode()) is (depth > DEEPEST)


@pytest.mark.parametrize("some", ["[[[[0]]]]", "[" * 20 + "]" * 20, "[" * 30_000 + "]" * 30_000])
def test_how_deep_a_value_is_takes_no_longer_than_to_parse_as_many_small_ones(some: str) -> None:
    text = f"[{','.join([some] * (500_000 // len(some)))}]".encode()
    small = f"[{','.join(['[0]'] * 125_000)}]".encode()
    assert _least(lambda: _is_refused(text)) < 4 * _least(lambda: json.loads(small))


def _is_refused(text: bytes) -> bool:
    try:
        parsed(text)
    except Unreadable as error:
        return "nested" in str(error)
    return False


@pytest.mark.parametrize("some", ["[[[[0]]]]", '{"a":["b{",{"c\\"}":[]}]}', "[" * 20 + "]" * 20])
def test_a_large_value_is_passed_over_faster_than_it_could_be_parsed(some: str) -> None:
    large = f'{{"spec":[{",".join([some] * (1_300_000 // len(some)))}]}}'.encode()
    # Bracket by bracket it takes five to nine times as long.
    assert _least(lambda: list(members(large))) < 3 * _least(lambda: json.loads(large))


def test_a_member_is_found_fast_among_very_many() -> None:
    notes = {f"note-{number}": "" for number in range(25_000)}
    large = _written({"metadata": {"annotations": {**notes, "wanted": "here"}}})
    wanted: Any = {"metadata": {"annotations": {"wanted": None}}}
    assert pick(large, wanted) == {"metadata": {"annotations": {"wanted": "here"}}}
    # One after the other it took sixteen times as long.
    assert _least(lambda: pick(large, wanted)) < 6 * _least(lambda: json.loads(large))


def _least(act: Callable[[], object]) -> float:
    """Seconds of this process for it, however busy the machine is."""
    return min(timeit.repeat(act, timer=time.process_time, number=1, repeat=5))


@pytest.mark.parametrize("end", [b"", b"\\"], ids=["quote", "backslash"])
def test_a_string_that_never_ends_takes_linear_time(end: bytes) -> None:
    def seconds(quotes: int) -> float:
        return _least(lambda: _unreadable(b'"' + b'\\"' * quotes + end))

    # One quote after the other was tried: sixteen times as long.
    assert seconds(80_000) < 8 * max(seconds(20_000), 0.001)


def _unreadable(text: bytes) -> None:
    with pytest.raises(Unreadable, match="not JSON"):
        parsed(text)


@pytest.mark.parametrize("size", [7, 65_536])
def test_a_long_string_of_an_item_is_looked_at_once_in_however_many_parts(size: int) -> None:
    characters = 2_000 if size == 7 else 500_000
    items = [{"a": "\x01\\" * characters, "b": [{"c": '"]}'}]}, {"a": "}"}]
    text = json.dumps({"kind": "List", "items": items}).encode()

    def split() -> None:
        splitter = ItemSplitter()
        parts = (text[at : at + size] for at in range(0, len(text), size))
        found = [json.loads(item) for part in parts for item in splitter.feed(part)]
        assert found == items
        assert splitter.rest() == {"kind": "List", "items": []}

    # From its beginning at each part it took twenty times as long.
    assert _least(split) < 8 * _least(lambda: json.loads(text)) or size == 7
    split()


@given(st.binary(max_size=40))
def test_what_is_no_json_is_unreadable_and_nothing_else(text: bytes) -> None:
    for read in (parsed, lambda one: list(members(one)), lambda one: pick(one, _NAMED)):
        try:
            read(text)
        except Unreadable:
            continue


@pytest.mark.parametrize("brackets", [9_000, 200_000])
def test_what_nobody_asks_for_may_be_as_deep_as_it_likes(brackets: int) -> None:
    deep = b"[" * brackets + b"]" * brackets
    text = b'{"metadata":{"managedFields":' + deep + b',"name":"a"},"spec":{"x":' + deep + b"}}"
    assert pick(text, _NAMED) == {"metadata": {"name": "a"}}


def test_what_is_asked_for_is_read_up_to_a_depth_and_a_size() -> None:
    assert parsed(b"[" * (DEEPEST - 1) + b"]" * (DEEPEST - 1))
    with pytest.raises(Unreadable, match="nested"):
        parsed(b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1))
    with pytest.raises(Unreadable, match="bytes as JSON"):
        parsed(b'"' + b"x" * LARGEST_PART + b'"')
    assert parsed(b"[" + b"{}," * (MOST_CONTAINERS - 2) + b"0]")
    with pytest.raises(Unreadable, match=r"lists and objects"):
        parsed(b"[" + b"{}," * MOST_CONTAINERS + b"0]")
    with pytest.raises(Unreadable, match="^metadata name is nested"):
        pick(b'{"metadata":{"name":' + b"[" * 900 + b"]" * 900 + b"}}", _NAMED)


def test_what_is_asked_for_of_one_object_among_many_may_be_held_smaller() -> None:
    text = b'{"metadata":{"name":"' + b"x" * 98 + b'"},"spec":"' + b"y" * 999 + b'"}'
    assert pick(text, _NAMED, largest=100) == {"metadata": {"name": "x" * 98}}
    with pytest.raises(Unreadable, match="^metadata name has 100 bytes as JSON"):
        pick(text, _NAMED, largest=99)


@pytest.mark.parametrize("text", [b"", b"{", b'{"items":[', b'{"items":[{}', b'{"items":[{}]'])
def test_a_list_that_was_cut_off_is_not_taken_for_a_whole_one(text: bytes) -> None:
    splitter = ItemSplitter()
    list(splitter.feed(text))
    with pytest.raises(Unreadable):
        splitter.rest()


def test_brackets_in_a_text_are_no_lists() -> None:
    text = json.dumps({"value": "[{" * 20_001}).encode()
    assert parsed(text) == json.loads(text)


def test_an_object_with_very_many_owners_is_read_without_them() -> None:
    wanted: Any = {"metadata": {"name": None, "ownerReferences": None}}
    owners = [{"uid": str(number)} for number in range(5_000)]
    found = {"metadata": {"name": "a", "ownerReferences": owners}}
    assert pick_owned(_written(found), wanted, largest=16_384) == {"metadata": {"name": "a"}}
    few = {"metadata": {"name": "a", "ownerReferences": owners[:3]}}
    assert pick_owned(_written(few), wanted, largest=16_384) == few
