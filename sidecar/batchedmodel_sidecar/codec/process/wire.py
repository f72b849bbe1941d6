"""What the sidecar and its helper tell each other, and how calls and answers lie in shared memory.

A message is a small record that is sent with one descriptor; everything whose size a caller can
choose lies in that memory. Records are pickled: both ends are this program, started together, and
nobody else holds the socket. Pure, apart from the memory that it fills.
"""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from batchedmodel_contract.inference.description import ModelDescription
from batchedmodel_contract.inference.tensors import Buffer, Shape
from batchedmodel_contract.invalid_input import InvalidInput, Mistake, Unbatchable
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.backends.foreign.protocol import (
    BackendProtocol,
    ParsedRequest,
    Response,
    SplitReply,
)
from batchedmodel_sidecar.calls import Answer, Row, Value
from batchedmodel_sidecar.errors import ModelNotFound, Rejected, Unserved
from batchedmodel_sidecar.protocols.adapter import Body
from batchedmodel_sidecar.protocols.routes import Endpoint

_SMALL_MEMO: Final = 64 * 1024  # more is carried to and fro unread, not made into objects


class Sizes(NamedTuple):
    """Where the parts of a memory end: raw data, then what an adapter remembers, then the head."""

    memo: int
    head: int


class News(NamedTuple):
    """The model that the jobs behind this message are for. It is not answered."""

    sizes: Sizes


class ParseJob(NamedTuple):
    """A body to be read; the memory is the body."""

    by: Endpoint | BackendProtocol
    """What is asked of our server, or how a foreign one is asked."""
    header_length: str | None
    most_rows: int
    """More are refused where they are read: to the loop each of a million costs microseconds."""


class RenderJob(NamedTuple):
    """An answer to be written in its protocol's form."""

    by: Endpoint | BackendProtocol
    sizes: Sizes


class DealJob(NamedTuple):
    """A foreign server's answer to be cut into rows; it lies in the memory as it came."""

    by: BackendProtocol
    sizes: Sizes


class Result(Enum):
    """What became of a job."""

    PARSED = auto()
    RENDERED = auto()
    DEALT = auto()
    REFUSED = auto()


class Reply(NamedTuple):
    """The answer to a job."""

    result: Result
    sizes: Sizes


Job = ParseJob | RenderJob | DealJob
Message = News | Job | Reply


@dataclass(frozen=True, slots=True)
class Kept:
    """What is remembered of a large body beside its rows, still pickled.

    Only the helper looks into it: of a caller's body what an adapter remembers, of a foreign
    server's what its dialect keeps for every row.
    """

    data: Buffer


class _Column(NamedTuple):
    """One tensor of every row; its bytes lie one row behind the other."""

    shapes: list[Shape]
    sizes: list[int]


class Model(NamedTuple):
    """What the helper must know of a model; its tokenizer's file lies in front of this."""

    description: ModelDescription
    rows_pad: bool


class Question(NamedTuple):
    """An answer as it comes to the helper, with what must be known of its call."""

    lengths: list[int]
    answer: Answer
    memo: Any


class Dealing(NamedTuple):
    """A foreign server's answer as it comes to the helper."""

    response: Response
    lengths: list[int]
    """Of the rows that were asked."""
    alone: bool


class _ParsedHead(NamedTuple):
    lengths: list[int]
    columns: list[_Column]
    draft: ParsedRequest
    """Without its rows."""


class _Place(NamedTuple):
    """Stands for a frame that lies behind the rows."""

    number: int


class _QuestionHead(NamedTuple):
    lengths: list[int]
    columns: list[_Column]
    answer: Answer
    """Without its rows."""
    frames: list[int]
    """Sizes of the frames that are carried unread."""


class _DealtHead(NamedTuple):
    columns: list[_Column]
    dealt: SplitReply
    """Without its rows and its frame."""


class _BodyHead(NamedTuple):
    tail: list[int]
    content_type: str
    headers: tuple[tuple[str, str], ...]


class _Refusal(NamedTuple):
    mistake: Mistake | None = None
    unbatchable: bool = False
    rejected: tuple[Rejection, str, int, float | None, str | None] | None = None
    model_not_found: bool = False
    unserved: tuple[str, int] | None = None


Refusal = InvalidInput | Rejected | Unserved
"""What adapters and dialects raise; the last only where they make an answer's body."""
Content = tuple[Sizes, list[Buffer]]
"""The sizes for the message, and the parts that its memory holds."""


def write_model(model: Model, tokenizer: bytes) -> Content:
    """The content for `News`."""
    return _content([tokenizer], b"", model)


def read_model(memory: Buffer, sizes: Sizes) -> tuple[Model, bytes]:
    """What `write_model` wrote."""
    data, _, head = _cut(memory, sizes)
    return head, bytes(data)


def write_parsed(draft: ParsedRequest) -> Content:
    """The content of a reply `PARSED`."""
    columns, data = _table([row.values for row in draft.rows])
    rest = replace(draft, rows=(), memo=None)
    head = _ParsedHead([row.length for row in draft.rows], columns, rest)
    return _content(data, pickle.dumps(draft.memo), head)


def read_parsed(memory: Buffer, sizes: Sizes) -> ParsedRequest:
    """What `write_parsed` wrote; the rows' bytes stay in the memory."""
    data, memo, head = _cut(memory, sizes)
    pairs = zip(_rows(data, head.columns), head.lengths, strict=True)
    rows = tuple(Row(values=values, length=length) for values, length in pairs)
    draft: ParsedRequest = head.draft
    return replace(draft, rows=rows, memo=_read_if_small(memo))


def write_question(lengths: list[int], answer: Answer, memo: Any) -> Content:
    """The content for `RenderJob`."""
    columns, data = _table(answer.rows)
    # Rows of one request share what was said, here and there.
    kept = {id(said): said for said in answer.said if isinstance(said.frame, Kept)}
    frames = [said.frame.data for said in kept.values()]
    placed = {
        key: replace(said, frame=_Place(number)) for number, (key, said) in enumerate(kept.items())
    }
    said = tuple(placed.get(id(said), said) for said in answer.said)
    rest = answer._replace(rows=(), said=said)
    head = _QuestionHead(lengths, columns, rest, [len(frame) for frame in frames])
    memo = memo.data if isinstance(memo, Kept) else pickle.dumps(memo)
    return _content([*data, *frames], memo, head)


def read_question(memory: Buffer, sizes: Sizes) -> Question:
    """What `write_question` wrote."""
    data, memo, head = _cut(memory, sizes)
    behind = len(data) - sum(head.frames)
    frames = [pickle.loads(frame) for frame in _slices(data[behind:], head.frames)]
    answer: Answer = head.answer._replace(rows=tuple(_rows(data, head.columns)))
    said = tuple(
        replace(said, frame=frames[said.frame.number]) if isinstance(said.frame, _Place) else said
        for said in answer.said
    )
    return Question(head.lengths, answer._replace(said=said), pickle.loads(memo))


def write_dealing(response: Response, lengths: list[int], *, alone: bool) -> Content:
    """The content for `DealJob`, to be written behind the answer's body."""
    return _content([], b"", Dealing(replace(response, body=b"", memory=None), lengths, alone))


def read_dealing(memory: Buffer, sizes: Sizes) -> Dealing:
    """What `write_dealing` wrote behind a body."""
    body, _, head = _cut(memory, sizes)
    return Dealing(replace(head.response, body=body), head.lengths, head.alone)


def write_dealt(dealt: SplitReply) -> Content:
    """The content of a reply `DEALT`."""
    columns, data = _table(dealt.rows)
    head = _DealtHead(columns, replace(dealt, rows=(), frame=None))
    return _content(data, pickle.dumps(dealt.frame), head)


def read_dealt(memory: Buffer, sizes: Sizes) -> SplitReply:
    """What `write_dealt` wrote; the rows' bytes stay in the memory."""
    data, frame, head = _cut(memory, sizes)
    dealt: SplitReply = head.dealt
    rows = tuple(_rows(data, head.columns))
    return replace(dealt, rows=rows, frame=_read_if_small(frame))


def write_rendered(body: Body) -> Content:
    """The content of a reply `RENDERED`."""
    head = _BodyHead(list(map(len, body.tail)), body.content_type, body.headers)
    return _content([body.data, *body.tail], b"", head)


def read_rendered(memory: Buffer, sizes: Sizes) -> Body:
    """What `write_rendered` wrote; the body's bytes stay in the memory."""
    data, _, head = _cut(memory, sizes)
    start = len(data) - sum(head.tail)
    return Body(
        data=data[:start],
        tail=tuple(_slices(data[start:], head.tail)),
        content_type=head.content_type,
        headers=head.headers,
    )


def write_refusal(error: Refusal) -> Content:
    """The content of a reply `REFUSED`."""
    if isinstance(error, Unserved):
        return _content([], b"", _Refusal(unserved=(error.message, error.status)))
    if isinstance(error, InvalidInput):
        unbatchable = isinstance(error, Unbatchable)
        return _content([], b"", _Refusal(mistake=error.mistake, unbatchable=unbatchable))
    told = (error.reason, error.message, error.status, error.retry_after, error.field)
    not_found = isinstance(error, ModelNotFound)
    return _content([], b"", _Refusal(rejected=told, model_not_found=not_found))


def read_refusal(memory: Buffer, sizes: Sizes) -> Refusal:
    """The error that `write_refusal` was given, to be raised once more."""
    refusal: _Refusal = _cut(memory, sizes)[2]
    if refusal.unserved is not None:
        told, code = refusal.unserved
        return Unserved(told, status=code)
    if refusal.mistake is not None:
        return (Unbatchable if refusal.unbatchable else InvalidInput).of(refusal.mistake)
    assert refusal.rejected is not None, "a refusal without a reason: our bug"
    reason, message, status, retry_after, field = refusal.rejected
    if refusal.model_not_found:
        return ModelNotFound(message)
    return Rejected(reason, message, status=status, retry_after=retry_after, field=field)


def _content(data: Sequence[Buffer], memo: Buffer, head: object) -> Content:
    text = pickle.dumps(head)
    return Sizes(memo=len(memo), head=len(text)), [*data, memo, text]


def _read_if_small(memo: memoryview) -> Any:
    return pickle.loads(memo) if len(memo) <= _SMALL_MEMO else Kept(memo)


def _cut(memory: Buffer, sizes: Sizes) -> tuple[memoryview, memoryview, Any]:
    """Data, memo, and the head as the record that it is."""
    view = memoryview(memory)
    head = len(view) - sizes.head
    memo = head - sizes.memo
    return view[:memo], view[memo:head], pickle.loads(view[head:])


def _table(rows: Sequence[tuple[Value, ...]]) -> tuple[list[_Column], list[Buffer]]:
    columns = list(zip(*rows, strict=True))
    heads = [
        _Column([v.shape for v in column], [len(v.data) for v in column]) for column in columns
    ]
    return heads, [value.data for column in columns for value in column]


def _rows(data: memoryview, columns: list[_Column]) -> Iterator[tuple[Value, ...]]:
    position, values = 0, []
    for shapes, sizes in columns:
        size = sum(sizes)
        pieces = _slices(data[position : position + size], sizes)
        values.append([Value(*pair) for pair in zip(shapes, pieces, strict=True)])
        position += size
    return zip(*values, strict=True)


def _slices(data: memoryview, sizes: list[int]) -> Iterator[memoryview]:
    position = 0
    for size in sizes:
        yield data[position : position + size]
        position += size
