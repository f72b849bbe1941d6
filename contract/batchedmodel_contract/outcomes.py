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
    DRAINING = "draining"
    NOT_READY = "not_ready"
    """The model behind cannot be asked at present."""
    EXPIRED = "expired"
    """Its time ran out before it was understood: a slow body, a long text."""
    ABANDONED = "abandoned"
    """The caller left before it could be told anything."""


class Outcome(StrEnum):
    """How an accepted request ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class ReleaseReason(StrEnum):
    """Why a batch left."""

    FULL = "full"
    """It can hold no more."""
    IDLE = "idle"
    """The model has nothing to do."""
    JUST_IN_TIME = "just_in_time"
    """The running batch is about to end; this one arrives when it does."""
    DELAY = "delay"
    """Its oldest member has waited for the longest time allowed."""


class HoldReason(StrEnum):
    """Why no batch leaves now."""

    EMPTY = "empty"
    """Nothing waits."""
    BUSY = "busy"
    """The model cannot take another batch."""
    GATHERING = "gathering"
    """What waits is held for company."""
