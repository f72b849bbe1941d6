"""Calls, their batches and their answers; protocols read and write bodies of them.

Compiled: one of each is made per request.
"""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from batchedmodel_contract.inference.batch import (
    BatchReply,
    BatchRequest,
    Ragged,
    flattened,
)
from batchedmodel_contract.inference.description import RAGGED, ModelDescription
from batchedmodel_contract.inference.params import Values, columns
from batchedmodel_contract.inference.tensors import Buffer, Datatype, Scattered, Shape, Tensor
from batchedmodel_sidecar.errors import RETRY_SOON, Unserved, UpstreamReply
from batchedmodel_sidecar.lora.served import ChosenAdapter


class Value:
    """One tensor of one row: its shape without batch dimension and its bytes."""

    __slots__ = ("data", "shape")

    def __init__(self, shape: Shape, data: Buffer) -> None:
        self.shape: Final = shape
        self.data: Final = data

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same."""
        return isinstance(other, Value) and self.shape == other.shape and self.data == other.data

    def __hash__(self) -> int:
        """As of both parts."""
        return hash((self.shape, self.data))

    def __repr__(self) -> str:
        """What it holds."""
        return f"Value({self.shape}, {self.data!r})"


class Row:
    """One row of a call, its tensors in the order of the model's inputs."""

    __slots__ = ("length", "values")

    def __init__(self, values: tuple[Value, ...], length: int) -> None:
        self.values: Final = values
        self.length: Final = length

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same."""
        return (
            isinstance(other, Row) and self.length == other.length and self.values == other.values
        )

    def __hash__(self) -> int:
        """As of its values."""
        return hash(self.values)


class Call:
    """Rows that are accepted and answered together."""

    __slots__ = (
        "adapter",
        "description",
        "envelope",
        "equal_shapes",
        "key",
        "params",
        "rows",
        "trace",
    )

    def __init__(
        self,
        rows: tuple[Row, ...],
        description: ModelDescription,
        key: Hashable,
        *,
        equal_shapes: bool = False,
        params: Values | None = None,
        envelope: Hashable = None,
        trace: tuple[tuple[str, str], ...] = (),
        adapter: ChosenAdapter | None = None,
    ) -> None:
        self.rows: Final = rows
        self.description: Final = description
        """The rows were checked against it; a server that takes other rows must not get them."""
        self.key: Final = key
        """Only rows of equal keys may share a batch."""
        self.equal_shapes: Final = equal_shapes
        """Whether rows that share a batch must have equal shapes too, even within the call."""
        self.params: Final = params
        """The model's parameters that the call sets; rows with others may share its batch."""
        self.envelope: Final = envelope
        """What an upstream server is asked beside the rows; a part of the key. None for ours."""
        self.trace: Final = trace
        """Headers that go with the rows only where no other call's rows go with them."""
        self.adapter: Final = adapter
        """Of the model, if it is asked for one; rows of several may share a batch."""

    @property
    def size(self) -> int:
        """Bytes of all inputs of all rows."""
        return sum([len(value.data) for row in self.rows for value in row.values])

    @property
    def adapter_name(self) -> str | None:
        """Of the adapter that it asks for."""
        return None if self.adapter is None else self.adapter.name

    @property
    def lengths(self) -> list[int]:
        """The length of each row."""
        return [row.length for row in self.rows]

    def key_of(self, row: Row) -> Hashable:
        """What must be equal in rows that share a batch with this one of its rows."""
        if self.equal_shapes:
            return self.key, tuple([value.shape for value in row.values])
        # Most models' rows are flat, and then nothing is looked up.
        if self.envelope is None and any(len(value.shape) > 1 for value in row.values):
            sides = self._sides(row)
            return (self.key, sides) if sides else self.key
        return self.key

    def _sides(self, row: Row) -> tuple[int, ...]:
        """Each side of those inputs that are ragged in several directions, to a factor of two.

        A batch is padded to the highest and the widest. Whoever sent strips of both directions
        would have it take hundreds of times what its rows are charged for, in time and in memory.
        """
        return tuple(
            [
                size.bit_length()
                for spec, value in zip(self.description.inputs, row.values, strict=True)
                if spec.shape.count(RAGGED) > 1
                for size in value.shape
            ]
        )

    def apart(self, key: Hashable) -> "Call":
        """The same with another key."""
        return self._copy(self.rows, key, self.adapter)

    def for_adapter(self, adapter: ChosenAdapter) -> "Call":
        """The same for an adapter of the model."""
        return self._copy(self.rows, self.key, adapter)

    def with_rows(self, rows: tuple[Row, ...]) -> "Call":
        """The same with other rows."""
        return self._copy(rows, self.key, self.adapter)

    def _copy(self, rows: tuple[Row, ...], key: Hashable, adapter: ChosenAdapter | None) -> "Call":
        return Call(
            rows,
            self.description,
            key,
            equal_shapes=self.equal_shapes,
            params=self.params,
            envelope=self.envelope,
            trace=self.trace,
            adapter=adapter,
        )


def request_of(
    rows: Sequence[Row],
    description: ModelDescription,
    wanted_seconds: float,
    params: Sequence[Values | None] = (),
    adapters: Sequence[ChosenAdapter | None] = (),
) -> BatchRequest:
    """A batch of rows of any number of calls, for the model that is described.

    `params`: what each row's call sets, for a model that has parameters. `adapters`: of each row,
    where any has one.
    """
    return BatchRequest(
        inputs=tuple(
            _ragged(spec.name, spec.datatype, [row.values[column] for row in rows])
            for column, spec in enumerate(description.inputs)
        ),
        params=columns(params, description.params) if params else (),
        wanted_seconds=wanted_seconds,
        version=description.version,
        adapters=tuple([0 if one is None else one.number for one in adapters]),
    )


def _ragged(name: str, datatype: Datatype, values: list[Value]) -> Ragged:
    shapes, parts = [value.shape for value in values], [value.data for value in values]
    return Ragged(name, datatype, tuple(shapes), tuple(parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class RawBatch(BatchRequest):
    """A batch for an upstream server: the rows as they came. Its `inputs` are empty."""

    rows: tuple[Row, ...]
    envelope: Any
    """The envelope of every call in the batch."""
    owners: tuple[int, ...]
    """For each row, the number of its call: rows of one call are answered together."""
    callers: tuple[str, ...]
    """For each row, who asks."""
    traces: tuple[tuple[tuple[str, str], ...], ...]
    """For each row, the `trace` of its call."""
    deadlines: tuple[float, ...]
    """For each row, the time after which it is not sent again, by the batcher's clock."""


class Output(NamedTuple):
    """Name and type of an output."""

    name: str
    datatype: Datatype


class Timing:
    """How a call was served; of several rows the slowest counts, and the largest batch."""

    __slots__ = ("batch_size", "model_seconds", "queue_seconds")

    def __init__(self, batch_size: int, queue_seconds: float, model_seconds: float) -> None:
        self.batch_size: Final = batch_size
        self.queue_seconds: Final = queue_seconds
        """From acceptance to the release of its batch."""
        self.model_seconds: Final = model_seconds
        """The forward pass, as the server measured it."""


class Answer:
    """The rows' outputs, in the order in which the call gave its rows."""

    __slots__ = ("outputs", "replies", "rows", "timing")

    def __init__(
        self,
        outputs: tuple[Output, ...],
        rows: tuple[tuple[Value, ...], ...],
        timing: Timing | None = None,
        replies: tuple[UpstreamReply, ...] = (),
    ) -> None:
        """`replies`: for each row, what an upstream server said with it; empty from ours."""
        self.outputs: Final = outputs
        self.rows: Final = rows
        self.timing: Final = timing
        self.replies: Final = replies

    @property
    def size(self) -> int:
        """Bytes of all outputs of all rows."""
        return sum([len(value.data) for row in self.rows for value in row])

    def column(self, index: int) -> list[Value]:
        """One output of every row."""
        return [row[index] for row in self.rows]

    def tensors(self) -> list[Tensor | Scattered]:
        """Each output as one tensor with a batch dimension; the rows stay where they lie.

        An output whose rows differ in shape is flat. A tensor with the shapes follows it, as in the
        batch extension.
        """
        tensors: list[Tensor | Scattered] = []
        for index, output in enumerate(self.outputs):
            values = self.column(index)
            shapes = {value.shape for value in values}
            if len(shapes) == 1:
                shape = (len(values), *shapes.pop())
                parts = tuple(value.data for value in values)
                tensors.append(
                    Scattered(name=output.name, datatype=output.datatype, shape=shape, parts=parts)
                )
            else:
                tensors += flattened(_ragged(output.name, output.datatype, values))
        return tensors


_Member = TypeVar("_Member")


class RowAnswer:
    """One row's outputs."""

    __slots__ = ("reply", "values")

    def __init__(self, values: tuple[Value, ...], reply: UpstreamReply | None) -> None:
        """`reply`: what an upstream server said with them."""
        self.values: Final = values
        self.reply: Final = reply


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFailure:
    """The server could not answer this row; others of its batch may have answers."""

    status: int
    message: str
    reply: UpstreamReply | None = None
    """The whole answer of an upstream server, which the row's caller gets as it is."""
    answered: bool = True
    """Whether the server said so; False for words of ours, such as that no time was left."""

    def for_row(self, index: int, rows: int) -> Unserved:
        """The error for the row's call, which has so many rows."""
        where = f"row {index}: " if rows > 1 and self.reply is None else ""
        retry_after = RETRY_SOON if self.status == 503 else None
        return Unserved(
            f"{where}{self.message}",
            status=self.status,
            retry_after=retry_after,
            reply=self.reply,
            answered=self.answered,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RawReply(BatchReply):
    """An upstream server's answer, cut into rows; outputs, statuses and errors are empty."""

    names: tuple[Output, ...]
    answers: tuple[RowAnswer | RowFailure | None, ...]
    """None for a row that had no answer when a fault ended the search for the rows to blame."""
    fault: Unserved | None
    """The error of the rows without an answer, of which none is to blame."""
    refused: int
    """Calls that the server answered with 5xx."""

    @property
    def answered(self) -> bool:
        """Whether any row was."""
        return any(isinstance(answer, RowAnswer) for answer in self.answers)

    def left(self, members: Sequence[_Member]) -> list[_Member]:
        """Those of the batch that have no answer yet."""
        pairs = zip(members, self.answers, strict=True)
        return [member for member, answer in pairs if answer is None]


@dataclass(frozen=True, slots=True, kw_only=True)
class UncutReply(BatchReply):
    """An upstream server's large answer to all rows, which another process cuts.

    The server is free meanwhile; outputs, statuses and errors are empty.
    """

    cut: Callable[[], Awaitable[BatchReply]]
    """Called once; raises `Unserved`."""
