"""Frames of generated texts: round trips, pieces of any size, and nonsense of every kind."""

from __future__ import annotations  # array.array takes no type argument at run time

import json
import math
import struct
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.generation.description import (
    GenerationDescription,
    StepSeconds,
    generation_from_mapping,
)
from batchedmodel_contract.generation.frames import (
    Cancel,
    Configure,
    Finish,
    Frame,
    FrameReader,
    Kind,
    Refusal,
    Refused,
    Sampling,
    StepReport,
    Submit,
    Token,
    read_frame,
    write_frame,
)
from batchedmodel_contract.invalid_input import InvalidInput
from support.examples import examples

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


@settings(max_examples=examples(100))
@given(st.lists(FRAMES, max_size=4), st.integers(1, 50))
def test_frames_are_read_as_they_were_written_whatever_pieces_they_come_in(
    frames: list[Frame], size: int
) -> None:
    whole = b"".join(map(write_frame, frames))
    reader = FrameReader()
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    assert [frame for piece in pieces for frame in reader.feed(piece)] == frames


@settings(max_examples=examples(300))
@given(st.sampled_from(Kind) | st.integers(0, 255), FRAMES, st.data())
def test_what_is_no_frame_is_refused_and_raises_nothing_else(
    kind: int, frame: Frame, data: st.DataObject
) -> None:
    content = bytearray(write_frame(frame)[5:])
    for _ in range(data.draw(st.integers(0, 4))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    try:
        read = read_frame(kind, memoryview(bytes(content)))
    except InvalidInput:
        return
    assert write_frame(read)


def submitted(**edits: Any) -> bytes:
    """The content of a SUBMIT whose JSON has been edited."""
    content = write_frame(Submit(id=1, ids=array("i", [1, 2]), max_tokens=3))[5:]
    _, head, _ = struct.unpack_from("<QII", content)
    told = json.loads(content[16 : 16 + head])
    for name, value in edits.items():
        (told["sampling"] if name in told["sampling"] else told)[name] = value
    text = json.dumps(told).encode()
    return struct.pack("<QII", 1, len(text), 2) + text + content[16 + head :]


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
    assert isinstance(read_frame(Kind.SUBMIT, memoryview(submitted())), Submit)
    with pytest.raises(InvalidInput, match=name):
        read_frame(Kind.SUBMIT, memoryview(submitted(**{name: value})))


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
        pytest.param(b"[" * 100_000, id="nested too deeply"),
    ],
)
def test_bounds_that_are_none_are_refused(content: bytes) -> None:
    with pytest.raises(InvalidInput):
        read_frame(Kind.CONFIGURE, memoryview(content))


def test_a_frame_that_is_too_long_is_refused_by_its_head() -> None:
    with pytest.raises(InvalidInput, match="longer than 100 bytes"):
        list(FrameReader(100).feed(struct.pack("<IB", 101, Kind.SUBMIT)))


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
    (read,) = FrameReader().feed(write_frame(report))
    assert isinstance(read, StepReport)
    assert math.isnan(read.tokens[0].logprob)


def test_what_came_before_a_frame_that_cannot_be_read_is_read() -> None:
    read = FrameReader().feed(write_frame(Cancel(id=1)) + struct.pack("<IB", 0, 9))
    assert next(read) == Cancel(id=1)
    with pytest.raises(InvalidInput):
        next(read)


DESCRIPTION = GenerationDescription(
    vocabulary=10,
    max_context_tokens=100,
    block_tokens=16,
    blocks=7,
    max_sequences=4,
    max_tokens_per_step=8,
    step_seconds=StepSeconds(base=1.0, prefill_token=0.5, sequence=0.25, context_token=0.0),
    stop_ids=(1, 2),
    chat_template="{{ messages }}",
    special_tokens={"bos_token": "<s>"},
    sampling_defaults={"temperature": 0.5, "top_k": 20},
)


def test_a_description_survives_its_document() -> None:
    document = json.loads(json.dumps(DESCRIPTION.to_mapping()))
    assert generation_from_mapping(document) == DESCRIPTION


@pytest.mark.parametrize(
    "edit",
    [
        {"blocks": 0},
        {"vocabulary": "many"},
        {"stopIds": None},
        {"specialTokens": []},
        {"stepSeconds": {"base": -1}},
    ],
)
def test_a_document_that_is_no_description_is_refused(edit: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="generation"):
        generation_from_mapping({**DESCRIPTION.to_mapping(), **edit})
