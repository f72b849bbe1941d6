"""What a v2 request wants beside its tensors, and answers in the form that was wanted."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.tensors import Datatype, Tensor
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.protocols.v2 import read_body, read_options, write_answer
from support.examples import examples
from support.strategies import json_values, names, tensors

KNOWN = ["y", "z"]
Y = Tensor(name="y", datatype=Datatype.INT64, shape=(1, 2), data=struct.pack("<2q", 1, 2))
Z = Tensor(name="z", datatype=Datatype.FP32, shape=(1,), data=struct.pack("<f", 0.5))


def joined(
    head: dict[str, Any], listed: list[Tensor], binary: set[str]
) -> tuple[bytes, int | None]:
    length, parts = write_answer(head, listed, binary.__contains__)
    return b"".join(parts), length


@pytest.mark.parametrize(
    ("head", "selected", "binary"),
    [
        ({}, "yz", ""),
        ({"outputs": None, "parameters": None, "id": None}, "yz", ""),
        ({"outputs": []}, "yz", ""),
        ({"parameters": {"binary_data_output": True}}, "yz", "yz"),
        ({"parameters": {"binary_data_output": None}}, "yz", ""),
        ({"outputs": [{"name": "y"}]}, "y", ""),
        ({"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}, "y", "y"),
        (
            {"parameters": {"binary_data_output": True}, "outputs": [{"name": "z"}]},
            "z",
            "z",
        ),
        (
            {
                "parameters": {"binary_data_output": True},
                "outputs": [{"name": "y", "parameters": {"binary_data": False}}, {"name": "z"}],
            },
            "yz",
            "z",
        ),
        (
            {"outputs": [{"name": "y", "parameters": {"binary_data": True}}, {"name": "z"}]},
            "yz",
            "y",
        ),
    ],
    ids=[
        "nothing",
        "nulls",
        "no outputs listed",
        "all binary",
        "null for a flag",
        "one",
        "one binary",
        "the default holds",
        "an output overrides the default",
        "each for itself",
    ],
)
def test_a_request_says_which_outputs_it_wants_and_how(
    head: dict[str, Any], selected: str, binary: str
) -> None:
    options = read_options(head, KNOWN, ())
    assert [name for name in KNOWN if options.selects(name)] == list(selected)
    wanted = [name for name in selected if options.wants_binary(name)]
    assert wanted == list(binary)


def test_an_id_is_kept_for_the_answer() -> None:
    assert read_options({"id": "a7"}, KNOWN, ()).id == "a7"
    assert read_options({}, KNOWN, ()).id is None


def test_a_parameter_of_the_callers_own_is_taken() -> None:
    assert not read_options({"parameters": {"priority": 3}}, KNOWN, {"priority"}).binary


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({"id": 7}, "id: 7 is not a string"),
        ({"parameters": [1]}, "parameters: [1] is not an object"),
        (
            {"parameters": {"priority": 3}},
            'parameters: "priority" is not a parameter that is taken here; '
            "known: binary_data_output",
        ),
        (
            {"parameters": {"binary_data_output": 1}},
            "parameters.binary_data_output: 1 is not true or false",
        ),
        ({"outputs": {"y": 1}}, 'outputs: {"y": 1} is not a list'),
        ({"outputs": 0}, "outputs: 0 is not a list"),
        ({"outputs": ["y"]}, 'outputs[0]: "y" is not an object'),
        (
            {"outputs": [{"name": "y"}, {"name": "q"}]},
            'outputs[1].name: "q" is not an output of this model; it has y, z',
        ),
        ({"outputs": [{}]}, "outputs[0].name: null is not an output of this model; it has y, z"),
        ({"outputs": [{"name": ["y"]}]}, 'outputs[0].name: ["y"] is not an output of this model'),
        ({"outputs": [{"name": "y"}, {"name": "y"}]}, 'outputs[1].name: "y" is named twice'),
        (
            {"outputs": [{"name": "y", "parameters": 1}]},
            "outputs[0].parameters: 1 is not an object",
        ),
        (
            {"outputs": [{"name": "y", "parameters": {"classification": 2}}]},
            'outputs[0].parameters: "classification" is not a parameter that is taken here; '
            "known: binary_data",
        ),
        (
            {"outputs": [{"name": "y", "parameters": {"binary_data": "yes"}}]},
            'outputs[0].parameters.binary_data: "yes" is not true or false',
        ),
    ],
)
def test_a_wrong_wish_is_named(head: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_options(head, KNOWN, ())
    assert str(caught.value).startswith(message)


@settings(max_examples=examples(300))
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "id": json_values(max_leaves=2),
            "parameters": json_values(max_leaves=4)
            | st.fixed_dictionaries({"binary_data_output": json_values(max_leaves=2)}),
            "outputs": json_values(max_leaves=4)
            | st.lists(st.fixed_dictionaries({"name": json_values(max_leaves=2)}), max_size=2),
        },
    )
)
def test_any_wish_is_understood_or_refused(head: dict[str, Any]) -> None:
    try:
        read_options(head, KNOWN, ())
    except InvalidInput as refused:
        str(refused).encode()


def test_an_answer_without_binary_data_is_json_alone() -> None:
    body, length = joined({"id": "7"}, [Y, Z], set())
    assert length is None
    assert json.loads(body) == {
        "id": "7",
        "outputs": [
            {"name": "y", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]},
            {"name": "z", "datatype": "FP32", "shape": [1], "data": [0.5]},
        ],
    }


def test_json_and_binary_outputs_share_an_answer() -> None:
    body, length = joined({}, [Y, Z], {"z"})
    assert length is not None
    assert length % 8 == 0
    assert json.loads(body[:length])["outputs"] == [
        {"name": "y", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]},
        {"name": "z", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}},
    ]
    assert body[length:] == Z.data


def test_a_text_that_is_not_utf_8_can_be_had_as_binary_data_only() -> None:
    text = Tensor(name="y", datatype=Datatype.BYTES, shape=(1,), data=b"\x01\x00\x00\x00\xff")
    with pytest.raises(InvalidInput, match="is not UTF-8; ask for binary data"):
        joined({}, [text], set())
    body, length = joined({}, [text], {"y"})
    assert body[length:] == text.data


@settings(max_examples=examples(100))
@given(st.data(), st.lists(names, min_size=1, max_size=4, unique=True))
def test_every_mixture_survives_the_way(data: st.DataObject, listed: list[str]) -> None:
    in_json = set(data.draw(st.lists(st.sampled_from(listed), max_size=3)))
    sent = [
        Y if name in in_json else data.draw(tensors(name))  # whole numbers are exact in JSON
        for name in listed
    ]
    sent = [
        Tensor(name=name, datatype=one.datatype, shape=one.shape, data=one.data)
        for name, one in zip(listed, sent, strict=True)
    ]
    body, length = joined({}, sent, set(listed) - in_json)
    _, received = read_body(body, None if length is None else str(length), "outputs")
    assert list(received) == sent
