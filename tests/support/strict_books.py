"""Books that check themselves, and a batcher at whose door somebody counts. Not when compiled."""

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_contract.outcomes import Outcome, ReleaseReason
from batchedmodel_sidecar.batching.batcher import Batcher
from batchedmodel_sidecar.batching.pending_request import PendingRequest, Result
from batchedmodel_sidecar.calls import Call, RawBatch
from batchedmodel_sidecar.errors import CallError, Rejected
from batchedmodel_sidecar.model import Infer
from batchedmodel_sidecar.protocols.headers import NO_OPTIONS, RequestOptions
from batchedmodel_sidecar.telemetry.ledger import Ledger


@dataclass
class Seen:
    """What callers and the server see of a batcher, counted without a look into its books."""

    calls: int = 0
    """That came to the batcher."""
    rows: int = 0
    """Of all that came, and one of each that was refused unread."""
    refused: int = 0
    inside: list[int] = field(default_factory=list)
    """The rows of each call that was taken and has not returned."""
    ended: Counter[Outcome] = field(default_factory=Counter)
    """Calls that were taken, by what their callers make of their ends."""
    at_server: list[int] = field(default_factory=list)
    """The rows of each batch that the server has."""


class StrictLedger(Ledger):
    """Books that are compared with what others see whenever they change."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen
        self._left = 0
        self.wrong: list[AssertionError] = []
        """What was found when they changed: a batcher survives what goes wrong in a decision."""

    def leave(self, rows: int, waiting: int) -> None:
        """See `Ledger`."""
        super().leave(rows, waiting)
        self._left += 1

    def pass_on(self) -> None:
        """See `Ledger`; such a call never comes to the batcher."""
        self._seen.calls += 1
        super().pass_on()

    def batch_leaves(self, reason: ReleaseReason, rows: int, now: float) -> None:
        """See `Ledger`."""
        super().batch_leaves(reason, rows, now)
        assert rows == self._left, "a batch holds the rows that have just left"
        self._left = 0

    def check(self) -> None:
        """The accounting identity of the design, and what callers and server say of its parts.

        Both hear of an end a little later than the books.
        """
        seen = self._seen
        assert self.accepted + seen.refused == seen.calls
        assert self.rows_offered == seen.rows
        ongoing = self.waiting + self.in_flight + self.passing
        assert self.accepted == self.settled.total() + ongoing
        assert self.waiting + self.in_flight <= len(seen.inside)
        assert self.rows_waiting <= self.rows_live <= sum(seen.inside)
        assert self.batches_in_flight >= len(seen.at_server)
        assert self.rows_at_model.value >= sum(seen.at_server)
        assert min(self.waiting, self.in_flight, self.passing, self.rows_waiting) >= 0
        assert self.work_live > -1e-9

    def check_at_rest(self) -> None:
        """The same when nothing is under way between the parts, so that all see the same."""
        seen = self._seen
        assert not self.wrong
        self.check()
        live = self.waiting + self.in_flight
        assert (live, self.rows_live) == (len(seen.inside), sum(seen.inside))
        at_server = (len(seen.at_server), sum(seen.at_server))
        assert (self.batches_in_flight, self.rows_at_model.value) == at_server
        assert self.settled.total() == seen.ended.total()
        # Who leaves while the answer is on its way takes none, whatever the books say.
        assert all(seen.ended[one] <= self.settled[one] for one in {*Outcome} - {Outcome.CANCELLED})


def _strict(change: Callable[..., None]) -> Callable[..., None]:
    def changed(self: StrictLedger, *args: Any, **kwargs: Any) -> None:
        try:
            change(self, *args, **kwargs)
            self.check()
        except AssertionError as error:
            self.wrong.append(error)
            raise

    return changed


# These count for tenants and adapters, beside the identity, before a caller hears of its end.
_BESIDE = {"answered_rows", "refused_rows"}

for _name, _method in inspect.getmembers(Ledger, inspect.isfunction):
    if not _name.startswith("_") and _name not in _BESIDE:
        setattr(StrictLedger, _name, _strict(getattr(StrictLedger, _name)))


class WatchedBatcher(Batcher):
    """A batcher at whose door somebody counts."""

    def __init__(self, seen: Seen, settings: BatchSettings, *, infer: Infer, **parts: Any) -> None:
        async def watched(request: BatchRequest, seconds: float) -> BatchReply:
            task = asyncio.current_task()
            if task is not None and task.get_name() == "probe":
                return await infer(request, seconds)  # nobody's batch, and in no book
            if isinstance(request, RawBatch):
                rows = len(request.rows)
            else:
                rows = len([*request.inputs[0].items()])
            seen.at_server.append(rows)
            try:
                return await infer(request, seconds)
            finally:
                seen.at_server.remove(rows)

        super().__init__(settings, infer=watched, **parts)
        self._seen = seen

    def refusal(self, share: Share = NOBODY, rows: int = 1) -> Rejected | None:
        """See `Batcher`."""
        refusal = super().refusal(share, rows)
        self._seen.rows += rows * (refusal is not None)
        return refusal

    def offer(
        self,
        call: Call,
        arrived: float | None = None,
        options: RequestOptions = NO_OPTIONS,
        share: Share = NOBODY,
    ) -> PendingRequest:
        """See `Batcher`."""
        seen, rows = self._seen, len(call.rows)
        seen.calls += 1
        seen.rows += rows
        seen.inside.append(rows)
        try:
            return super().offer(call, arrived, options, share)
        except Rejected:
            seen.refused += 1
            seen.inside.remove(rows)
            raise

    def _settle(self, pending: PendingRequest, outcome: Outcome, result: Result) -> None:
        if pending.missing >= 0:
            self._seen.inside.remove(len(pending.call.rows))
            if isinstance(result, CallError):
                self._seen.ended[Outcome(str(result.counted_as))] += 1
            else:
                left = result is None
                self._seen.ended[Outcome.CANCELLED if left else Outcome.COMPLETED] += 1
        super()._settle(pending, outcome, result)
