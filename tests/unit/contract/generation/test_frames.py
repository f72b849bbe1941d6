"""Frames between sidecar and engine survive the wire, however the bytes come in pieces."""

from __future__ import annotations  # array.array takes no type argument at run time

import math
from array import array
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.generation.frames import (
    LONGEST,
    Cancel,
    Configure,
    Finish,
    Frame,
    FrameReader,
    Refusal,
    Refused,
    Sampling,
    StepReport,
    Submit,
    Token,
    write_frame,
)
from batchedmodel_contract.invalid_input import InvalidInput

_NUMBERS = st.integers(0, 2**64 - 1)
_SMALL = st.integers(0, 2**32 - 2)
_IDS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20).map(lambda ids: array("i", ids))
_REALS = st.floats(allow_nan=False, allow_infinity=False)
_SAMPLING = st.builds(
    Sampling,
    temperature=_REALS,
    top_p=_REALS,
    top_k=_SMALL,
    seed=st.integers(0, 2**63 - 1),
    logprobs=st.none() | st.integers(0, 20),
)
_SUBMITS = st.builds(
    Submit,
    id=_NUMBERS,
    ids=_IDS,
    given=_SMALL,
    max_tokens=_SMALL,
    sampling=_SAMPLING,
    stop_ids=st.lists(_SMALL, max_size=3).map(tuple),
    choices=_SMALL,
    first_choice=_SMALL,
    deadline=st.none() | _REALS,
)
_TOKENS = st.builds(
    Token,
    id=_NUMBERS,
    choice=_SMALL,
    token=st.integers(-(2**31), 2**31 - 1),
    logprob=_REALS,
    finish=st.sampled_from(Finish),
    top=st.lists(st.tuples(_SMALL, _REALS), max_size=3).map(tuple),
)
_REPORTS = st.builds(
    StepReport,
    seconds=_REALS,
    running=_SMALL,
    waiting=_SMALL,
    free_blocks=_SMALL,
    blocks=_SMALL,
    backlog=_SMALL,
    preemptions=_NUMBERS,
    prefill_tokens=_NUMBERS,
    tokens=st.lists(_TOKENS, max_size=5),
)
_FRAMES = (
    _SUBMITS
    | _REPORTS
    | st.builds(Cancel, id=_NUMBERS, choice=st.none() | _SMALL)
    | st.builds(
        Configure, max_sequences=_SMALL, max_tokens_per_step=_SMALL, token_seconds=st.none()
    )
    | st.builds(Refused, id=_NUMBERS, why=st.sampled_from(Refusal), message=st.text(max_size=20))
)


@given(st.lists(_FRAMES, max_size=4), st.integers(1, 40))
def test_frames_survive_the_wire_in_pieces_of_any_size(frames: list[Frame], size: int) -> None:
    data = b"".join(map(write_frame, frames))
    reader = FrameReader()
    read: list[Frame] = []
    for at in range(0, len(data), size):
        read += reader.feed(data[at : at + size])
    assert read == frames


def test_a_token_without_probability_has_none_behind_the_wire() -> None:
    token = Token(1, 0, 5, math.nan, Finish.NONE)
    report = StepReport(
        seconds=0.0,
        running=1,
        waiting=0,
        free_blocks=1,
        blocks=2,
        backlog=0,
        preemptions=0,
        prefill_tokens=3,
        tokens=[token],
    )
    (read,) = FrameReader().feed(write_frame(report))
    assert isinstance(read, StepReport)
    assert math.isnan(read.tokens[0].logprob)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_frames_are_refused_or_waited_for(data: bytes) -> None:
    # Nothing else is raised.
    with suppress(InvalidInput):
        list(FrameReader().feed(data))


def test_a_frame_that_says_it_is_endless_is_refused_before_it_comes() -> None:
    with pytest.raises(InvalidInput, match="longer than"):
        list(FrameReader().feed((LONGEST + 1).to_bytes(4, "little") + b"\x04"))
