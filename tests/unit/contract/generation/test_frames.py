"""Frames of generated texts: round trips, and nonsense of every kind."""

from __future__ import annotations  # array.array takes no type argument at run time

import json
import math
import struct
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.generation.frames import (
    Cancel,
    Configure,
    Finish,
    Refusal,
    Refused,
    Sampling,
    StepReport,
    Submit,
    Token,
    read_cancel,
    read_configure,
    read_refused,
    read_step,
    read_submit,
    write_cancel,
    write_configure,
    write_refused,
    write_step,
    write_submit,
)
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link.kinds import Kind
from support.examples import examples

Frame = Submit | Cancel | Configure | StepReport | Refused
ENGINE = 3
KINDS = (Kind.SUBMIT, Kind.CANCEL, Kind.CONFIGURE, Kind.STEP, Kind.REFUSED)
IDS = st.integers(0, 2**64 - 1)
COUNTS = st.integers(0, 2**31 - 1)
REALS = st.floats(allow_nan=False, allow_infinity=False)
TOP = st.lists(st.tuples(COUNTS, REALS), max_size=3).map(tuple)
SAMPLINGS = st.builds(
    Sampling,
    temperature=REALS,
    top_p=REALS,
    top_k=COUNTS,
    min_p=REALS,
    presence_penalty=REALS,
    frequency_penalty=REALS,
    repetition_penalty=REALS,
    seed=st.integers(-(2**63), 2**64 - 1),
    logprobs=st.none() | COUNTS,
)
SUBMITS = st.builds(
    Submit,
    id=IDS,
    ids=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20).map(lambda ids: array("i", ids)),
    given=COUNTS,
    max_tokens=COUNTS,
    sampling=SAMPLINGS,
    stop_ids=st.lists(COUNTS, max_size=3).map(tuple),
    choices=st.integers(1, 65_535),
    first_choice=st.integers(0, 65_535),
    priority=st.integers(1, 3),
    deadline=st.none() | REALS,
    salt=st.text(max_size=5),
    adapter=COUNTS,
)
TOKENS = st.builds(Token, IDS, st.integers(0, 65_535), COUNTS, REALS, st.sampled_from(Finish), TOP)
SMALL = st.integers(0, 2**32 - 1)
REPORTS = st.builds(
    StepReport,
    seconds=REALS,
    running=SMALL,
    waiting=SMALL,
    free_blocks=SMALL,
    blocks=SMALL,
    backlog=SMALL,
    preemptions=IDS,
    prefill_tokens=IDS,
    tokens=st.lists(TOKENS, max_size=5),
    cached=st.lists(st.tuples(IDS, SMALL), max_size=3).map(tuple),
)
FRAMES: st.SearchStrategy[Frame] = st.one_of(
    SUBMITS,
    st.builds(Cancel, id=IDS, choice=st.none() | st.integers(0, 65_535)),
    st.builds(
        Configure,
        max_sequences=st.integers(1, 2**31 - 1),
        max_tokens_per_step=st.integers(1, 2**31 - 1),
        token_seconds=st.none() | st.floats(0, 1e6),
    ),
    REPORTS,
    st.builds(Refused, id=IDS, why=st.sampled_from(Refusal), message=st.text(max_size=20)),
)


def written(frame: Frame) -> tuple[Kind, int, memoryview]:
    """Kind, id and content of a frame."""
    match frame:
        case Submit():
            kind, number, parts = Kind.SUBMIT, frame.id, write_submit(frame, ENGINE)
        case Cancel():
            kind, number, parts = Kind.CANCEL, frame.id, [write_cancel(ENGINE, frame.choice)]
        case Configure():
            kind, number, parts = Kind.CONFIGURE, ENGINE, [write_configure(frame)]
        case StepReport():
            kind, number, parts = Kind.STEP, ENGINE, write_step(frame)
        case Refused():
            kind, number, parts = Kind.REFUSED, frame.id, write_refused(frame)
    return kind, number, memoryview(b"".join(parts))


def read_frame(kind: Kind, number: int, content: memoryview) -> tuple[int, Frame]:
    """The engine's number, and what came."""
    match kind:
        case Kind.SUBMIT:
            return read_submit(number, content)
        case Kind.CANCEL:
            return read_cancel(number, content)
        case Kind.CONFIGURE:
            return ENGINE, read_configure(content)
        case Kind.STEP:
            return ENGINE, read_step(content)
        case _:
            return ENGINE, read_refused(number, content)


@settings(max_examples=examples(200))
@given(FRAMES)
def test_frames_are_read_as_they_were_written(frame: Frame) -> None:
    assert read_frame(*written(frame)) == (ENGINE, frame)


@settings(max_examples=examples(300))
@given(st.sampled_from(KINDS), FRAMES, st.data())
def test_what_is_no_frame_is_refused_and_raises_nothing_else(
    kind: Kind, frame: Frame, data: st.DataObject
) -> None:
    content = bytearray(written(frame)[2])
    for _ in range(data.draw(st.integers(0, 4))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    try:
        _, read = read_frame(kind, 1, memoryview(bytes(content)))
    except InvalidInput:
        return
    assert written(read)


def submitted(**edits: Any) -> bytes:
    """The content of a SUBMIT whose JSON has been edited."""
    content = bytes(written(Submit(id=1, ids=array("i", [1, 2]), max_tokens=3))[2])
    _, head, _ = struct.unpack_from("<III", content)
    told = json.loads(content[12 : 12 + head])
    for name, value in edits.items():
        (told["sampling"] if name in told["sampling"] else told)[name] = value
    text = json.dumps(told).encode()
    return struct.pack("<III", ENGINE, len(text), 2) + text + content[12 + head :]


@pytest.mark.interpreted  # what is compiled checks kinds itself, and names none
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", "8"),
        ("max_tokens", 2.0),
        ("max_tokens", -1),
        ("given", True),
        ("choices", 0),
        ("choices", 65_536),
        ("first_choice", -1),
        ("priority", 7),
        ("stop_ids", [1, "a"]),
        ("salt", 7),
        ("deadline", math.inf),
        pytest.param("deadline", 10**400, id="deadline that no float holds"),
        pytest.param("weight", 10**400, id="weight that no float holds"),
        pytest.param("temperature", -(10**400), id="temperature that no float holds"),
        ("deadline", "soon"),
        ("temperature", None),
        ("top_p", math.nan),
        ("top_k", 0.5),
        ("seed", 2**64),
        ("logprobs", "all"),
    ],
)
def test_a_request_with_a_value_of_the_wrong_kind_is_refused_by_its_name(
    name: str, value: object
) -> None:
    assert read_submit(1, memoryview(submitted()))[0] == ENGINE
    with pytest.raises(InvalidInput, match=name):
        read_submit(1, memoryview(submitted(**{name: value})))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"[]", id="a list"),
        pytest.param(b"7", id="a number"),
        pytest.param(b"{", id="cut off"),
        pytest.param(b'{"max_sequences": 1}', id="a field less"),
        pytest.param(
            b'{"max_sequences": 0, "max_tokens_per_step": 1, "token_seconds": null}', id="no texts"
        ),
        pytest.param(
            b'{"max_sequences": 1, "max_tokens_per_step": 1, "token_seconds": -1}', id="time back"
        ),
        pytest.param(
            b'{"max_sequences": 1, "max_tokens_per_step": 1, "token_seconds": 1%b}' % (b"0" * 400),
            id="more than a float holds",
        ),
        pytest.param(b"[" * 100_000, id="nested too deeply"),
    ],
)
def test_bounds_that_are_none_are_refused(content: bytes) -> None:
    with pytest.raises(InvalidInput):
        read_configure(memoryview(content))


def test_a_token_without_probability_has_none_behind_the_wire() -> None:
    report = StepReport(
        seconds=0.0,
        running=1,
        waiting=0,
        free_blocks=1,
        blocks=2,
        backlog=0,
        preemptions=0,
        prefill_tokens=3,
        tokens=[Token(1, 0, 5, math.nan, Finish.NONE)],
    )
    read = read_step(written(report)[2])
    assert math.isnan(read.tokens[0].logprob)
