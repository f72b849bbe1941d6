"""A call between its acceptance and its end, what it is refused with, and batches of such calls."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

from batchedmodel_contract.inference.batch import OK, BatchReply, BatchRequest
from batchedmodel_contract.inference.tensors import standing_alone
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_http.eager_coroutine import DirectFuture
from batchedmodel_scheduling.batching.decisions import Batch, BatchId, Finished
from batchedmodel_scheduling.batching.policy import BasePolicy
from batchedmodel_scheduling.queue.items import Item, ItemId, Refusal
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.calls import (
    Answer,
    Call,
    Output,
    RawBatch,
    RawReply,
    RowAnswer,
    RowFailure,
    Timing,
    Value,
    request_of,
)
from batchedmodel_sidecar.errors import (
    RETRY_SOON,
    CallError,
    Expired,
    GivenUp,
    Rejected,
    TooLate,
    Unserved,
    UpstreamReply,
    too_many,
)
from batchedmodel_sidecar.protocols.headers import AgreedTerms

logger: Final = logging.getLogger(__name__)

Result = Answer | CallError | None
"""How a call ended; None where its caller left."""

_BATCHES_AT_ONCE: Final = 2
"""Batches of one call for each worker whose rows let no other call pass: one that leaves, and one
behind it."""


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
    ) -> None:
        """`arrived`: None for now. `share`: what it uses a part of. `withdraw` hears that its
        caller has left.
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
        self.hold: Hold | None = None
        """Its memory, where rows that are answered before others count."""
        self.ids: list[ItemId] = []
        """Of its rows, in order."""
        self.in_flight: list[BatchId] = []
        """The batch of each row that has left."""
        self.answers: list[tuple[Value, ...] | None] = [None] * len(call.rows)
        self.replies: list[UpstreamReply | None] = [None] * len(call.rows)
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
    def at_server(self) -> int:
        """Its rows that have left and not come back."""
        return self.missing - self.waiting

    def answer(
        self, index: int, outputs: tuple[Output, ...], answer: RowAnswer, seconds: float
    ) -> Answer | None:
        """One of its rows is answered after so many seconds; the whole answer with the last one."""
        self.answers[index], self.replies[index] = answer.values, answer.reply
        self.model_seconds = max(self.model_seconds, seconds)
        self.missing -= 1
        if self.missing:
            return None
        rows = tuple(answer for answer in self.answers if answer is not None)
        timing = Timing(self.batch_size, self.queue_seconds, self.model_seconds)
        replies = tuple(reply for reply in self.replies if reply is not None)
        return Answer(outputs=outputs, rows=rows, timing=timing, replies=replies)

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
        return self.hold is None or self.hold.keep(sum(map(len, alone)))

    def tell(self, result: Result, outcome: Outcome) -> None:
        """Tell its caller how it ended; said once."""
        if not isinstance(result, Answer):
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

    def items(self, ids: Iterator[int], policy: BasePolicy) -> list[Item]:
        """Its rows as the queue sees them.

        A row far back in a long list is ordered as if it came when the rows before it can have
        left: so the list is served in turns with what comes after it. It is at most as much later
        as half of the time that it has.
        """
        settings = policy.settings
        at_once = _BATCHES_AT_ONCE * settings.max_concurrent_batches * settings.max_batch_size
        each = policy.seconds_of_rows(1) if len(self.call.rows) > at_once else 0.0
        most = (self.due - self.accepted_at) / 2
        items: list[Item] = []
        for place, row in enumerate(self.call.rows):
            item_id = ItemId(next(ids))
            self.ids.append(item_id)
            yields = max(0.0, min(each * (place - at_once), most)) if each else 0.0
            items.append(
                Item(  # by places: a named tuple takes twice as long to find its fields by names
                    item_id,
                    self.call.key_of(row),
                    row.length,
                    self.accepted_at,
                    self.due,
                    self.deadline,
                    self.terms.priority,
                    yields,
                    self.terms.request_group,
                    0 if self.call.adapter is None else self.call.adapter.number,
                    self.share,
                )
            )
        return items


Members = Sequence[tuple[PendingRequest, int]]
"""Rows of a batch, each as its request and its place there."""


def batch_of(members: Members, now: float) -> BatchRequest:
    """Rows of equal keys as a batch for the server."""
    rows = [pending.call.rows[index] for pending, index in members]
    first = members[0][0].call
    if first.envelope is None:
        seconds = max(pending.deadline for pending, _ in members) - now
        # Most models have none, and then nothing is looked at row by row.
        params = [pending.call.params for pending, _ in members] if first.description.params else ()
        adapters = [pending.call.adapter for pending, _ in members]
        if not any(adapters):
            adapters = []
        return request_of(rows, first.description, seconds, params, adapters)
    return RawBatch(
        inputs=(),
        rows=tuple(rows),
        envelope=first.envelope,
        owners=tuple(pending.ids[0] for pending, _ in members),
        callers=tuple(pending.tenant for pending, _ in members),
        traces=tuple(pending.call.trace for pending, _ in members),
        deadlines=tuple(pending.deadline for pending, _ in members),
    )


Replied = BatchReply | Unserved
"""What becomes of a batch."""

_Member = TypeVar("_Member")


def refused(reply: BatchReply | Unserved, members: Sequence[_Member]) -> Sequence[_Member]:
    """The members of the batch whose answer is a refusal."""
    if isinstance(reply, Unserved):
        return members
    if isinstance(reply, RawReply):
        good = [not (isinstance(one, RowFailure) and one.answered) for one in reply.answers]
    elif reply.statuses.count(OK) == len(reply.statuses):
        return ()
    else:
        good = [status == OK for status in reply.statuses]
    # Whether there is a status for each row is checked when the reply is dealt.
    return [one for one, is_good in zip(members, good, strict=False) if not is_good]


def is_served(reply: BatchReply) -> bool:
    """Whether every row has its answer."""
    if isinstance(reply, RawReply):
        return reply.fault is None and all(isinstance(one, RowAnswer) for one in reply.answers)
    return reply.statuses.count(OK) == len(reply.statuses)


def finished(batch: Batch, reply: BatchReply | None) -> Finished:
    """The batch's end for the policy, with the seconds that one of its size takes, if known."""
    if reply is None:
        return Finished(batch=batch.id, compute_seconds=None)
    seconds = reply.compute_seconds if reply.passes == 1 else None
    return Finished(batch=batch.id, compute_seconds=seconds, queue_seconds=reply.queue_seconds)


def dealt(
    reply: BatchReply, rows: int
) -> tuple[tuple[Output, ...], list[RowAnswer | RowFailure | None]]:
    """The outputs' names, and for each row its values, its failure or None; raises `Unserved`."""
    if isinstance(reply, RawReply):
        return reply.names, list(reply.answers)
    if len(reply.statuses) != rows:
        message = f"the model answered {len(reply.statuses)} rows to {rows}"
        raise Unserved(message, status=502)
    try:
        columns = [output.items() for output in reply.outputs]
    except InvalidInput as error:
        raise Unserved(f"the model's answer contradicts itself: {error}", status=502) from error
    shapes = [output.shapes for output in reply.outputs]
    answers: list[RowAnswer | RowFailure | None] = []
    for row, status in enumerate(reply.statuses):
        if status == OK:
            pairs = zip(shapes, columns, strict=True)
            values = tuple(Value(shape[row], column[row]) for shape, column in pairs)
            answers.append(RowAnswer(values, None))
        else:
            answers.append(RowFailure(status=status, message=reply.errors[row]))
    return tuple(Output(output.name, output.datatype) for output in reply.outputs), answers


class Queue(Protocol):
    """Where calls wait."""

    settings: BatchSettings

    def refusal(self, share: Share, rows: int) -> Rejected | None:
        """Why a call of so many rows is refused unread; None where there is room."""
        ...


MODEL_GONE: Final = "the model is gone and this pod is stopping"


def rejected(
    refusal: Refusal, settings: BatchSettings, seconds: float | None = None, *, rows: int = 1
) -> Rejected:
    """A call that had so many seconds, or the usual, was not taken.

    `rows`: how many it has, as far as they were counted.
    """
    if refusal.reason is Rejection.TOO_LARGE:
        message = "it asks for more tokens than the engine ever has at once"
        return Rejected(refusal.reason, message, rows=rows)
    seconds = settings.request_timeout_seconds if seconds is None else seconds
    message = f"the queue is full: {settings.max_queue_size} rows may wait"
    if refusal.reason is Rejection.OVER_SHARE:
        message += ", and this caller has more than its share of them"
    if refusal.reason is Rejection.PREDICTED_LATE:
        message = f"it would not be answered within {seconds:g} s"
    return Rejected(refusal.reason, message, retry_after=refusal.retry_after, rows=rows)


def invalid(error: InvalidInput) -> Rejected:
    """A call was not understood."""
    return Rejected(Rejection.INVALID, str(error), field=error.mistake.field)


def refuse_unfit(rows: int, seconds: float, terms: AgreedTerms, settings: BatchSettings) -> None:
    """Raise `Rejected` for a call of so many rows that so many seconds cannot serve."""
    if seconds <= 0:
        raise TooLate(terms.limit)
    if rows > (most := most_ever(settings)):
        raise too_many(rows, most)


def most_ever(settings: BatchSettings) -> int:
    """Rows of one call that the queue could hold if it held nothing else."""
    return max(1, int(settings.max_queue_size * settings.tenant_max_share))


def of_now(refused: Rejected, share: Share, queue: "Queue") -> Rejected:
    """What a call is told whose rows were only counted: there may be room for so many later."""
    if refused.reason is not Rejection.TOO_LARGE or refused.rows == 1:
        return refused
    ever = most_ever(queue.settings)
    if refused.rows > ever:
        return too_many(refused.rows, ever)
    # Where there is room after all, it has come while the helper read.
    return queue.refusal(share, refused.rows) or Rejected(
        Rejection.QUEUE_FULL, refused.message, retry_after=RETRY_SOON, rows=refused.rows
    )


def ended(outcome: Outcome, *, seconds: float, retry_after: float) -> CallError:
    """A call that waited was given up; it may come again after `retry_after` seconds."""
    if outcome is Outcome.EXPIRED:
        return Expired(seconds)
    return GivenUp(outcome, seconds, retry_after=retry_after)


def no_room_for_answer() -> Unserved:
    """A part of an answer has no memory in which it could wait for the rest."""
    message = "callers' bodies and answers leave no room for all rows of this answer"
    return Unserved(message, status=503, retry_after=RETRY_SOON)


def other_model() -> Unserved:
    """A model came back that takes other rows than the call was checked for."""
    message = "the model was replaced by one that takes other inputs; send the request again"
    return Unserved(message, status=503, retry_after=1.0)


def refused_for_another_model() -> Rejected:
    """The same for a call that was not accepted."""
    other = other_model()
    return Rejected(Rejection.NOT_READY, other.message, retry_after=other.retry_after)
