"""Batches and their replies, and the tensors of items that differ in shape."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from batchedmodel_contract.inference.tensors import (
    Buffer,
    Datatype,
    Scattered,
    Shape,
    Tensor,
    contiguous,
    join_byte_elements,
    split_byte_elements,
)
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.batching import MAX_BATCH_SIZE

OK: Final = 200
"""Status of an item that was answered."""
SHAPES: Final = ":shapes"
"""Ends the name of the tensor with the shapes of another one's items."""


class Ragged(NamedTuple):
    """One named tensor of every item of a batch, concatenated and never padded.

    Item i has `shapes[i]`, all of one rank.
    """

    name: str
    datatype: Datatype
    shapes: tuple[Shape, ...]
    parts: tuple[Buffer, ...]
    """All items' bytes, one behind the other, in any number of buffers."""
    shared: bool = False
    """Whether the parts lie in memory that another process may write to."""

    @property
    def size(self) -> int:
        """How many bytes the items have."""
        return sum(map(len, self.parts))

    @property
    def data(self) -> Buffer:
        """All items' bytes in one buffer; a copy unless they are in one already.

        What another process may write to is always copied: once judged, it must not change.
        """
        return b"".join(self.parts) if self.shared else contiguous(self.parts)

    def items(self) -> list[Buffer]:
        """The bytes of each item; raises `InvalidInput` when shapes and data do not agree."""
        sizes = [math.prod(shape) for shape in self.shapes]
        each = self.datatype.size
        apart = len(self.parts) == len(sizes) and not self.shared
        if each and apart and [size * each for size in sizes] == [*map(len, self.parts)]:
            return list(self.parts)
        data = self.data
        if self.datatype is Datatype.BYTES:
            return self._byte_items(sizes, data)
        view, position = memoryview(data), 0
        items: list[Buffer] = []
        for size in sizes:
            end = position + size * each
            items.append(view[position:end])
            position = end
        if position != len(view):
            raise InvalidInput(self.name, f"is {len(view)} bytes long; its shapes need {position}")
        return items

    def _byte_items(self, sizes: list[int], data: Buffer) -> list[Buffer]:
        elements = split_byte_elements(data)
        if len(elements) != sum(sizes):
            raise InvalidInput(
                self.name, f"has {len(elements)} elements; its shapes need {sum(sizes)}"
            )
        return [
            join_byte_elements(bytes(element) for element in elements[start:end])
            for start, end in pairwise([0, *accumulate(sizes)])
        ]


def ragged(name: str, datatype: Datatype, items: Sequence[tuple[Shape, Buffer]]) -> Ragged:
    """String the items' buffers together without looking into them."""
    return Ragged(
        name, datatype, tuple(shape for shape, _ in items), tuple(data for _, data in items)
    )


def flattened(tensor: Ragged) -> list[Tensor | Scattered]:
    """A tensor as callers get it whose items differ in shape: its data flat, and behind it
    ``<name>:shapes`` (INT64, items x rank)."""
    count, rank = len(tensor.shapes), len(tensor.shapes[0]) if tensor.shapes else 0
    elements = sum([math.prod(shape) for shape in tensor.shapes])
    sizes = array("q", [size for shape in tensor.shapes for size in shape])
    return [
        Scattered(tensor.name, tensor.datatype, (elements,), tensor.parts),
        Tensor(tensor.name + SHAPES, Datatype.INT64, (count, rank), sizes.tobytes()),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """What the sidecar hands over: every input of every item, in one order."""

    inputs: tuple[Ragged, ...]
    params: tuple[Tensor, ...] = ()
    """One value for each item, of those parameters that any item's request sets."""
    wanted_seconds: float | None = None
    """How long after it was sent a caller waits for one of its items; None: not known."""
    version: str | None = None
    """The version of the model that its items were checked for; None: the one that serves."""
    adapters: tuple[int, ...] = ()
    """The number of each item's adapter, 0 for the model itself; empty where no item has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReply:
    """What the model server answers; a failed item has empty tensors, its status and its error."""

    outputs: tuple[Ragged, ...] = ()
    statuses: tuple[int, ...] = ()
    errors: tuple[str, ...] = ()
    """These three are empty in what an upstream server answers, which has no such columns."""
    compute_seconds: float
    """Time in the forward pass."""
    queue_seconds: float = 0.0
    """Time between the batch's arrival at the server and the start of its forward pass."""
    tokens: int
    """Sum of the items' lengths."""
    padded_tokens: int
    """What the device computed: rows x longest when padded, the sum when packed."""
    passes: int = 1
    """How many forward passes it took; `compute_seconds` is the time of all of them."""
    max_cost: int | None = None
    """What the server's memory holds now; see `Profile.max_cost`."""
    long_rows: int = 0
    """Items that ran alone beside steps of texts, for longer than the target between tokens leaves
    beside a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailure:
    """Why a batch as a whole has no reply."""

    status: int
    """As in HTTP: 400 for a batch that breaks a rule, 503 for a server that cannot take it."""
    message: str
    at_work: bool = False
    """Whether the device was lost during the batch; otherwise it was not begun."""


def check_items(name: str, count: int) -> None:
    """Raise `InvalidInput` if an input has more items than any batch may have."""
    if count > MAX_BATCH_SIZE:
        raise InvalidInput(name, f"holds {count} items; a batch has at most {MAX_BATCH_SIZE}")
