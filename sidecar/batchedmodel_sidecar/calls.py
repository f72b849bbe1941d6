"""What a call asks and what it is answered, once no protocol is visible any more.

Adapters make a `Call` of a body and a body of an `Answer`; the batcher sees only these.
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
    """Rows that are settled together."""

    rows: tuple[Row, ...]
    description: ModelDescription
    """What the rows were checked against; a server that takes other rows must not get them."""
    key: Hashable
    """Only rows of equal keys may share a batch."""
    equal_shapes: bool = False
    """Whether, beside that, only rows of equal shapes may, even within the call."""
    params: Values | None = None
    """What the call sets of the model's parameters; nothing that keeps its rows from others'."""
    envelope: Hashable = None
    """What a foreign server is asked beside the rows; a part of the key. None for our server."""
    trace: tuple[tuple[str, str], ...] = ()
    """Headers that a request of this call alone carries: others' rows would be in a wrong trace."""

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
    """Rows of any number of calls as one batch for the model that is described.

    `params`: for each row what its call sets, for a model that has parameters.
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
    """A batch for a foreign server: its rows as they came, `inputs` being empty."""

    rows: tuple[Row, ...]
    envelope: Any
    """That of every call in it."""
    owners: tuple[int, ...]
    """For each row, the number of its call: rows with one caller are answered together."""
    callers: tuple[str, ...]
    """For each row, who asks."""
    traces: tuple[tuple[tuple[str, str], ...], ...]
    """For each row, the headers that it brings where its call is alone in a request."""
    deadlines: tuple[float, ...]
    """For each row, until when it may be sent again, in seconds of the batcher's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a foreign server answered beside the rows."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    """Those that may pass to whoever shares the answer."""
    content_type: str = "application/json"
    body: bytes = b""
    """The whole body, where it is one caller's as it stands."""
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
        """Each output as one tensor with a batch dimension, its rows where they happen to lie.

        Rows of differing shapes make no rectangle: such an output is flat, and its shapes follow
        in a tensor of their own, as in the batch extension.
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
