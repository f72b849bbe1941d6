"""What a batch policy is told and what it answers: items, batches, events, and bounds of a batch.

The caller gives the time, in monotonic seconds; `math.inf` means never. A policy owns the waiting
items, its caller owns timers and answers.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, NewType, Protocol

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_contract.outcomes import HoldReason, Outcome, Rejection, ReleaseReason

ItemId = NewType("ItemId", int)
BatchId = NewType("BatchId", int)
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
class Batch:
    """Items that share a forward pass, in the order in which the policy took them."""

    id: BatchId
    items: tuple[Item, ...]
    reason: ReleaseReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """What the server behind can hold: `depth` batches at once, of which `in_flight` are taken.

    A depth of 0 says that there is no server at present.
    """

    depth: int
    in_flight: int
    just_in_time: bool = False
    """Whether full batches, too, wait until the server is nearly free, so that an item that comes
    meanwhile may go first."""

    def early(self, opens_at: float) -> bool:
        """Whether a full batch may leave though the server begins it later, as far as is known."""
        return self.in_flight < self.depth and (not self.just_in_time or opens_at == NEVER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why an item was not taken, and in how many seconds trying again makes sense."""

    reason: Rejection
    retry_after: float


class Shed(NamedTuple):
    """An item that no longer waits, and how it ended."""

    item: Item
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do now and when to ask again."""

    release: Batch | None
    shed: tuple[Shed, ...]
    wake_at: float
    """Ask again then, unless something happens before; `NEVER` when only an event can help."""
    reason: ReleaseReason | HoldReason


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """The caller has begun to send a released batch."""

    batch: BatchId


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A batch is answered, or it failed."""

    batch: BatchId
    compute_seconds: float | None
    """Length of the forward pass as the server measured it; None when there was none to measure."""
    queue_seconds: float = 0.0
    """How long the batch lay at the server before its forward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCap:
    """What the server's memory holds, as far as is known; None for no bound."""

    cost: int | None
    """What a native server has learnt, in what its device pays for: rows x longest when padded, the
    sum of lengths when packed, rows otherwise."""
    rows: int | None = None
    """What was found out about an upstream server, which tells no cost."""


Event = HandedOver | Finished | MemoryCap


class Policy(Protocol):
    """Forms batches. Every method takes the present time and none takes long."""

    def offer(self, item: Item, now: float) -> Refusal | None:
        """Take the item, or say why not."""

    def withdraw(self, item_id: ItemId, now: float) -> None:
        """Forget a waiting item: its caller left. Unknown and released items are ignored."""

    def poll(self, now: float, slots: Slots) -> Decision:
        """At most one batch to release now. After a release, poll again."""

    def observe(self, event: Event, now: float) -> None:
        """Learn what became of a released batch, or what the server holds."""

    def configure(self, settings: BatchSettings, now: float) -> None:
        """Use other settings from now on; what waits stays, even above a smaller queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a batch; `cost` is in what the device pays for, None for no bound."""

    rows: int
    cost: int | None
    rule: CostRule

    def rows_of(self, longest: int) -> int:
        """How many items go together if all are as long as this; at least 1."""
        if self.cost is None:
            return self.rows
        each = 1 if self.rule is CostRule.ROWS else max(1, longest)
        return max(1, min(self.rows, self.cost // each))

    def fitting(self, lengths: Sequence[int]) -> int:
        """How many of these items, from the first on, go together; at least 1 if there is one."""
        if self.cost is None:
            return min(self.rows, len(lengths))
        count = longest = total = 0
        for length in lengths:
            longest, total = max(longest, length), total + length
            cost = self.rule.paid(rows=count + 1, longest=longest, total=total)
            if count == self.rows or (count and cost > self.cost):
                break
            count += 1
        return count

    def full(self, lengths: Sequence[int]) -> bool:
        """Whether not even one more as short as the shortest of these would go with them."""
        if self.cost is None or len(lengths) >= self.rows:
            return len(lengths) >= self.rows
        return self.fitting([*lengths, min(lengths)]) == len(lengths)


def limits(settings: BatchSettings, memory: MemoryCap, rule: CostRule) -> Limits:
    """The user's bounds and the server's."""
    # Tokens are not what every device pays for.
    tokens = None if rule is CostRule.ROWS else settings.max_batch_tokens
    costs = [bound for bound in (tokens, memory.cost) if bound is not None]
    rows = [bound for bound in (settings.max_batch_size, memory.rows) if bound is not None]
    return Limits(rows=min(rows), cost=min(costs, default=None), rule=rule)
