"""Bodies of the Open Inference Protocol v2."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.tensors import HEADER_LENGTH, Datatype, Tensor, bytes_to_values
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.protocols.v2 import read_body, write_answer
from support.examples import examples
from support.steps import steps
from support.strategies import json_values, names, tensors
from support.v2_bodies import binary_body


def dumps(head: Any) -> bytes:
    return json.dumps(head).encode()


def read(
    body: bytes, header_length: str | None = None
) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    return read_body(body, header_length, "inputs")


def refusal(body: bytes, header_length: str | None = None) -> str:
    with pytest.raises(InvalidInput) as caught:
        read(body, header_length)
    return str(caught.value)


def entry(**changes: Any) -> dict[str, Any]:
    """One right tensor with some fields changed; a value of `...` removes one."""
    whole = {"name": "x", "datatype": "INT64", "shape": [2], "data": [1, 2]} | changes
    return {name: value for name, value in whole.items() if value is not ...}


def binary(size: Any, **changes: Any) -> dict[str, Any]:
    return entry(**{"data": ..., "parameters": {"binary_data_size": size}} | changes)


def body_of(*entries: object, data: bytes = b"") -> tuple[bytes, str]:
    head = dumps({"inputs": list(entries)})
    return head + data, str(len(head))


def test_a_json_body_is_read_without_a_header_length() -> None:
    head, (tensor,) = read(dumps({"id": "7", "inputs": [entry(shape=[2, 1], data=[[1], [2]])]}))
    assert head["id"] == "7"
    assert tensor == Tensor(
        name="x", datatype=Datatype.INT64, shape=(2, 1), data=struct.pack("<2q", 1, 2)
    )


def test_binary_and_json_tensors_may_share_a_body() -> None:
    data = struct.pack("<2f", 0.5, 1.5)
    body, length = body_of(
        entry(name="a"), binary(8, name="b", datatype="FP32"), entry(name="c"), data=data
    )
    _, (first, second, third) = read(body, length)
    assert bytes(second.data) == data
    assert (first.name, second.name, third.name) == ("a", "b", "c")


def test_parameters_without_a_binary_size_leave_the_tensor_in_json() -> None:
    _, (tensor,) = read(dumps({"inputs": [entry(parameters={"content_type": "np"})]}))
    assert bytes_to_values(tensor.data, tensor.datatype) == [1, 2]


DATATYPES = ", ".join(Datatype)
SIZE_RULE = "has a size that is not an integer from 0 to 2^63 - 1"
BEYOND = "leads past the end of the body"
WRONG_ENTRIES: list[tuple[object, str]] = [
    (7, "inputs[0]: 7 is not an object"),
    (None, "inputs[0]: null is not an object"),
    ([], "inputs[0]: [] is not an object"),
    (entry(name=...), "inputs[0].name: null must be a string that is not empty"),
    (entry(name=""), 'inputs[0].name: "" must be a string that is not empty'),
    (entry(name=["x"]), 'inputs[0].name: ["x"] must be a string that is not empty'),
    (entry(datatype=...), f"inputs[0].datatype: null is not one of {DATATYPES}"),
    (entry(datatype="float32"), f'inputs[0].datatype: "float32" is not one of {DATATYPES}'),
    (entry(datatype=["INT64"]), f'inputs[0].datatype: ["INT64"] is not one of {DATATYPES}'),
    (entry(shape=...), "inputs[0].shape: null is not an array of at most 16 sizes"),
    (entry(shape=2), "inputs[0].shape: 2 is not an array of at most 16 sizes"),
    (
        entry(shape=[1] * 17),
        f"inputs[0].shape: {[1] * 17} is not an array of at most 16 sizes",
    ),
    (
        entry(shape=[-1]),
        "inputs[0].shape: [-1] has a size that is not an integer from 0 to 2^63 - 1",
    ),
    (
        entry(shape=[2.0]),
        "inputs[0].shape: [2.0] has a size that is not an integer from 0 to 2^63 - 1",
    ),
    (
        entry(shape=[True]),
        "inputs[0].shape: [true] has a size that is not an integer from 0 to 2^63 - 1",
    ),
    (
        entry(shape=[2**63]),
        f"inputs[0].shape: [{2**63}] has a size that is not an integer from 0 to 2^63 - 1",
    ),
    (entry(data=...), "inputs[0].data: null is not an array"),
    (entry(data=[1]), "inputs[0].data: has 1 values; the shape needs 2"),
    (entry(data=[1, 2.0]), "inputs[0].data: has a value that is not a INT64"),
    (entry(parameters=[]), "inputs[0].parameters: [] is not an object"),
    (binary(-1), "inputs[0].parameters.binary_data_size: -1 is not a size in bytes"),
    (binary(True), "inputs[0].parameters.binary_data_size: true is not a size in bytes"),
    (binary("16"), 'inputs[0].parameters.binary_data_size: "16" is not a size in bytes'),
    (
        entry(parameters={"binary_data_size": 16}),
        "inputs[0].data: is given beside binary_data_size",
    ),
    (binary(17), f"inputs[0].parameters.binary_data_size: 17 {BEYOND}"),
    (
        binary(2**63),
        f"inputs[0].parameters.binary_data_size: {2**63} {BEYOND}",
    ),
    (binary(8), "inputs[0]: is 8 bytes long; shape and datatype need 16"),
    (binary(4, datatype="BYTES"), "inputs[0]: holds 1 elements, not 2"),
    (binary(16, datatype="BYTES"), "inputs[0]: holds more than 2 elements"),
    (binary(7, datatype="BYTES"), "inputs[0]: ends inside the length of an element"),
]


@pytest.mark.parametrize(
    ("wrong", "message"), WRONG_ENTRIES, ids=[m[:60] for _, m in WRONG_ENTRIES]
)
def test_a_wrong_tensor_gets_its_own_message(wrong: object, message: str) -> None:
    body, length = body_of(wrong, data=bytes(16))
    assert refusal(body, length) == message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b"", "body: is not JSON: ", id="empty"),
        pytest.param(b'{"inputs": [', "body: is not JSON: ", id="cut off"),
        pytest.param(b"\xff\xfe\x00", "body: is not JSON: ", id="no text"),
        pytest.param(b"[" * 100_000, "body: is not JSON: ", id="nested too deeply"),
        pytest.param(b"[]", "body: is not a JSON object", id="a list"),
        pytest.param(b"3", "body: is not a JSON object", id="a number"),
        pytest.param(b"{}", "inputs: must be a list of at least one tensor", id="no inputs"),
        pytest.param(
            b'{"inputs": []}', "inputs: must be a list of at least one tensor", id="no tensor"
        ),
        pytest.param(
            b'{"inputs": {}}', "inputs: must be a list of at least one tensor", id="an object"
        ),
    ],
)
def test_a_body_that_is_no_request_is_refused(body: bytes, message: str) -> None:
    assert refusal(body).startswith(message)


def test_a_wrong_tensor_is_named_by_its_place() -> None:
    assert refusal(dumps({"inputs": [entry(), entry(name="y", data=[1])]})).startswith(
        "inputs[1].data:"
    )


def test_a_doubled_name_is_refused() -> None:
    assert refusal(dumps({"inputs": [entry(), entry()]})) == "inputs: names a tensor twice"


def test_bytes_that_no_tensor_claims_are_refused() -> None:
    body, length = body_of(binary(16), data=bytes(20))
    assert refusal(body, length) == "body: has 4 bytes that no tensor claims"


@pytest.mark.parametrize(
    "length",
    ["", "-1", "+5", " 5", "5.0", "1e3", "five", "٣", "²", "999999", "9" * 5000],
    ids=lambda length: length[:8] or "empty",
)
def test_a_wrong_header_length_is_refused(length: str) -> None:
    assert refusal(dumps({"inputs": [entry()]}), length).startswith(f"{HEADER_LENGTH}: ")


def test_a_header_length_inside_the_json_leaves_no_json() -> None:
    body, length = body_of(entry())
    assert refusal(body, str(int(length) - 1)).startswith("body: is not JSON")
    assert refusal(body, "0").startswith("body: is not JSON")


@settings(max_examples=examples(100))
@given(st.data(), st.lists(names, min_size=1, max_size=4, unique=True))
def test_tensors_survive_a_binary_body(data: st.DataObject, listed: list[str]) -> None:
    sent = [data.draw(tensors(name)) for name in listed]
    length, body = binary_body(sent, {"id": "7"})
    head, received = read(body, str(length))
    assert head["id"] == "7"
    assert list(received) == sent


def in_json(tensor: Tensor) -> dict[str, Any]:
    (text,) = write_answer({}, [tensor], lambda _: False)[1]
    (told,) = json.loads(bytes(text))["outputs"]
    return dict(told)


def is_text(tensor: Tensor) -> bool:
    try:
        bytes_to_values(tensor.data, tensor.datatype)
    except InvalidInput:
        return False
    return tensor.datatype not in (Datatype.FP16, Datatype.BF16)


@settings(max_examples=examples(100))
@given(tensors().filter(is_text))
def test_values_survive_a_json_body(sent: Tensor) -> None:
    _, (received,) = read(dumps({"inputs": [in_json(sent)]}))
    assert received.shape == sent.shape
    there = bytes_to_values(received.data, received.datatype)
    back = bytes_to_values(sent.data, sent.datatype)
    # NaN is unequal to itself, but one text stands for it.
    assert json.dumps(there) == json.dumps(back)


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(json_values() | st.fixed_dictionaries({"inputs": json_values()}))
def test_any_json_is_a_request_or_refused(head: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(dumps(head))
    str(caught.value).encode()


FIELDS = ("name", "datatype", "shape", "data", "parameters")


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(
    st.dictionaries(st.sampled_from(FIELDS), json_values(max_leaves=6), max_size=3),
    st.none() | json_values(max_leaves=2),
    st.binary(max_size=20),
)
def test_any_value_in_any_field_is_read_or_refused(
    changes: dict[str, Any], size: object, data: bytes
) -> None:
    changed = entry(**changes) if size is None else binary(size, **changes)
    body, length = body_of(changed, data=data)
    try:
        _, (tensor,) = read(body, length)
    except InvalidInput as refused:
        str(refused).encode()
    else:
        assert tensor.elements >= 0


@settings(max_examples=examples(300))
@given(st.binary(max_size=60), st.none() | st.text(max_size=4) | st.integers(0, 70).map(str))
def test_any_bytes_are_a_request_or_refused(body: bytes, length: str | None) -> None:
    with pytest.raises(InvalidInput):
        read(body, length)


def test_the_sizes_of_a_shape_cannot_outgrow_what_a_message_can_show() -> None:
    assert "[9223372036854775807, " in refusal(dumps({"inputs": [entry(shape=[2**63 - 1, 2**63])]}))
    assert refusal(dumps({"inputs": [entry(shape=[2**63 - 1] * 16)]})).startswith(
        "inputs[0].data: has 2 values; the shape needs 2"
    )


def test_body_of_too_many_tensors_is_refused_before_they_are_read() -> None:
    body = json.dumps({"inputs": [7] * 2000}).encode()
    with pytest.raises(InvalidInput, match="inputs: lists 2000 tensors; at most 1024 are taken"):
        read_body(body, None, "inputs")


@pytest.mark.parametrize("count", [2, 1_000_000])
def test_a_bytes_tensor_is_looked_at_no_further_than_its_shape_and_the_bound_say(
    count: int,
) -> None:
    """A million empty elements are four bytes of zeros each, and a kilobyte with gzip."""
    about = {"name": "x", "datatype": "BYTES", "shape": [count]}
    head = dumps({"inputs": [about | {"parameters": {"binary_data_size": 4_000_000}}]})
    body = head + bytes(4_000_000)

    def refused() -> None:
        with pytest.raises(InvalidInput):
            read_body(body, str(len(head)), "inputs", most_strings=1000)

    assert steps(refused) < 10_000


def test_the_bound_on_strings_is_that_of_a_body() -> None:
    entries = [
        {"name": f"x{n}", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]} for n in range(3)
    ]
    body = json.dumps({"inputs": entries}).encode()
    read_body(body, None, "inputs", most_strings=6)
    with pytest.raises(InvalidInput, match=r"inputs\[2\]\.shape: .* the 1 of BYTES"):
        read_body(body, None, "inputs", most_strings=5)
