"""What a caller is told when the policy has no room for its call: before it is accepted, or after.

Pure; called by the batcher. The delay after which a caller should come back is the time that the
device needs for what waits, as far as anybody knows it.
"""

from typing import Final, Protocol

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_scheduling.core.policy import Refusal
from batchedmodel_sidecar.errors import (
    RETRY_SOON,
    CallError,
    Expired,
    GivenUp,
    Rejected,
    TooLate,
    Unserved,
    refuse_many,
    too_many,
)
from batchedmodel_sidecar.protocols.headers import AgreedTerms


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


def refuse_unfit(rows: int, left: float, terms: AgreedTerms, settings: BatchSettings) -> None:
    """Raise `Rejected` for a call of so many rows that so many seconds cannot serve."""
    if left <= 0:
        raise TooLate(terms.limit)
    refuse_many(rows, most_ever(settings))


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
