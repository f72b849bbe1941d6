"""Tensors: JSON values to bytes and back, BYTES elements, rows, sizes."""

import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.tensors import (
    Datatype,
    Tensor,
    bytes_to_values,
    check_size,
    join_byte_elements,
    rows,
    split_byte_elements,
    standing_alone,
    values_to_bytes,
)
from batchedmodel_contract.invalid_input import InvalidInput
from support.examples import examples
from support.strategies import FIXED_SIZE, json_values, tensors

# struct's codes: a second opinion beside the module's own table.
CODES = {
    Datatype.BOOL: "?",
    Datatype.UINT8: "B",
    Datatype.UINT16: "H",
    Datatype.UINT32: "I",
    Datatype.UINT64: "Q",
    Datatype.INT8: "b",
    Datatype.INT16: "h",
    Datatype.INT32: "i",
    Datatype.INT64: "q",
    Datatype.FP16: "e",
    Datatype.BF16: "2x",
    Datatype.FP32: "f",
    Datatype.FP64: "d",
}
EXTREMES: dict[Datatype, list[Any]] = {
    Datatype.BOOL: [False, True],
    Datatype.UINT8: [0, 2**8 - 1],
    Datatype.UINT16: [0, 2**16 - 1],
    Datatype.UINT32: [0, 2**32 - 1],
    Datatype.UINT64: [0, 2**64 - 1],
    Datatype.INT8: [-(2**7), 2**7 - 1],
    Datatype.INT16: [-(2**15), 2**15 - 1],
    Datatype.INT32: [-(2**31), 2**31 - 1],
    Datatype.INT64: [-(2**63), 2**63 - 1],
    Datatype.FP32: [-1.5, 3.4028234663852886e38],
    Datatype.FP64: [-1e300, 0.1],
    Datatype.BYTES: ["", "Grüße"],
}
INTEGERS = [d for d in Datatype if "INT" in d]


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidInput) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("datatype", FIXED_SIZE)
def test_the_size_of_an_element_is_that_of_its_datatype(datatype: Datatype) -> None:
    assert datatype.size == struct.calcsize(CODES[datatype])


@pytest.mark.parametrize("datatype", EXTREMES)
def test_the_extremes_of_each_datatype_survive_flat_and_nested(datatype: Datatype) -> None:
    values = EXTREMES[datatype]
    flat = values_to_bytes(values, datatype, (2,), "x")
    assert bytes_to_values(flat, datatype) == values
    assert values_to_bytes([[value] for value in values], datatype, (2, 1), "x") == flat
    assert values_to_bytes([[values]], datatype, (1, 1, 2), "x") == flat
    assert values_to_bytes(values, datatype, (1, 2, 1), "x") == flat
    if datatype is not Datatype.BYTES:
        assert flat == struct.pack(f"<2{CODES[datatype]}", *values)


@pytest.mark.parametrize("datatype", INTEGERS)
def test_an_integer_outside_its_datatype_is_refused(datatype: Datatype) -> None:
    lowest, highest = EXTREMES[datatype]
    rule = f"has a value outside the range of {datatype}"
    for value in (lowest - 1, highest + 1, 10**300):
        with pytest.raises(InvalidInput, match=rule):
            values_to_bytes([value], datatype, (1,), "x")


@pytest.mark.parametrize("value", [1e39, -1e39, 3.5e38, 10**400], ids=lambda v: str(v)[:6])
def test_a_number_too_large_for_fp32_is_refused_and_never_becomes_infinity(value: float) -> None:
    message = refusal(lambda: values_to_bytes([value], Datatype.FP32, (1,), "x"))
    assert message == "x: has a value outside the range of FP32"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("datatype", [Datatype.FP16, Datatype.FP32, Datatype.FP64])
def test_what_is_no_finite_number_has_no_json_form_and_is_never_null(
    datatype: Datatype, value: float
) -> None:
    data = struct.pack(f"<3{CODES[datatype]}", 1.0, value, 2.0)
    message = refusal(lambda: bytes_to_values(data, datatype, "y"))
    assert message == "y: holds NaN or infinity, which JSON cannot express; ask for binary data"


def test_finite_numbers_whose_sum_is_not_are_values_like_others() -> None:
    values = [1.7e308, 1.7e308, 0.0]
    assert bytes_to_values(struct.pack("<3d", *values), Datatype.FP64) == values


def test_integers_beyond_the_reach_of_doubles_stay_exact() -> None:
    value = 2**53 + 1
    data = values_to_bytes([value, -value], Datatype.INT64, (2,), "x")
    assert bytes_to_values(data, Datatype.INT64) == [value, -value]


@pytest.mark.parametrize(
    ("value", "datatype"),
    [
        pytest.param(True, Datatype.INT64, id="a truth value for an integer"),
        pytest.param(1, Datatype.BOOL, id="an integer for a truth value"),
        pytest.param(True, Datatype.FP32, id="a truth value for a number"),
        pytest.param(1.0, Datatype.INT64, id="a fraction for an integer"),
        pytest.param("1", Datatype.INT64, id="a string for an integer"),
        pytest.param(None, Datatype.FP32, id="null for a number"),
        pytest.param({}, Datatype.FP32, id="an object for a number"),
    ],
)
def test_a_value_of_another_kind_is_refused(value: object, datatype: Datatype) -> None:
    message = refusal(lambda: values_to_bytes([value], datatype, (1,), "x"))
    assert message == f"x: has a value that is not a {datatype}"


def test_an_integer_may_stand_for_a_floating_point_number() -> None:
    for datatype in (Datatype.FP32, Datatype.FP64):
        one = values_to_bytes([1], datatype, (1,), "x")
        assert one == values_to_bytes([1.0], datatype, (1,), "x")


def test_bytes_are_strings_in_json() -> None:
    assert refusal(lambda: values_to_bytes([1], Datatype.BYTES, (1,), "x")) == (
        "x: has a value that is not a string"
    )
    assert refusal(lambda: values_to_bytes(["\ud800"], Datatype.BYTES, (1,), "x")) == (
        "x: has a string with half of a surrogate pair"
    )


@pytest.mark.parametrize("datatype", [Datatype.FP16, Datatype.BF16])
def test_half_precision_is_refused_as_json(datatype: Datatype) -> None:
    message = refusal(lambda: values_to_bytes([1.0], datatype, (1,), "x"))
    assert message == (f"x: {datatype} has no JSON form in this protocol; send it as binary data")


def test_half_precision_is_widened_in_answers() -> None:
    assert bytes_to_values(struct.pack("<2e", 1.5, -2.0), Datatype.FP16) == [1.5, -2.0]
    # BF16 is the upper half of FP32.
    data = b"".join(struct.pack("<f", value)[2:] for value in (1.5, -2.0, 3.0e38, math.inf))
    assert bytes_to_values(data[:4], Datatype.BF16) == [1.5, -2.0]
    assert bytes_to_values(data[4:6], Datatype.BF16) == [pytest.approx(3.0e38, rel=0.01)]
    assert "holds NaN or infinity" in refusal(lambda: bytes_to_values(data, Datatype.BF16))


@pytest.mark.parametrize(
    ("values", "shape", "rule"),
    [
        pytest.param([1, 2, 3], (2,), "has 3 values; the shape needs 2", id="too many"),
        pytest.param([1], (2,), "has 1 values; the shape needs 2", id="too few"),
        pytest.param([], (2,), "has 0 values; the shape needs 2", id="none"),
        pytest.param([], (), "has 0 values; the shape needs 1", id="none for a scalar"),
        pytest.param([[1, 2], [3]], (2, 2), "does not nest as shape [2, 2]", id="ragged"),
        pytest.param([[1, 2, 3, 4]], (2, 2), "does not nest as shape [2, 2]", id="too few rows"),
        pytest.param([[1], 2], (2, 1), "does not nest as shape [2, 1]", id="half nested"),
        pytest.param([[1]], (), "does not nest as shape []", id="a nested scalar"),
        pytest.param([[1, 2]], (2,), "does not nest as shape [2]", id="nested too deeply"),
        pytest.param([1, [2]], (2,), "has a value that is not a INT64", id="nested late"),
        pytest.param(7, (1,), "7 is not an array", id="a bare number"),
        pytest.param(None, (1,), "null is not an array", id="nothing"),
        pytest.param("1", (1,), '"1" is not an array', id="a string"),
        pytest.param({"0": 1}, (1,), '{"0": 1} is not an array', id="an object"),
        pytest.param([1], (10**12, 10**12), f"has 1 values; the shape needs {10**24}", id="huge"),
    ],
)
def test_values_that_do_not_fit_the_shape_are_refused(
    values: object, shape: tuple[int, ...], rule: str
) -> None:
    message = refusal(lambda: values_to_bytes(values, Datatype.INT64, shape, "inputs[0].data"))
    assert message == f"inputs[0].data: {rule}"


@pytest.mark.parametrize(
    ("values", "shape"),
    [([], (0,)), ([], (0, 5)), ([], (3, 0)), ([[], [], []], (3, 0)), ([7], ())],
    ids=str,
)
def test_empty_tensors_and_scalars_have_a_json_form(
    values: list[Any], shape: tuple[int, ...]
) -> None:
    assert len(values_to_bytes(values, Datatype.INT64, shape, "x")) == 8 * math.prod(shape)


@settings(max_examples=examples(200))
@given(json_values(), st.sampled_from(Datatype), st.lists(st.integers(0, 3), max_size=3))
def test_any_values_become_bytes_of_the_right_size_or_are_refused(
    values: object, datatype: Datatype, shape: list[int]
) -> None:
    try:
        data = values_to_bytes(values, datatype, tuple(shape), "x")
    except InvalidInput:
        return
    check_size(Tensor(name="x", datatype=datatype, shape=tuple(shape), data=data), "x")


@settings(max_examples=examples(100))
@given(st.lists(st.binary(max_size=10), max_size=10))
def test_byte_elements_survive_their_encoding(elements: list[bytes]) -> None:
    joined = join_byte_elements(iter(elements))
    assert [bytes(element) for element in split_byte_elements(joined)] == elements
    assert len(split_byte_elements(bytearray(joined))) == len(elements)


@settings(max_examples=examples(200))
@given(st.binary(max_size=40))
def test_any_bytes_are_elements_or_refused(data: bytes) -> None:
    try:
        elements = split_byte_elements(data)
    except InvalidInput:
        return
    assert join_byte_elements(bytes(element) for element in elements) == data


def test_elements_that_lead_past_the_end_are_refused() -> None:
    joined = join_byte_elements(iter([b"abc"]))
    assert refusal(lambda: split_byte_elements(joined[:-1])) == "data: ends inside an element"
    assert refusal(lambda: split_byte_elements(joined[:3])) == (
        "data: ends inside the length of an element"
    )
    assert refusal(lambda: split_byte_elements(b"\xff\xff\xff\xff")) == (
        "data: ends inside an element"
    )


def test_bytes_that_are_no_text_have_no_json_form() -> None:
    data = join_byte_elements(iter([b"\xff"]))
    assert refusal(lambda: bytes_to_values(data, Datatype.BYTES)) == (
        "data: is not UTF-8; ask for binary data"
    )


@settings(max_examples=examples(100))
@given(tensors())
def test_a_tensor_of_the_right_size_passes(tensor: Tensor) -> None:
    check_size(tensor, "x")


@pytest.mark.parametrize("datatype", FIXED_SIZE)
def test_data_of_another_size_is_refused(datatype: Datatype) -> None:
    data = bytes(3 * datatype.size + 1)
    tensor = Tensor(name="x", datatype=datatype, shape=(3,), data=data)
    assert refusal(lambda: check_size(tensor, "x")) == (
        f"x: is {len(data)} bytes long; shape and datatype need {3 * datatype.size}"
    )


def test_another_number_of_byte_elements_is_refused() -> None:
    data = join_byte_elements(iter([b"a", b"b"]))
    tensor = Tensor(name="x", datatype=Datatype.BYTES, shape=(3,), data=data)
    assert refusal(lambda: check_size(tensor, "x")) == "x: holds 2 elements, not 3"


@settings(max_examples=examples(100))
@given(tensors())
def test_rows_are_the_tensor_cut_along_its_first_dimension(tensor: Tensor) -> None:
    if not tensor.shape or tensor.elements == 0:
        assert "has no rows that hold a value" in refusal(lambda: rows(tensor))
        return
    cut = rows(tensor)
    assert len(cut) == tensor.shape[0]
    assert b"".join(cut) == tensor.data
    for row in cut:
        one = Tensor(name="x", datatype=tensor.datatype, shape=tensor.shape[1:], data=row)
        check_size(one, "x")


@pytest.mark.parametrize("datatype", [Datatype.FP32, Datatype.BYTES])
def test_a_billion_rows_of_nothing_cost_nothing(datatype: Datatype) -> None:
    claimed = Tensor(name="x", datatype=datatype, shape=(10**9, 0), data=b"")
    assert "has no rows" in refusal(lambda: rows(claimed))


def test_a_piece_of_a_larger_buffer_is_copied_and_what_is_most_of_one_is_not() -> None:
    whole = bytearray(range(100))
    piece, most = memoryview(whole)[50:], memoryview(whole)[:51]
    own = standing_alone([piece, b"bytes", whole])
    assert own == [piece, b"bytes", whole]
    assert isinstance(own[0], bytes)
    assert standing_alone([most])[0] is most


def test_pieces_that_are_most_of_a_buffer_together_are_not_copied() -> None:
    """They are the whole answer of a caller who was alone in its batch: megabytes at a stretch."""
    whole = bytearray(range(100))
    pieces = [memoryview(whole)[at : at + 10] for at in range(0, 60, 10)]
    assert all(own is piece for own, piece in zip(standing_alone(pieces), pieces, strict=True))
