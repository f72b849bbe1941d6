"""Parameters of requests: what a declaration may say, what a request may set, how values travel."""

import json
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchedmodel_contract.inference.batch import (
    BatchRequest,
    ragged,
)
from batchedmodel_contract.inference.params import (
    Param,
    Scalar,
    Values,
    column_values,
    columns,
    param_from_mapping,
    read_values,
)
from batchedmodel_contract.inference.tensors import Datatype, Tensor
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link.batches import read_batch, write_batch

KNOWN: Final = {
    "scale": Param("FP32", 1.0, min=0, max=8),
    "count": Param("INT64", 3),
    "loud": Param("BOOL", False),
    "mode": Param("BYTES", "fast", choices=("fast", "exact")),
    "note": Param("BYTES", ""),
}


@pytest.mark.parametrize("param", KNOWN.values(), ids=KNOWN)
def test_a_declaration_survives_its_way_to_the_proxy(param: Param) -> None:
    assert param_from_mapping(json.loads(json.dumps(param.to_mapping()))) == param


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("FP64", 1.0), "datatype 'FP64' is not one of BOOL, INT64, FP32, BYTES"),
        (("INT64", 1.5), "default: 1.5 is not a whole number"),
        (("FP32", "1"), 'default: "1" is not a number'),
        (("FP32", 9.0, 0, 8), "default: 9.0 is not a number from 0 to 8"),
        (("INT64", 1, 5, 2), "default: 1 is not a whole number from 5 to 2"),
        (("BOOL", True, 0), "min and max are for numbers, not for BOOL"),
        (("BYTES", "a", None, 3), "min and max are for numbers, not for BYTES"),
        (("INT64", 1, None, None, ("1",)), "choices are for BYTES, not for INT64"),
        (("BYTES", "a", None, None, "abc"), "choices 'abc' are not a tuple of texts"),
        (("BYTES", "c", None, None, ("a", "b")), 'default: "c" is not one of a, b'),
        (("INT64", 0, 0, 2**64 - 1), "max 18446744073709551615 is not within what INT64 holds"),
        (("INT64", 0, -(2.0**64)), r"min -1.8\d+e\+19 is not within what INT64 holds"),
        (("FP32", 0.0, 0, 1e300), r"max 1e\+300 is not within what FP32 holds"),
        (("FP32", 0.0, -(10**400)), "min -10+ is not within what FP32 holds"),
        (("FP32", 0.0, float("-inf")), "min -inf is not within what FP32 holds"),
        (("FP32", 0.0, 0, float("nan")), "max nan is not within what FP32 holds"),
        (("FP32", 0.0, "0"), "min '0' is not a number"),
        (("FP32", 1e300), r"default: 1e\+300 is not a number from"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(
    arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        Param(*arguments)


@pytest.mark.parametrize(
    ("given_", "read"),
    [
        ({"scale": 2}, {"scale": 2.0}),
        ({"scale": 0.5, "count": -(2**63), "loud": True}, None),
        ({"mode": "exact", "note": "ü" * 128}, None),
        # null is what leaving it out is, as for the other parameters of v2.
        ({"scale": None, "count": 1}, {"count": 1}),
        ({"scale": None}, {}),
        ({"timeout": 5}, {}),
        ({}, {}),
        (None, {}),
    ],
)
def test_what_a_request_sets_is_read_by_the_declaration(
    given_: dict[str, Any] | None, read: dict[str, Any] | None
) -> None:
    assert (read_values(given_, KNOWN) or {}) == (given_ if read is None else read)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("scale", "2", "is not a number"),
        ("scale", True, "is not a number"),
        ("scale", 8.5, "is not a number from 0 to 8"),
        ("scale", float("nan"), "is not a number from 0 to 8"),
        ("scale", 10**400, "is not a number from 0 to 8"),
        ("count", 1.0, "is not a whole number"),
        ("count", 2**63, "is not a whole number from"),
        ("loud", 1, "is not true or false"),
        ("loud", "true", "is not true or false"),
        ("mode", "slow", "is not one of fast, exact"),
        ("note", 5, "is not a text"),
        ("note", "ü" * 129, "is longer than 256 bytes"),
        ("note", [], "is not a text"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(name: str, value: Any, rule: str) -> None:
    with pytest.raises(InvalidInput, match=f"^parameters.{name}: .*{rule}"):
        read_values({name: value}, KNOWN)


@given(
    st.floats(-3e38, 3e38),
    st.floats(-3e38, 3e38),
    st.floats(-3e38, 3e38) | st.integers(-(10**6), 10**6),
)
@example(0.9, 0.1, 0.8)
@example(0.1, 0.8, 0.1)
@example(0.9, 0.9, 0.9)
def test_both_ends_judge_a_number_alike_on_the_bounds_too(a: float, b: float, c: float) -> None:
    least, value, largest = sorted((a, b, c))
    for default, given_ in ((least, largest), (largest, least), (value, value)):
        param = Param("FP32", default, min=least, max=largest)
        (column,) = columns([read_values({"p": given_}, {"p": param}), None], {"p": param})
        arrived = column_values(column, param)
        assert [param.read(one, "p") for one in arrived] == arrived


@pytest.mark.parametrize("largest", [3.4028235e38, 3.4028234663852886e38])
def test_the_largest_number_is_taken_as_single_precision_prints_it(largest: float) -> None:
    param = Param("FP32", 0.0, max=largest)
    assert param.read(3.4028235e38, "p") == 3.4028234663852886e38
    with pytest.raises(InvalidInput, match="is not a number from"):
        param.read(3.41e38, "p")


VALUES: Final = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "scale": st.floats(0, 8, width=32),
        "count": st.integers(-(2**63), 2**63 - 1),
        "loud": st.booleans(),
        "mode": st.sampled_from(["fast", "exact"]),
        "note": st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    },
)


@pytest.mark.slow
@given(st.lists(VALUES, min_size=1, max_size=6))
def test_each_item_gets_what_its_own_request_set(rows: list[Values | None]) -> None:
    inputs = (ragged("x", Datatype.UINT8, [((1,), b"1")] * len(rows)),)
    request = BatchRequest(inputs=inputs, params=columns(rows, KNOWN))
    received = read_batch(memoryview(b"".join(write_batch(request))))
    assert received.inputs[0].shapes == inputs[0].shapes
    named = {name for values in rows for name in values or {}}
    found = {column.name: column_values(column, KNOWN[column.name]) for column in received.params}
    assert found.keys() == named
    for index, values in enumerate(rows):
        for name in named:
            expected: Scalar = {name: KNOWN[name].default, **(values or {})}[name]
            assert found[name][index] == expected


def test_a_batch_in_which_nobody_sets_anything_says_nothing_of_parameters() -> None:
    assert columns([None, None], KNOWN) == ()


def test_a_column_of_another_datatype_is_none_of_the_parameters() -> None:
    (column,) = columns([{"count": 1}], KNOWN)
    assert isinstance(column, Tensor)
    with pytest.raises(InvalidInput, match="parameters.scale: .* is not FP32"):
        column_values(column._replace(name="scale"), KNOWN["scale"])
