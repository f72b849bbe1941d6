"""What a batch policy is told and what it answers.

The caller gives the time, in monotonic seconds. A policy chooses from the items of its queue, its
caller owns timers and answers.
"""

from dataclasses import dataclass
from typing import NewType, Protocol

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import HoldReason, ReleaseReason
from batchedmodel_scheduling.queue.items import Item, ItemId, Refusal, Shed
from batchedmodel_scheduling.queue.ready_queue import Limits

BatchId = NewType("BatchId", int)


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


def limits(settings: BatchSettings, memory: MemoryCap, rule: CostRule) -> Limits:
    """The user's bounds and the server's."""
    # Tokens are not what every device pays for.
    tokens = None if rule is CostRule.ROWS else settings.max_batch_tokens
    costs = [bound for bound in (tokens, memory.cost) if bound is not None]
    rows = [bound for bound in (settings.max_batch_size, memory.rows) if bound is not None]
    return Limits(rows=min(rows), cost=min(costs, default=None), rule=rule)
