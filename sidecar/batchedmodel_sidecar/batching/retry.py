"""What becomes of a row whose batch has no answer: another try, or an end.

Used by the batcher. A row over which the server died is tried once more with nothing beside it, so
that a row that kills servers takes no other with it the second time. It is blamed only for a death
with nothing beside it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from batchedmodel_contract.outcomes import ReleaseReason
from batchedmodel_scheduling.core.base import BasePolicy
from batchedmodel_scheduling.core.pipeline import Pipeline
from batchedmodel_scheduling.core.policy import Batch, Item, ItemId
from batchedmodel_sidecar.batching.in_flight import InFlight, Sent
from batchedmodel_sidecar.batching.isolation import Alone, apart
from batchedmodel_sidecar.batching.pending_request import PendingRequest
from batchedmodel_sidecar.batching.request_window import RequestWindow
from batchedmodel_sidecar.errors import Busy, Fatal, Lost, Unserved
from batchedmodel_sidecar.telemetry.ledger import Ledger

_MOST_RESTS: Final = 3  # per row of a call


def again(
    pending: PendingRequest,
    item: Item,
    error: Unserved,
    *,
    idempotent: bool,
    alone: bool,
    shared: bool,
) -> Item | Unserved:
    """The row of a batch as it is tried again, or the error that ends its call.

    `idempotent`: the settings let a row be sent again when nobody knows what became of it; the
    model may forbid it. `alone`: the server had nothing beside the batch, and `shared`: the batch
    had rows of several callers, of whom one may have caused that the server is busy.
    """
    row = item._replace(request_group=None)  # the model knows its group already
    if isinstance(error, Busy):
        # Nothing was done for it, so it may be sent again in any case.
        if shared and error.answered:
            return apart(row, pending.tenant)
        pending.rests += 1
        return row if pending.rests <= _MOST_RESTS * len(pending.call.rows) else error
    if not (isinstance(error, Lost) and idempotent and pending.call.description.idempotent):
        return error
    if isinstance(item.key, Alone):
        return Fatal() if alone else error
    return row._replace(key=Alone(item.id))


class Retries:
    """Lets rows without an answer wait once more."""

    def __init__(
        self,
        ledger: Ledger,
        window: RequestWindow,
        quarantine: "Quarantine",
        *,
        idempotent: bool,
    ) -> None:
        self._ledger = ledger
        self._window = window
        self._quarantine = quarantine
        self._idempotent = idempotent

    def of(
        self,
        items: Sequence[Item],
        rows: Mapping[ItemId, tuple[PendingRequest, int]],
        error: Unserved,
        sent: Sent,
        policy: BasePolicy,
        now: float,
        *,
        over: bool,
    ) -> Iterator[tuple[PendingRequest, Unserved]]:
        """The calls that end, each with its error, one after the other: one may end others.

        `rows` are those of calls that have not ended; `over`: nothing is tried again.
        """
        alone = sent.alone and not self._ledger.passing
        for item in items:
            if (pending := rows.get(item.id, (None, 0))[0]) is None:
                continue  # no longer wanted
            tried: Item | Unserved = error
            if not over:
                tried = again(
                    pending,
                    item,
                    error,
                    idempotent=self._idempotent,
                    alone=alone,
                    shared=sent.shared,
                )
            if isinstance(tried, Unserved):
                yield pending, tried
                continue
            self._window.waits_again(pending)
            self._ledger.come_back(len(pending.call.rows), pending.waiting, now)
            if not self._quarantine.takes(tried):
                self._window.come_back(tried, pending, policy)


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
