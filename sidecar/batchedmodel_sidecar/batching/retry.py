"""What becomes of a row whose batch came to nothing: another try, or an end.

Used by the batcher. A row over which the server died is tried once more with nothing beside it, so
that a row that kills servers takes no other with it the second time. It is blamed only for a death
with nothing beside it.
"""

from collections.abc import Callable
from typing import Final

from batchedmodel_contract.outcomes import ReleaseReason
from batchedmodel_scheduling.core.pipeline import Pipeline
from batchedmodel_scheduling.core.policy import Batch, Item, ItemId
from batchedmodel_sidecar.batching.in_flight import InFlight
from batchedmodel_sidecar.batching.isolation import Alone, apart
from batchedmodel_sidecar.batching.pending_request import PendingRequest
from batchedmodel_sidecar.errors import Busy, Fatal, Lost, Unserved

_MOST_RESTS: Final = 3  # per row of a call


def told_apart(error: Unserved, *, idempotent: bool) -> bool:
    """Whether each caller of a batch that is told so has its rows tried again without the others'.

    What a server answers to several may be meant for one of them alone. If it did nothing, or rows
    may be sent twice, that is found out.
    """
    return error.answered and (idempotent or isinstance(error, Busy))


def again(
    pending: PendingRequest,
    item: Item,
    error: Unserved,
    *,
    idempotent: bool,
    alone: bool,
    shared: bool,
) -> Item | Unserved:
    """The row of a batch as it is tried again, or what its call is told.

    `idempotent`: the settings let a row be sent again when nobody knows what became of it; the
    model may forbid it. `alone`: the server had nothing beside the batch, and `shared`: the batch
    had rows of several callers.
    """
    if shared and told_apart(error, idempotent=idempotent):
        return apart(item, pending.tenant)._replace(request_group=None)
    if isinstance(error, Busy):
        # Nothing was done for it, so it may be sent again in any case.
        pending.rests += 1
        again = item._replace(request_group=None)  # the model knows its group already
        return again if pending.rests <= _MOST_RESTS * len(pending.call.rows) else error
    if not (isinstance(error, Lost) and idempotent and pending.call.description.idempotent):
        return error
    if isinstance(item.key, Alone):
        return Fatal() if alone else error
    return item._replace(key=Alone(item.id), request_group=None)


class Quarantine:
    """Rows over which the server died, each of which is tried once more by itself.

    No policy sees them: they wait here, and leave before all others as soon as the server has
    nothing. No other batch leaves until then, and while one of them runs. But when a batch is slow
    it may hang: then other batches share the workers that are left, and only these rows wait.
    """

    def __init__(self, in_flight: InFlight, relieved: Callable[[], None]) -> None:
        """`relieved` is called when the last row that waits here was discarded."""
        self._in_flight = in_flight
        self._relieved = relieved
        self._waiting: dict[ItemId, Item] = {}
        self._tried: Batch | None = None
        """The last one that left."""

    def takes(self, item: Item) -> bool:
        """Whether a row that is tried again is one of these; it waits here then."""
        if not isinstance(item.key, Alone):
            return False
        self._waiting[item.id] = item
        return True

    def discard(self, item_id: ItemId) -> None:
        """A row waits no more, if it did."""
        if self._waiting.pop(item_id, None) is not None and not self._waiting:
            self._relieved()

    @property
    def can_leave(self) -> bool:
        """Whether a row waits and the server has nothing."""
        return bool(self._waiting) and not self._in_flight.any

    def leave(self, pipeline: Pipeline) -> Batch:
        """Release the row that is due first."""
        first = min(self._waiting.values(), key=lambda item: item.due)
        del self._waiting[first.id]
        self._tried = pipeline.release([first], ReleaseReason.IDLE)
        return self._tried

    def depth(self, depth: int, now: float) -> int:
        """How many batches the server may hold, of `depth` that it can."""
        if self._in_flight.slow(now) or not (self._waiting or self._in_flight.has(self._tried)):
            return depth
        return min(depth, 1)
