"""Rows over which the server died: each is tried once more, with nothing beside it.

Owned by the batcher, which shows them to no policy: they wait here, and leave before all others as
soon as the server has nothing. Until then nothing follows what it has. But what is slow may hang,
and shall hold nobody up but them: while that lasts others share the workers that are left.
"""

from collections.abc import Callable

from batchedmodel_contract.outcomes import ReleaseReason
from batchedmodel_scheduling.core.pipeline import Pipeline
from batchedmodel_scheduling.core.policy import Batch, Item, ItemId
from batchedmodel_sidecar.batching.in_flight import InFlight
from batchedmodel_sidecar.batching.isolation import Alone


class Quarantine:
    """One server's; times are monotonic seconds."""

    def __init__(self, in_flight: InFlight, relieved: Callable[[], None]) -> None:
        """`relieved` is told when the last of those that waited will not leave any more."""
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
        """Whether one waits and would be alone."""
        return bool(self._waiting) and not self._in_flight.any

    def leave(self, pipeline: Pipeline) -> Batch:
        """The one that is due first of those that wait leaves."""
        first = min(self._waiting.values(), key=lambda item: item.due)
        del self._waiting[first.id]
        self._tried = pipeline.release([first], ReleaseReason.IDLE)
        return self._tried

    def depth(self, depth: int, now: float) -> int:
        """How many batches the server may hold, of `depth` that it can."""
        if self._in_flight.slow(now) or not (self._waiting or self._in_flight.has(self._tried)):
            return depth
        return min(depth, 1)
