"""Every way a request or a batch can go, named once for metrics, logs and headers.

The accounting that these names serve, at every moment:
offered = accepted + rejected, and accepted = the sum over `Outcome` + waiting + in flight.
"""

from enum import StrEnum


class Rejection(StrEnum):
    """Why a request was not accepted."""

    INVALID = "invalid"
    TOO_LARGE = "too_large"
    QUEUE_FULL = "queue_full"
    OVER_SHARE = "over_share"
    """The queue is full, and the tenant has more than its share of it."""
    DRAINING = "draining"
    NOT_READY = "not_ready"
    """The model cannot be asked now."""
    EXPIRED = "expired"
    """Its time ran out before it was read: a slow body, a long text."""
    ABANDONED = "abandoned"
    """The caller left before there was an answer."""
    PREDICTED_LATE = "predicted_late"
    """It would miss its deadline, and the settings refuse late requests."""


class Outcome(StrEnum):
    """How an accepted request ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    """Its deadline passed."""
    CANCELLED = "cancelled"
    SHED = "shed"
    """It was given up before its deadline, because it would have missed it."""
    EVICTED = "evicted"
    """It was late, and the queue was full when a request came that could be on time."""


class ReleaseReason(StrEnum):
    """Why a batch left."""

    FULL = "full"
    """It can hold no more."""
    IDLE = "idle"
    """The model, or one of its workers, has nothing to do."""
    JUST_IN_TIME = "just_in_time"
    """The running batch is about to end; this one arrives when it does."""
    DELAY = "delay"
    """Its oldest member has waited for the longest time allowed."""
    GROUP_COMPLETE = "group_complete"
    """All members of an announced group are here."""
    PRESSURE = "pressure"
    """Other requests were given up so that these are on time."""
    SPARE = "spare"
    """Late requests, which leave while no request on time needs the model."""
    FLOOR = "floor"
    """The turn of a priority that higher ones have kept waiting."""


class HoldReason(StrEnum):
    """Why no batch leaves now."""

    EMPTY = "empty"
    """Nothing waits."""
    BUSY = "busy"
    """The model cannot take another batch."""
    GATHERING = "gathering"
    """Rows are held back until others join them."""
