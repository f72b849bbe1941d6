"""What the sidecar and its codec process send each other, and how it lies in shared memory.

A message is a small record that is sent with one descriptor. Everything whose size a caller can
choose lies in that memory: first large buffers, one behind the other, then all the rest, pickled.
Both ends are this program, started together, and nobody else holds the socket. Pure.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pickle import PickleBuffer
from typing import Any, Final, NamedTuple

from batchedmodel_contract.inference.tensors import Buffer, Shape
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.adapters.served import Labels
from batchedmodel_sidecar.answers import Answer
from batchedmodel_sidecar.backends.foreign.protocol import (
    BackendProtocol,
    ParsedRequest,
    Response,
    SplitReply,
)
from batchedmodel_sidecar.calls import Row, Value
from batchedmodel_sidecar.errors import Rejected, Unserved
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.adapter import Body
from batchedmodel_sidecar.protocols.routes import Endpoint

_SMALL_MEMO: Final = 64 * 1024  # a larger one is carried to and fro and not made into objects
_FEW_BYTES: Final = 128  # copied sooner than they are kept apart


class News(NamedTuple):
    """The model that the jobs behind this message are for. It is not answered."""

    head: int
    """Here and below: how many bytes at the end of the memory are pickled."""


class ParseJob(NamedTuple):
    """A body to be read; the memory is the body."""

    by: Endpoint | BackendProtocol
    """What is asked of our server, or how a foreign one is asked."""
    header_length: str | None
    most_rows: int
    """More are refused where they are read: to the loop each of a million costs microseconds."""
    granted: bool = False
    """Whether the memory is there that its values take: see `Reply.needs`."""


class RenderJob(NamedTuple):
    """An answer to be written in its protocol's form."""

    by: Endpoint | BackendProtocol
    head: int
    named: str | None = None
    """See `Parsed.named`."""
    labels: Labels | None = None
    """See `Parsed.labels`."""
    granted: bool = False


class DealJob(NamedTuple):
    """A foreign server's answer to be cut into rows; it lies in the memory as it came."""

    by: BackendProtocol
    head: int
    granted: bool = False


class Reply(NamedTuple):
    """The answer to a job."""

    head: int
    needs: int = 0
    """Bytes that the values of the body take at most. Where it is not 0 the job was not begun."""


Job = ParseJob | RenderJob | DealJob
Refusal = InvalidInput | Rejected | Unserved
"""What adapters and protocols raise; the last only where they make an answer's body."""
Content = tuple[int, list[Buffer]]
"""How many bytes at the end are pickled, and the parts that the memory holds."""
_Columns = list[tuple[list[Shape], list[Any]]]
"""Of each tensor, the shapes and the buffers of all rows."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is remembered of a large body beside its rows, still pickled.

    Only the codec process looks into it, where it arrives unpickled. An adapter remembers it of a
    caller's body, the protocol of a foreign server's answer.
    """

    data: Buffer

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (PickleBuffer(self.data),)


class _Refused(NamedTuple):
    kind: type[Refusal]
    args: tuple[Any, ...]
    state: dict[str, Any]


def write_model(model: ReadyModel) -> Content:
    """The content for `News`."""
    tokenizer = model.tokens.tokenizer_json if model.tokens is not None else b""
    return _packed((model.description, model.depth, model.rows_pad, _apart(tokenizer)))


def read_model(memory: Buffer, head: int) -> tuple[ReadyModel, Buffer]:
    """The model without its tokenizer, and the tokenizer's file; empty where it takes no text."""
    description, depth, rows_pad, tokenizer = _unpacked(memory, head)
    model = ReadyModel(
        description=description, profile=None, tokens=None, depth=depth, rows_pad=rows_pad
    )
    return model, tokenizer


def write_parsed(draft: ParsedRequest) -> Content:
    """The content of a reply to `ParseJob`."""
    columns = _columns([row.values for row in draft.rows])
    lengths = [row.length for row in draft.rows]
    return _packed(
        (columns, lengths, replace(draft, rows=(), memo=None), _apart(pickle.dumps(draft.memo)))
    )


def read_parsed(memory: Buffer, head: int) -> ParsedRequest:
    """What `write_parsed` wrote; the rows' bytes stay in the memory. Raises a `Refusal`."""
    columns, lengths, draft, memo = _result(memory, head)
    rows = tuple(Row(*row) for row in zip(_rows(columns), lengths, strict=True))
    parsed: ParsedRequest = replace(draft, rows=rows, memo=_read_if_small(memo))
    return parsed


def write_question(lengths: list[int], answer: Answer, memo: Any) -> Content:
    """The content for `RenderJob`."""
    return _packed((lengths, _columns(answer.rows), answer.outputs, answer.said, memo))


def read_question(memory: Buffer, head: int) -> tuple[list[int], Answer, Any]:
    """What `write_question` was given."""
    lengths, columns, outputs, said, memo = _unpacked(memory, head)
    return lengths, Answer(outputs, _rows(columns), said=said), memo


def write_rendered(body: Body) -> Content:
    """The content of a reply to `RenderJob`."""
    tail = tuple(map(_apart, body.tail))
    return _packed((_apart(body.data), tail, body.content_type, body.headers))


def read_rendered(memory: Buffer, head: int) -> Body:
    """What `write_rendered` wrote; its bytes stay in the memory. Raises a `Refusal`."""
    return Body(*_result(memory, head))


def write_dealing(response: Response, lengths: list[int], *, alone: bool) -> Content:
    """The content for `DealJob`, to be written behind the answer's body."""
    return _packed((replace(response, body=b"", memory=None), lengths, alone))


def read_dealing(memory: memoryview, head: int) -> tuple[Response, list[int], bool]:
    """What `write_dealing` was given."""
    response, lengths, alone = _unpacked(memory, head)
    return replace(response, body=memory[: len(memory) - head]), lengths, alone


def write_dealt(dealt: SplitReply) -> Content:
    """The content of a reply to `DealJob`."""
    rest = replace(dealt, rows=(), frame=None)
    return _packed((_columns(dealt.rows), rest, _apart(pickle.dumps(dealt.frame))))


def read_dealt(memory: Buffer, head: int) -> SplitReply:
    """What `write_dealt` wrote; the rows' bytes stay in the memory. Raises a `Refusal`."""
    columns, rest, frame = _result(memory, head)
    dealt: SplitReply = replace(rest, rows=_rows(columns), frame=_read_if_small(frame))
    return dealt


def write_refusal(error: Refusal) -> Content:
    """The content of a reply to a job that was refused; whoever reads it raises the error."""
    return _packed(_Refused(type(error), error.args, vars(error)))


def _packed(content: object) -> Content:
    buffers: list[PickleBuffer] = []
    pickled = pickle.dumps(content, 5, buffer_callback=buffers.append)
    parts: list[Buffer] = [buffer.raw() for buffer in buffers]
    sizes = pickle.dumps((list(map(len, parts)), len(pickled)))
    return len(sizes) + len(pickled), [*parts, sizes, pickled]


def _unpacked(memory: Buffer, head: int) -> Any:
    view = memoryview(memory)
    sizes, rest = pickle.loads(view[len(view) - head :])  # of the first that lies there
    ends = zip(sizes, accumulate(sizes), strict=True)
    buffers = (view[end - size : end] for size, end in ends)
    return pickle.loads(view[len(view) - rest :], buffers=buffers)


def _result(memory: Buffer, head: int) -> Any:
    content = _unpacked(memory, head)
    if isinstance(content, _Refused):
        raise _error(content)
    return content


def _error(refused: _Refused) -> Refusal:
    # Not by way of `__init__`, whose arguments are not known any more.
    error = refused.kind.__new__(refused.kind, *refused.args)
    vars(error).update(refused.state)
    return error


def _apart(data: Buffer) -> Any:
    """Bytes that lie in front of what is pickled, and are read where they lie, if they are many."""
    return PickleBuffer(data) if len(data) > _FEW_BYTES else bytes(data)


def _read_if_small(memo: memoryview) -> Any:
    return pickle.loads(memo) if len(memo) <= _SMALL_MEMO else Kept(memo)


def _columns(rows: Sequence[tuple[Value, ...]]) -> _Columns:
    return [
        ([value.shape for value in column], [_apart(value.data) for value in column])
        for column in zip(*rows, strict=True)
    ]


def _rows(columns: _Columns) -> tuple[tuple[Value, ...], ...]:
    return tuple(zip(*[map(Value, shapes, data) for shapes, data in columns], strict=True))
