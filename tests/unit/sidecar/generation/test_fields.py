"""What a request for generated text says that matters here."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.errors import ModelNotFound
from batchedmodel_sidecar.generation.fields import LONGEST_READ, Fields, fields_of


def read(*, chat: bool = True, **document: Any) -> Fields:
    return fields_of(json.dumps(document).encode(), readable=True, chat=chat)


def test_the_fields_of_a_chat_are_read() -> None:
    fields = read(
        model="m",
        messages=[{"role": "user", "content": "hello " * 100}],
        max_completion_tokens=20,
        max_tokens=30,
        n=3,
        stream=True,
    )
    assert (fields.model, fields.max_tokens, fields.choices, fields.streams) == ("m", 20, 3, True)
    assert 150 < fields.prompt_tokens < 250


def test_a_prompt_of_token_ids_is_counted() -> None:
    assert read(chat=False, prompt=[1, 2, 3]).prompt_tokens == 3
    assert read(chat=False, prompt=[[1, 2], [3]]).prompt_tokens == 3


def test_each_of_several_prompts_has_its_choices() -> None:
    assert read(chat=False, prompt=["a", "b", "c"], n=2).choices == 6
    assert read(chat=False, prompt=[[1, 2], [3]]).choices == 2
    assert read(chat=False, prompt=[1, 2, 3], n=2).choices == 2
    assert read(chat=False, prompt=["a"] * 500).choices == 128


def test_a_field_of_the_other_endpoint_hides_nothing() -> None:
    long: dict[str, Any] = {"messages": [{"role": "user", "content": "x" * 4000}]}
    assert read(**long, prompt=[1]).prompt_tokens > 900
    assert read(chat=False, prompt="a", max_tokens=900, max_completion_tokens=1).max_tokens == 900


@pytest.mark.parametrize("many", ["7", 7.0, 7])
@pytest.mark.parametrize("streams", [True, 1, "true", "ON"])
def test_what_servers_take_for_a_number_or_true_is_one_here(many: object, streams: object) -> None:
    fields = read(n=many, max_tokens=many, stream=streams)
    assert (fields.choices, fields.max_tokens, fields.streams) == (7, 7, True)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"model": 3, "max_tokens": "many", "n": None, "stream": "perhaps", "prompt": {}},
        {"max_tokens": -1, "n": 10**12, "prompt": []},
    ],
)
def test_a_field_that_is_wrong_is_the_servers_to_judge(document: dict[str, Any]) -> None:
    fields = read(**document)
    assert (fields.model, fields.max_tokens, fields.choices) == ("", None, 1)
    assert not fields.streams


def test_best_of_is_the_servers_to_judge_where_the_protocol_has_it() -> None:
    assert read(chat=False, best_of=128, prompt="a").choices == 1
    with pytest.raises(InvalidInput, match="best_of: 128 is not n, which is 1"):
        read(best_of=128)
    assert read(best_of=2.0, n="2", seed="5").choices == 2, "servers take these"


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b"3", b'{"a":'])
def test_what_is_no_object_is_refused_by_name(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="body"):
        fields_of(body, readable=True, chat=True)


def test_of_a_long_or_packed_body_its_length_must_do() -> None:
    assert fields_of(b"x" * 400, readable=False, chat=True).prompt_tokens == 100
    long = b"x" * (LONGEST_READ + 4)
    assert fields_of(long, readable=True, chat=True).prompt_tokens == len(long) // 4


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
)


@given(
    st.dictionaries(
        st.sampled_from(
            ["model", "n", "best_of", "max_tokens", "prompt", "stream", "max_completion_tokens"]
        ),
        JSON,
    ),
    st.booleans(),
)
def test_no_values_break_it(document: dict[str, Any], chat: bool) -> None:
    try:
        body = json.dumps(document).encode()
        fields = fields_of(body, readable=True, chat=chat)
    except (InvalidInput, ModelNotFound):
        return  # orjson takes no integers of more than 64 bits; and few rules hold for all
    assert fields.prompt_tokens >= 1
    assert 1 <= fields.choices <= 128


@pytest.mark.parametrize(
    ("body", "readable", "whole"),
    [
        (b'{"prompt": "a"}', True, True),
        (b'{"prompt": "a", "stream": true}', True, False),
        (b'{"prompt": "a"}', False, False),
        (b'{"prompt": "' + LONGEST_READ * b"a" + b'"}', True, False),
    ],
)
def test_only_what_was_read_is_known_to_be_answered_in_one_piece(
    body: bytes, readable: bool, whole: bool
) -> None:
    """A packed or long body may ask for a stream, whose end no time bounds."""
    assert fields_of(body, readable=readable, chat=False).whole is whole
