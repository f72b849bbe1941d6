"""What an engine is asked for, and what its steps did: records, and the frames that carry them.

The engine knows token ids only. It has no memory of what it was sent before: whoever asked holds
every token that came, and goes on elsewhere with prompt and tokens as one prompt.

What the engine did comes in one frame for each step, in columns: with a frame for each token, 256
sequences at 50 steps a second would make 12,800 of them. Readers raise `InvalidInput`. Compiled.
"""

from __future__ import annotations  # array.array takes no type argument at run time

import json
import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from enum import IntEnum
from typing import Any, Final, NamedTuple

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import readable

MOST_LOGPROBS: Final = 20
"""Of the most probable tokens, that are told with each token."""
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
_SEEDS: Final = (-(1 << 63), (1 << 64) - 1)


class Finish(IntEnum):
    """Whether a token was the last one of its text, and why."""

    NONE = 0
    STOP = 1
    """It is one of the stop ids, and no part of the text."""
    LENGTH = 2
    """As many as were asked for are there."""
    FAILED = 3
    """The engine gives up; there is no token."""


class Refusal(IntEnum):
    """Why the engine did not take a request, or ended it before its first token."""

    INVALID = 1
    """It can never be served as it is."""
    LATE = 2
    """Its deadline for the first token passed."""
    BUSY = 3
    """There is no room for it now: it may come again."""
    FAILED = 4
    """The model failed over it."""


class Sampling(NamedTuple):
    """How the next token is chosen from the model's scores (logits)."""

    temperature: float = 1.0
    """0: the token with the highest score."""
    top_p: float = 1.0
    """Of the most probable tokens, as many as have this much probability together."""
    top_k: int = 0
    """So many of the most probable tokens; 0: all."""
    min_p: float = 0.0
    """Tokens that are at least so probable as the most probable one, times this."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    """Divides positive scores of tokens in prompt or text, and multiplies negative ones."""
    seed: int = 0
    """With the choice's number and the token's place in the text it decides every draw."""
    logprobs: int | None = None
    """So many of the most probable tokens are told with each token; None: no probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """A text to be generated, or several choices of one."""

    id: int
    """Never used again on this connection."""
    ids: array[int]
    """INT32: the prompt, and behind it what the text has already."""
    given: int = 0
    """How many of them are tokens of the text: they count for penalties, seed and length."""
    max_tokens: int
    """Tokens of the text in all, those given included."""
    sampling: Sampling = Sampling()
    stop_ids: tuple[int, ...] = ()
    """A text ends with the first of these that is chosen."""
    choices: int = 1
    """How many texts to make of the prompt; more than one only where nothing is given."""
    first_choice: int = 0
    """The number of the first of them; it differs from 0 where one of several goes on."""
    priority: int = 2
    """1 the highest, 3 the lowest."""
    deadline: float | None = None
    """Seconds from now in which the first token must be there, or it is refused as late."""
    salt: str = ""
    """Whose it is. Texts of one salt share what is computed of beginnings that they have in common;
    texts of different salts never do, and share the engine fairly."""
    weight: float = 1.0
    """How much of the engine is due to this salt beside others."""
    adapter: int = 0
    """The number of its adapter; 0 for none. Texts of different ones share nothing either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Nobody waits for a request, or for one of its choices, any more."""

    id: int
    choice: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure:
    """Bounds that hold from the next step on."""

    max_sequences: int
    max_tokens_per_step: int
    token_seconds: float | None
    """Target of the time between two tokens of a text; None: there is none."""


class Token(NamedTuple):
    """One token of one text."""

    id: int
    choice: int
    token: int
    logprob: float
    """Natural logarithm of its probability; NaN where nobody asked."""
    finish: Finish
    top: tuple[tuple[int, float], ...] = ()
    """The most probable tokens and their logprobs, where they were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What a step of the engine did, and how the engine is behind it."""

    seconds: float
    """That the step took; 0 for a report without a step."""
    running: int
    waiting: int
    """Sequences that the engine has and that do not run."""
    free_blocks: int
    blocks: int
    backlog: int
    """Tokens of prompts that are still to be computed."""
    preemptions: int
    """Of sequences, since the engine's start."""
    prefill_tokens: int
    """Of prompts, computed since the engine's start."""
    tokens: Sequence[Token] = ()
    cached: tuple[tuple[int, int], ...] = ()
    """Of requests whose first token is among these: the id, and the tokens of its prompt that were
    in the cache. A request that found none, or came with tokens of its text, is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A request of which nothing comes."""

    id: int
    why: Refusal
    message: str


def write_submit(submit: Submit, engine: int) -> list[Buffer]:
    """The parts of a frame, whose id is the submit's."""
    fields = {
        name: getattr(submit, name) for name in _SUBMIT_FIELDS if getattr(submit, name) is not None
    }
    fields["sampling"] = submit.sampling._asdict()
    head = json.dumps(fields).encode()
    return [_SUBMIT.pack(engine, len(head), len(submit.ids)), head, submit.ids.tobytes()]


@readable("submit")
def read_submit(frame_id: int, content: memoryview) -> tuple[int, Submit]:
    """The engine's number, and what `write_submit` was given."""
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


def write_cancel(engine: int, choice: int | None = None) -> bytes:
    """The content of a frame, whose id is the submit's or the batch's; `engine`: 0 for a batch."""
    return _CANCEL.pack(engine, ALL_CHOICES if choice is None else choice)


@readable("cancel")
def read_cancel(frame_id: int, content: memoryview) -> tuple[int, Cancel]:
    """The engine's number, 0 for a batch, and which text is not wanted any more."""
    engine, choice = _CANCEL.unpack(content)
    return engine, Cancel(id=frame_id, choice=None if choice == ALL_CHOICES else choice)


def write_configure(configure: Configure) -> bytes:
    """The content of a frame, whose id is the engine's number."""
    return json.dumps(asdict(configure)).encode()


@readable("configure")
def read_configure(content: Buffer) -> Configure:
    """What `write_configure` wrote."""
    configure = Configure(**json.loads(bytes(content)))
    _check_whole("max_sequences", configure.max_sequences, 1, _MOST)
    _check_whole("max_tokens_per_step", configure.max_tokens_per_step, 1, _MOST)
    if configure.token_seconds is not None:
        _check_real("token_seconds", configure.token_seconds, 0)
    return configure


def write_step(report: StepReport) -> list[Buffer]:
    """The parts of a frame, whose id is the engine's number."""
    tokens = report.tokens
    top = {at: one.top for at, one in enumerate(tokens) if one.top}
    return [
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
    ]


@readable("step")
def read_step(content: memoryview) -> StepReport:
    """What `write_step` wrote."""
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


def write_refused(refused: Refused) -> list[Buffer]:
    """The parts of a frame, whose id is the submit's."""
    return [_REFUSED.pack(refused.why), refused.message.encode(errors="replace")]


@readable("refused")
def read_refused(frame_id: int, content: memoryview) -> Refused:
    """What `write_refused` wrote."""
    (why,) = _REFUSED.unpack_from(content)
    message = str(content[_REFUSED.size :], "utf-8")
    return Refused(id=frame_id, why=Refusal(why), message=message)


_SUBMIT_FIELDS: Final = tuple(
    field.name for field in fields(Submit) if field.name not in ("id", "ids", "sampling")
)


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}, no whole number from {least} to {most}")


def _check_real(name: str, value: object, least: float = -_MOST_REAL) -> None:
    if type(value) not in (int, float) or not least <= value <= _MOST_REAL:  # type: ignore[operator]
        raise ValueError(f"{name} is {value!r}, no number from {least} on")


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
