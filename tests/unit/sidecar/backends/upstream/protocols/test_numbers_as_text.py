"""What a v2 server gave as bytes and a caller wants as JSON: the same numbers, flat."""

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.backends.upstream.protocols.v2_rows import as_json
from support.examples import examples

FLOATS: dict[Datatype, np.dtype[Any]] = {
    Datatype.FP32: np.dtype("<f4"),
    Datatype.FP64: np.dtype("<f8"),
}


def texts(datatype: Datatype, *rows: bytes) -> list[str]:
    return as_json(b"".join(rows), datatype, "y").decode().split(",")


@pytest.mark.parametrize("datatype", FLOATS)
@settings(max_examples=examples(300))
@given(data=st.data())
def test_a_number_becomes_the_shortest_text_that_reads_as_the_same_number(
    datatype: Datatype, data: st.DataObject
) -> None:
    of = FLOATS[datatype]
    raw = data.draw(st.binary(min_size=of.itemsize, max_size=of.itemsize))
    (number,) = np.frombuffer(raw, of)
    if not np.isfinite(number):
        with pytest.raises(InvalidInput, match="ask for binary data"):
            texts(datatype, raw)
        return
    (text,) = texts(datatype, raw)
    assert of.type(json.loads(text)).tobytes() == raw
    assert digits(text) == digits(np.format_float_scientific(number, unique=True))


def digits(text: str) -> str:
    """The significant ones of a number's text."""
    return text.lower().partition("e")[0].replace(".", "").lstrip("-0").rstrip("0")


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.1, "0.1"), (-0.0, "-0.0"), (16777216.0, "16777216.0"), (1 / 3, "0.33333334")],
)
def test_fp32_is_written_with_no_digits_of_a_wider_number(number: float, text: str) -> None:
    assert texts(Datatype.FP32, struct.pack("<f", number)) == [text]


@given(st.integers(-(2**63), 2**63 - 1))
@example(2**53 + 1)
def test_an_integer_keeps_all_its_digits(number: int) -> None:
    assert texts(Datatype.INT64, struct.pack("<q", number)) == [str(number)]


@pytest.mark.parametrize("datatype", [Datatype.FP16, Datatype.BF16])
@given(bits=st.integers(0, 2**16 - 1))
def test_a_half_reads_as_the_same_number(datatype: Datatype, bits: int) -> None:
    raw = struct.pack("<H", bits)
    try:
        (text,) = texts(datatype, raw)
    except InvalidInput:
        exponent = 0x7C00 if datatype is Datatype.FP16 else 0x7F80
        assert bits & exponent == exponent
        return
    number = json.loads(text)
    as_half = struct.pack("<e", number) if datatype is Datatype.FP16 else struct.pack("<f", number)
    assert as_half[-2:] == raw


def test_rows_follow_each_other_flat() -> None:
    rows = [struct.pack("<2f", 1.0, 2.5), struct.pack("<2f", 3.0, -4.0)]
    assert texts(Datatype.FP32, *rows) == ["1.0", "2.5", "3.0", "-4.0"]
