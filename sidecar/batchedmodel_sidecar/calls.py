"""A call and its answer, without any protocol.

Adapters make a `Call` of a body and a body of an `Answer`. The batcher sees only these.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from batchedmodel_contract.inference.batch_wire import BatchRequest, flattened, ragged
from batchedmodel_contract.inference.description import ModelDescription
from batchedmodel_contract.inference.params import Values, columns
from batchedmodel_contract.inference.tensors import Buffer, Datatype, Scattered, Shape, Tensor


class Value(NamedTuple):
    """One tensor of one row: its shape without batch dimension and its bytes."""

    shape: Shape
    data: Buffer


class Row(NamedTuple):
    """One row of a call, its tensors in the order of the model's inputs."""

    values: tuple[Value, ...]
    length: int


class Call(NamedTuple):
    """Rows that are accepted and answered together."""

    rows: tuple[Row, ...]
    description: ModelDescription
    """The rows were checked against it; a server that takes other rows must not get them."""
    key: Hashable
    """Only rows of equal keys may share a batch."""
    equal_shapes: bool = False
    """Whether rows that share a batch must have equal shapes too, even within the call."""
    params: Values | None = None
    """The model's parameters that the call sets; rows with others may share its batch."""
    envelope: Hashable = None
    """What a foreign server is asked beside the rows; a part of the key. None for our server."""
    trace: tuple[tuple[str, str], ...] = ()
    """Headers that go with the rows only where no other call's rows go with them."""

    @property
    def size(self) -> int:
        """Bytes of all inputs of all rows."""
        return sum(len(value.data) for row in self.rows for value in row.values)

    def key_of(self, row: Row) -> Hashable:
        """What must be equal in rows that share a batch with this one of its rows."""
        if not self.equal_shapes:
            return self.key
        return self.key, tuple(value.shape for value in row.values)

    @property
    def lengths(self) -> list[int]:
        """The length of each row."""
        return [row.length for row in self.rows]


def request_of(
    rows: Sequence[Row],
    description: ModelDescription,
    wanted_seconds: float,
    params: Sequence[Values | None] = (),
) -> BatchRequest:
    """A batch of rows of any number of calls, for the model that is described.

    `params`: what each row's call sets, for a model that has parameters.
    """
    return BatchRequest(
        inputs=tuple(
            ragged(spec.name, spec.datatype, [row.values[column] for row in rows])
            for column, spec in enumerate(description.inputs)
        ),
        params=columns(params, description.params) if params else (),
        wanted_seconds=wanted_seconds,
        version=description.version,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RawBatch(BatchRequest):
    """A batch for a foreign server: the rows as they came. Its `inputs` are empty."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a foreign server answered beside the rows."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    """The headers that may pass to whoever shares the answer."""
    content_type: str = "application/json"
    body: bytes = b""
    """The whole body, where one caller gets it as it is."""
    frame: Any = None
    """What the protocol keeps of the answer, such as the model's version."""


class Output(NamedTuple):
    """Name and type of an output."""

    name: str
    datatype: Datatype


class Timing(NamedTuple):
    """How a call was served; of several rows the slowest counts, and the largest batch."""

    batch_size: int
    queue_seconds: float
    """From acceptance to the release of its batch."""
    model_seconds: float
    """The forward pass, as the server measured it."""


class RowAnswer(NamedTuple):
    """One row's outputs."""

    values: tuple[Value, ...]
    said: Said | None
    """What a foreign server said with them."""


class Answer(NamedTuple):
    """The rows' outputs, in the order in which the call gave its rows."""

    outputs: tuple[Output, ...]
    rows: tuple[tuple[Value, ...], ...]
    timing: Timing | None = None
    said: tuple[Said, ...] = ()
    """For each row, what a foreign server said with it; empty from ours."""

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
                tensors += flattened([ragged(output.name, output.datatype, values)])
        return tensors
