"""What waits for a batch, why it may not, and how it ended without one.

Times are in monotonic seconds; `NEVER` is infinity.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, NewType

from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_contract.outcomes import Outcome, Rejection

ItemId = NewType("ItemId", int)


NEVER: Final = math.inf


class Priority(IntEnum):
    """How much one item counts against another when not all can be served in time."""

    HIGH = 1
    NORMAL = 2
    LOW = 3

    # An enum's own is written in Python and would run for each item of each batch.
    __hash__ = int.__hash__


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestGroup:
    """A caller says that `size` items with this `id` come within a moment."""

    id: Hashable
    size: int


class Item(NamedTuple):
    """One row that waits for a forward pass."""

    id: ItemId
    key: Hashable
    """Only items of equal keys may share a batch."""
    length: int
    """Size of its ragged dimension, in tokens where the model takes tokens; at least 1."""
    arrived: float
    due: float
    """When its answer should be there. It orders and sizes batches; no later than `deadline`."""
    deadline: float
    """When its caller stops waiting; it is never released at or after this time."""
    priority: Priority = Priority.NORMAL
    yields: float = 0.0
    """Seconds by which it is ordered as if it were due later. Rows far back in a long list have
    some, so that callers who came after the list pass them."""
    request_group: RequestGroup | None = None
    adapter: int = 0
    """The number of its adapter; 0 for none. A batch has no more of them than there are slots."""
    share: Share = NOBODY
    """Its tenant's, of the queue and of the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why an item was not taken, and in how many seconds trying again makes sense."""

    reason: Rejection
    retry_after: float


class Shed(NamedTuple):
    """An item that no longer waits, and how it ended."""

    item: Item
    outcome: Outcome
