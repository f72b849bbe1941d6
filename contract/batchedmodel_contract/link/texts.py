"""Texts as the contents of frames: what an engine is asked, and what its steps did.

What the engine did comes in one frame for each step, in columns: with a frame for each token, 256
sequences at 50 steps a second would make 12,800 of them. Readers raise `InvalidInput`. Compiled.
"""

from __future__ import annotations  # array.array takes no type argument at run time

import json
import struct
import sys
from array import array
from dataclasses import asdict, fields
from typing import Any, Final

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
)
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput

_SUBMIT: Final = struct.Struct("<III")
"""The engine's number, bytes of the JSON, token ids."""
_CANCEL: Final = struct.Struct("<II")
"""The engine's number, or 0 for a batch; the choice."""
_REFUSED: Final = struct.Struct("<B")
_STEP: Final = struct.Struct("<dIIIIIQQII")
ALL_CHOICES: Final = 0xFFFF_FFFF
_MOST: Final = 0x7FFF_FFFF  # of what is counted
_MOST_REAL: Final = sys.float_info.max  # JSON has whole numbers that no float holds
_MOST_CHOICES: Final = 0xFFFF  # and of their numbers
_REALS: Final = (
    *("temperature", "top_p", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
_UNREADABLE: Final = (
    ValueError, TypeError, AttributeError, LookupError, struct.error, RecursionError
)  # fmt: skip
_SEEDS: Final = (-(1 << 63), (1 << 64) - 1)


def write_submit(submit: Submit, engine: int) -> list[Buffer]:
    """The parts of a frame, whose id is the submit's."""
    fields = {
        name: getattr(submit, name) for name in _SUBMIT_FIELDS if getattr(submit, name) is not None
    }
    fields["sampling"] = submit.sampling._asdict()
    head = json.dumps(fields).encode()
    return [_SUBMIT.pack(engine, len(head), len(submit.ids)), head, submit.ids.tobytes()]


def read_submit(frame_id: int, content: memoryview) -> tuple[int, Submit]:
    """The engine's number, and what `write_submit` was given."""
    try:
        return _read_submit(frame_id, content)
    except _UNREADABLE as error:
        raise InvalidInput("submit", f"cannot be read: {error!r}") from error


def write_cancel(engine: int, choice: int | None = None) -> bytes:
    """The content of a frame, whose id is the submit's or the batch's; `engine`: 0 for a batch."""
    return _CANCEL.pack(engine, ALL_CHOICES if choice is None else choice)


def read_cancel(frame_id: int, content: memoryview) -> tuple[int, Cancel]:
    """The engine's number, 0 for a batch, and which text is not wanted any more."""
    try:
        engine, choice = _CANCEL.unpack(content)
    except struct.error as error:
        raise InvalidInput("cancel", f"cannot be read: {error}") from error
    return engine, Cancel(id=frame_id, choice=None if choice == ALL_CHOICES else choice)


def write_configure(configure: Configure) -> bytes:
    """The content of a frame, whose id is the engine's number."""
    return json.dumps(asdict(configure)).encode()


def read_configure(content: Buffer) -> Configure:
    """What `write_configure` wrote."""
    try:
        configure = Configure(**json.loads(bytes(content)))
        _check_whole("max_sequences", configure.max_sequences, 1, _MOST)
        _check_whole("max_tokens_per_step", configure.max_tokens_per_step, 1, _MOST)
        if configure.token_seconds is not None:
            _check_real("token_seconds", configure.token_seconds, 0)
    except _UNREADABLE as error:
        raise InvalidInput("configure", f"cannot be read: {error!r}") from error
    return configure


def write_step(report: StepReport) -> list[Buffer]:
    """The parts of a frame, whose id is the engine's number."""
    return list(_step(report))


def read_step(content: memoryview) -> StepReport:
    """What `write_step` wrote."""
    try:
        return _read_step(content)
    except _UNREADABLE as error:
        raise InvalidInput("step", f"cannot be read: {error!r}") from error


def write_refused(refused: Refused) -> list[Buffer]:
    """The parts of a frame, whose id is the submit's."""
    return [_REFUSED.pack(refused.why), refused.message.encode(errors="replace")]


def read_refused(frame_id: int, content: memoryview) -> Refused:
    """What `write_refused` wrote."""
    try:
        (why,) = _REFUSED.unpack_from(content)
        message = str(content[_REFUSED.size :], "utf-8")
        return Refused(id=frame_id, why=Refusal(why), message=message)
    except _UNREADABLE as error:
        raise InvalidInput("refused", f"cannot be read: {error!r}") from error


_SUBMIT_FIELDS: Final = tuple(
    field.name for field in fields(Submit) if field.name not in ("id", "ids", "sampling")
)


def _read_submit(frame_id: int, content: memoryview) -> tuple[int, Submit]:
    (engine, head, count), begin = _SUBMIT.unpack_from(content), _SUBMIT.size
    told: dict[str, Any] = json.loads(bytes(content[begin : begin + head]))
    ids = array("i")
    ids.frombytes(content[begin + head :])
    if len(ids) != count:
        raise ValueError(f"{len(ids)} token ids instead of {count}")
    sampling = Sampling(**told.pop("sampling"))
    stops = {"stop_ids": tuple(told["stop_ids"])}
    submit = Submit(id=frame_id, ids=ids, sampling=sampling, **told | stops)
    _check_whole("given", submit.given, 0, _MOST)
    _check_whole("max_tokens", submit.max_tokens, 0, _MOST)
    _check_whole("choices", submit.choices, 1, _MOST_CHOICES)
    _check_whole("first_choice", submit.first_choice, 0, _MOST_CHOICES)
    _check_whole("priority", submit.priority, 1, 3)
    if type(submit.salt) is not str or not 0 < submit.weight <= _MOST_REAL:
        raise ValueError(f"{submit.salt!r} and {submit.weight!r} are no salt with a weight")
    _check_whole("adapter", submit.adapter, 0, _MOST)
    for stop in submit.stop_ids:
        _check_whole("stop_ids", stop, 0, _MOST)
    if submit.deadline is not None:
        _check_real("deadline", submit.deadline)
    for name in _REALS:
        _check_real(name, getattr(sampling, name))
    _check_whole("top_k", sampling.top_k, -_MOST, _MOST)
    _check_whole("seed", sampling.seed, *_SEEDS)
    if sampling.logprobs is not None:
        _check_whole("logprobs", sampling.logprobs, 0, _MOST)
    return engine, submit


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}, no whole number from {least} to {most}")


def _check_real(name: str, value: object, least: float = -_MOST_REAL) -> None:
    if type(value) not in (int, float) or not least <= value <= _MOST_REAL:  # type: ignore[operator]
        raise ValueError(f"{name} is {value!r}, no number from {least} on")


def _step(report: StepReport) -> tuple[bytes, ...]:
    tokens = report.tokens
    top = {at: one.top for at, one in enumerate(tokens) if one.top}
    return (
        _STEP.pack(
            report.seconds,
            report.running,
            report.waiting,
            report.free_blocks,
            report.blocks,
            report.backlog,
            report.preemptions,
            report.prefill_tokens,
            len(tokens),
            len(report.cached),
        ),
        array("Q", [one.id for one in tokens]).tobytes(),
        array("I", [one.choice for one in tokens]).tobytes(),
        array("i", [one.token for one in tokens]).tobytes(),
        array("d", [one.logprob for one in tokens]).tobytes(),
        array("B", [one.finish for one in tokens]).tobytes(),
        array("Q", [id for id, _ in report.cached]).tobytes(),
        array("I", [count for _, count in report.cached]).tobytes(),
        json.dumps(top).encode() if top else b"",
    )


def _read_step(content: memoryview) -> StepReport:
    seconds, running, waiting, free, blocks, backlog, preempted, prefill, count, hits = (
        _STEP.unpack_from(content)
    )
    columns, begin = _columns(content, _STEP.size, "QIidB", count)
    cached, begin = _columns(content, begin, "QI", hits)
    top: dict[int, tuple[tuple[int, float], ...]] = {}
    if begin < len(content):
        told = json.loads(bytes(content[begin:]))
        top = {int(at): tuple((id, prob) for id, prob in one) for at, one in told.items()}
    return StepReport(
        seconds=seconds,
        running=running,
        waiting=waiting,
        free_blocks=free,
        blocks=blocks,
        backlog=backlog,
        preemptions=preempted,
        prefill_tokens=prefill,
        tokens=[
            Token(id, choice, token, logprob, _FINISH[finish], top.get(at, ()))
            for at, (id, choice, token, logprob, finish) in enumerate(zip(*columns, strict=True))
        ],
        cached=tuple([(id, tokens) for id, tokens in zip(*cached, strict=True)]),
    )


def _columns(
    content: memoryview, begin: int, codes: str, count: int
) -> tuple[list[array[Any]], int]:
    """One of each type code, with so many values; and where what follows begins."""
    columns = []
    for code in codes:
        column: array[Any] = array(code)
        end = begin + count * column.itemsize
        column.frombytes(content[begin:end])
        if len(column) != count:
            raise ValueError("a column ends early")
        columns.append(column)
        begin = end
    return columns, begin


_FINISH: Final = tuple(Finish)
