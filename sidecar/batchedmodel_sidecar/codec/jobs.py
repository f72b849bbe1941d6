"""What the helper for large bodies does, with the same protocols as in the sidecar's process.

Rows travel as columns with their bytes apart, so that they stay where they lie.
"""

import asyncio
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np

from batchedmodel_contract.inference.description import ModelDescription
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_sidecar.backends.upstream.protocol import (
    BackendProtocol,
    ParsedRequest,
    Response,
    SplitReply,
    drafted,
)
from batchedmodel_sidecar.body.buffers import json_bytes
from batchedmodel_sidecar.calls import Answer, Call, Row, Value
from batchedmodel_sidecar.helper.messages import Pickled, Work, apart
from batchedmodel_sidecar.lora.served import Labels
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.protocol import Body, Parsed, PublicProtocol
from batchedmodel_sidecar.protocols.routes import Endpoint
from batchedmodel_sidecar.protocols.table import public_protocols
from batchedmodel_sidecar.tokenizer import Tokens, text_threads

TIMES_BINARY: Final = 38
"""What numbers take as JSON text, with its copies, over their binary form at worst."""
_BYTES_OF_NUMBER: Final = 100
"""What a number takes as a value and as text, with its copies."""
_TIMES_TEXT: Final = 5
"""What text takes that is cut and written anew."""
_BYTES_OF: Final = {
    ord(","): 64,  # an entry of a list, and a number
    ord("["): 100,  # a list of a few entries
    ord("{"): 240,  # an object of a few fields
    ord('"'): 30,  # half of a text, without its characters
    ord(":"): 60,  # a field more; an object is there twice while it grows
}
"""What a value takes that this character begins or ends, here and in the parser's own record."""
_SHORT_SAVES: Final = 36
"""Whole numbers of one or two digits are objects that are there already."""
_STEP: Final = 1 << 20
_TWO_BYTES: Final = 0xC4  # begins a character that takes two bytes of a text in memory
_FOUR_BYTES: Final = 0xF0
_SMALL_MEMO: Final = 64 * 1024  # a larger one is carried to and fro and not made into objects

By = Endpoint | BackendProtocol
"""What is asked of our server, or how an upstream one is asked."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is remembered of a large body beside its rows, still pickled.

    Only the helper looks into it, where it arrives unpickled. A public protocol remembers it of a
    caller's body, the protocol of an upstream server of that server's answer.
    """

    data: Buffer

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (apart(self.data),)


def parse(by: By, header_length: str | None, most_rows: int, work: Work) -> Pickled:
    """A `ParsedRequest` of a body.

    More rows are refused here: to the loop each of a million costs microseconds.
    """
    of_json = json_bytes(len(work.body), header_length)
    text = memoryview(work.body)[:of_json]
    if not isinstance(by, Endpoint):
        # Binary data may become text as well.
        binary = max(0, by.converts(len(work.body), header_length) - of_json)
        work.claim(memory_of_values(text, as_text=True) + TIMES_BINARY * binary)
        return parsed_request(drafted(by, work.body, header_length, most_rows))
    work.claim(memory_of_values(text))
    parsing = _protocols()[by].parse(work.body, header_length, work.model, most_rows)
    parsed = asyncio.run(parsing)
    return parsed_request(
        ParsedRequest(
            rows=parsed.call.rows,
            frame=None,
            memo=parsed.memo,
            options=parsed.options,
            params=parsed.call.params,
            named=parsed.named,
        )
    )


def render(
    by: By,
    lengths: list[int],
    answer: Any,
    memo: Any,
    named: str | None,
    labels: Labels | None,
    work: Work,
) -> Pickled:
    """The `Body` that answers a call of rows of these lengths.

    `answer` is sent as `pickled_answer`. For the others see `Parsed`.
    """
    ours = isinstance(by, Endpoint)
    times = [times_as_text(output.datatype.size, values=ours) for output in answer.outputs]
    sizes = ([len(value.data) for value in row] for row in answer.rows)
    work.claim(sum(size * much for row in sizes for size, much in zip(row, times, strict=True)))
    if isinstance(by, Endpoint):
        call = Call(rows=_rows(lengths), description=work.model.description, key=None)
        parsed = Parsed(call=call, memo=memo, named=named, labels=labels)
        body = _protocols()[by].render(parsed, answer, work.model)
    else:
        body = by.render(memo, answer)
    tail = tuple(map(apart, body.tail))
    return Pickled(Body, (body.data, tail, body.content_type, body.headers))


def deal(
    by: BackendProtocol, response: Response, lengths: list[int], alone: bool, work: Work
) -> Pickled:
    """The `SplitReply` of an upstream server's answer, whose body is the work's."""
    of_json = json_bytes(len(work.body), response.header_length)
    work.claim(memory_of_values(memoryview(work.body)[:of_json], as_text=True))
    dealt = by.dealt(replace(response, body=work.body), _rows(lengths), alone=alone)
    rest = replace(dealt, rows=(), frame=None)
    return Pickled(_split_reply, (rest, _columns(dealt.rows), pickle.dumps(dealt.frame)))


def ready_model(
    description: ModelDescription, depth: int, rows_pad: bool, tokenizer: Buffer
) -> ReadyModel:
    """As much of a model as bodies are read and written by; the tokenizer's file may be empty."""
    text, tokens = description.text, None
    if text and tokenizer:
        tokens = Tokens(bytes(tokenizer), text, text_threads(1))
    return ReadyModel(
        description=description, profile=None, tokens=tokens, depth=depth, rows_pad=rows_pad
    )


def pickled_model(model: ReadyModel) -> Pickled:
    """A model as the jobs that need one are sent it."""
    tokenizer = b"" if model.tokens is None else model.tokens.tokenizer_json
    return Pickled(ready_model, (model.description, model.depth, model.rows_pad, tokenizer))


def pickled_answer(answer: Answer) -> Pickled:
    """An answer as `render` is sent it."""
    return Pickled(Answer, (answer.outputs, _columns(answer.rows), None, answer.replies))


def parsed_request(draft: ParsedRequest) -> Pickled:
    """What a body asks, as it is sent."""
    lengths, columns = [row.length for row in draft.rows], _columns([r.values for r in draft.rows])
    rest = replace(draft, rows=(), memo=None)
    return Pickled(_parsed_request, (rest, lengths, columns, pickle.dumps(draft.memo)))


def _parsed_request(
    rest: ParsedRequest, lengths: list[int], values: Sequence[tuple[Value, ...]], memo: Buffer
) -> ParsedRequest:
    return replace(rest, rows=tuple(map(Row, values, lengths)), memo=_read_if_small(memo))


def _split_reply(rest: SplitReply, rows: Sequence[tuple[Value, ...]], frame: Buffer) -> SplitReply:
    return replace(rest, rows=rows, frame=_read_if_small(frame))


def _read_if_small(memo: Buffer) -> Any:
    return pickle.loads(memo) if len(memo) <= _SMALL_MEMO else Kept(memo)


def _columns(rows: Sequence[tuple[Value, ...]]) -> Pickled:
    """Of each tensor, the shapes and the buffers of all rows."""
    columns = [
        ([value.shape for value in column], [apart(value.data) for value in column])
        for column in zip(*rows, strict=True)
    ]
    return Pickled(_rows_of_columns, (columns,))


def _rows_of_columns(columns: Sequence[tuple[Any, Any]]) -> tuple[tuple[Value, ...], ...]:
    return tuple(zip(*[map(Value, shapes, data) for shapes, data in columns], strict=True))


def _rows(lengths: list[int]) -> tuple[Row, ...]:
    """As much of a call's rows as its answer depends on."""
    return tuple(Row(values=(), length=length) for length in lengths)


@cache
def _protocols() -> dict[Endpoint, PublicProtocol]:
    return public_protocols()


def memory_of_values(text: Buffer, *, as_text: bool = False) -> int:
    """At most so many bytes. What only looks like JSON within a string of it counts as well.

    `as_text`: it is cut into texts besides, as for a server of one's own.
    """
    codes = np.frombuffer(text, np.uint8)
    total, widest = 0, 1
    for start in range(0, len(codes), _STEP):
        step = codes[start : start + _STEP]
        total += sum(size * int(np.count_nonzero(step == code)) for code, size in _BYTES_OF.items())
        total -= _SHORT_SAVES * _short(step)
        if widest < 4:
            widest = max(widest, _width(codes[start : start + _STEP + 1]))
    # The parser's copy, and the strings; or the whole text, its parts and theirs.
    return total + len(codes) * (3 + 5 * widest if as_text else 1 + widest)


def _short(codes: "np.typing.NDArray[np.uint8]") -> int:
    """How many values of one or two characters stand between two commas."""
    comma = codes == ord(",")
    return int(np.count_nonzero(comma[3:] & (comma[1:-2] | comma[:-3])))


def _width(codes: "np.typing.NDArray[np.uint8]") -> int:
    """Bytes that each character of a string takes where it has one of these."""
    top = int(codes.max())
    escaped = bool(np.any((codes[:-1] == ord("\\")) & (codes[1:] == ord("u"))))
    if top >= _FOUR_BYTES or escaped:
        return 4
    return 2 if top >= _TWO_BYTES else 1


def times_as_text(size: int, *, values: bool) -> int:
    """What numbers of so many bytes take over these while they are made into text, at most.

    `values`: they are all made into values first. 0: text already.
    """
    if not size:
        return _TIMES_TEXT
    if values:
        return _BYTES_OF_NUMBER // size
    return _BYTES_OF_NUMBER // 6 if size <= 2 else 2 * _TIMES_TEXT
