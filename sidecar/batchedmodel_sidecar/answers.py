"""Answers of calls, without any protocol: adapters make bodies of them. Compiled, as calls are."""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from batchedmodel_contract.inference.batch import (
    BatchRequest,
    flattened,
    ragged,
)
from batchedmodel_contract.inference.tensors import Datatype, Scattered, Tensor
from batchedmodel_sidecar.calls import Row, Value
from batchedmodel_sidecar.said import Said


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

    __slots__ = ("outputs", "rows", "said", "timing")

    def __init__(
        self,
        outputs: tuple[Output, ...],
        rows: tuple[tuple[Value, ...], ...],
        timing: Timing | None = None,
        said: tuple[Said, ...] = (),
    ) -> None:
        """`said`: for each row, what an upstream server said with it; empty from ours."""
        self.outputs: Final = outputs
        self.rows: Final = rows
        self.timing: Final = timing
        self.said: Final = said

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
                pairs = [(value.shape, value.data) for value in values]
                tensors += flattened([ragged(output.name, output.datatype, pairs)])
        return tensors
