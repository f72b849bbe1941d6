"""A call between its acceptance and its end, as the batcher keeps it."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from batchedmodel_contract.inference.batch import BatchRequest
from batchedmodel_contract.inference.tensors import standing_alone
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome
from batchedmodel_http.eager_coroutine import DirectFuture
from batchedmodel_scheduling.core.policy import BatchId, Item, ItemId
from batchedmodel_sidecar.answers import Answer, Output, RawBatch, Timing
from batchedmodel_sidecar.batching.batch_reply import RowAnswer
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.calls import Call, Value, request_of
from batchedmodel_sidecar.errors import CallError
from batchedmodel_sidecar.protocols.headers import AgreedTerms
from batchedmodel_sidecar.said import Said

logger: Final = logging.getLogger(__name__)

Result = Answer | CallError | None
"""How a call ended; None where its caller left."""


class PendingRequest(DirectFuture[Answer]):
    """An accepted call that is not settled; await it for the answer.

    Raises `Unserved`, `Expired` or `GivenUp`. Cancelling the await withdraws the call.
    """

    def __init__(
        self,
        call: Call,
        now: float,
        arrived: float | None,
        terms: AgreedTerms,
        share: Share,
        withdraw: Callable[["PendingRequest"], None],
        held: Hold | None = None,
    ) -> None:
        """`arrived`: None for now. `share`: what it uses a part of. `withdraw` hears that its
        caller has left.

        `held`: its memory, where rows that are answered before others count.
        """
        super().__init__()
        arrived = now if arrived is None else arrived
        self.call: Final = call
        self.share: Final = share
        self.tenant: Final = share.tenant
        self.accepted_at: Final = now
        self.terms: Final = terms
        self.due: Final = arrived + terms.due
        self.deadline: Final = arrived + terms.limit
        self._withdraw = withdraw
        self._held = held
        self.ids: list[ItemId] = []
        """Of the rows that the policy has been shown, in order."""
        self.in_flight: list[BatchId] = []
        """The batch of each row that has left."""
        self.answers: list[tuple[Value, ...] | None] = [None] * len(call.rows)
        self.said: list[Said | None] = [None] * len(call.rows)
        self.missing = len(call.rows)
        self.expiry = 0
        """Its number among the deadlines."""
        self.recorded = 0
        """Number of its first row in the flight recorder."""
        self.work = 0.0
        self.waiting = len(call.rows)
        """Rows that have not left."""

        self.rests = 0
        """How often the server asked for rest instead of answering it."""
        self.batch_size = 0
        self.queue_seconds = 0.0
        self.model_seconds = 0.0

    @property
    def partly_shown(self) -> bool:
        """Whether the policy has not seen all of its rows."""
        return len(self.ids) < len(self.call.rows)

    @property
    def at_server(self) -> int:
        """Its rows that have left and not come back."""
        return self.missing - self.waiting

    def answer(
        self, index: int, outputs: tuple[Output, ...], answer: RowAnswer, seconds: float
    ) -> Answer | None:
        """One of its rows is answered after so many seconds; the whole answer with the last one."""
        self.answers[index], self.said[index] = answer.values, answer.said
        self.model_seconds = max(self.model_seconds, seconds)
        self.missing -= 1
        if self.missing:
            return None
        rows = tuple(answer for answer in self.answers if answer is not None)
        timing = Timing(self.batch_size, self.queue_seconds, self.model_seconds)
        said = tuple(said for said in self.said if said is not None)
        return Answer(outputs=outputs, rows=rows, timing=timing, said=said)

    def keeps_alone(self, index: int) -> bool:
        """Others of its rows wait: keep of the reply to a batch no more than its own answer.

        False where there is no memory for that.
        """
        values = self.answers[index]
        if values is None or self.missing <= 0:
            return True
        alone = standing_alone([value.data for value in values])
        pairs = zip(values, alone, strict=True)
        self.answers[index] = tuple([Value(value.shape, data) for value, data in pairs])
        return self._held is None or self._held.keep(sum(map(len, alone)))

    def tell(self, result: Result, outcome: Outcome) -> None:
        """Tell its caller how it ended; said once."""
        if outcome is not Outcome.COMPLETED:
            why = "the caller left" if result is None else type(result).__name__  # quotes no body
            logger.debug("%d rows %s: %s", len(self.call.rows), outcome, why)
        try:
            self.settle(asyncio.CancelledError() if result is None else result)
        except Exception:
            # The books are kept all the same, and others of its batch are told.
            logger.exception("a caller could not be told")

    def left(self) -> None:
        """Its caller has left."""
        self._withdraw(self)

    def leaves(self, batch: BatchId, batch_size: int, now: float) -> None:
        """One of its rows leaves in a batch."""
        self.waiting -= 1
        self.in_flight.append(batch)
        self.batch_size = max(self.batch_size, batch_size)
        self.queue_seconds = max(self.queue_seconds, now - self.accepted_at)

    def show(self, item_id: ItemId, now: float) -> Item:
        """Its next row that the policy has not seen, as the policy sees it.

        A row that is shown later yields to others as if it had come now: so a long list is served
        in turns with what came after it. It yields less the nearer its own due time is.
        """
        row = self.call.rows[len(self.ids)]
        self.ids.append(item_id)
        return Item(
            id=item_id,
            key=self.call.key_of(row),
            length=row.length,
            yields=max(0.0, min(now - self.accepted_at, (self.due - now) / 2)),
            arrived=self.accepted_at,
            due=self.due,
            deadline=self.deadline,
            priority=self.terms.priority,
            request_group=self.terms.request_group,
            adapter=0 if self.call.adapter is None else self.call.adapter.number,
        )


Members = Sequence[tuple[PendingRequest, int]]
"""Rows of a batch, each as its request and its place there."""


def batch_of(members: Members, now: float) -> BatchRequest:
    """Rows of equal keys as a batch for the server."""
    rows = [pending.call.rows[index] for pending, index in members]
    first = members[0][0].call
    if first.envelope is None:
        wanted = max(pending.deadline for pending, _ in members) - now
        # Most models have none, and then nothing is looked at row by row.
        params = [pending.call.params for pending, _ in members] if first.description.params else ()
        adapters = [pending.call.adapter for pending, _ in members]
        if not any(adapters):
            adapters = []
        return request_of(rows, first.description, wanted, params, adapters)
    return RawBatch(
        inputs=(),
        rows=tuple(rows),
        envelope=first.envelope,
        owners=tuple(pending.ids[0] for pending, _ in members),
        callers=tuple(pending.tenant for pending, _ in members),
        traces=tuple(pending.call.trace for pending, _ in members),
        deadlines=tuple(pending.deadline for pending, _ in members),
    )
