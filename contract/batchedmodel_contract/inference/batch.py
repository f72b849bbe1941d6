"""A batch and its reply, whatever carries them."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from batchedmodel_contract.inference.ragged import Ragged
from batchedmodel_contract.inference.tensors import Tensor
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.spec import MAX_BATCH_SIZE

OK: Final = 200
"""Status of an item that was answered."""


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

    outputs: tuple[Ragged, ...]
    statuses: tuple[int, ...]
    errors: tuple[str, ...]
    compute_seconds: float
    """Time in the forward pass."""
    queue_seconds: float
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


class AnswerRoom(NamedTuple):
    """Shared memory in which the server may put items of its reply, instead of sending them."""

    start: int
    size: int
    """In bytes."""


def check_items(name: str, count: int) -> None:
    """Raise `InvalidInput` if an input has more items than any batch may have."""
    if count > MAX_BATCH_SIZE:
        raise InvalidInput(name, f"holds {count} items; a batch has at most {MAX_BATCH_SIZE}")
