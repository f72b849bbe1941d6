"""Every way in which a call can go wrong, and the HTTP status of each.

Exceptions of libraries are translated where they occur: the HTTP client's in `backends`, the HTTP
server's in `http`.
"""

from dataclasses import dataclass
from typing import Any, Final

from batchedmodel_contract.outcomes import Outcome, Rejection

_STATUS_OF_REJECTION: Final = {
    Rejection.INVALID: 400,
    Rejection.TOO_LARGE: 413,
    Rejection.QUEUE_FULL: 429,
    Rejection.OVER_SHARE: 429,
    Rejection.DRAINING: 503,
    Rejection.NOT_READY: 503,
    Rejection.EXPIRED: 504,
    Rejection.ABANDONED: 499,
    Rejection.PREDICTED_LATE: 429,
}
RETRY_SOON: Final = 1.0
"""Seconds."""
_GIVEN_UP: Final = {
    Outcome.SHED: "given up: it would not have been answered in time",
    Outcome.EVICTED: "given up: it was late, and the queue was full of others that are not",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamReply:
    """What an upstream server answered beside the rows. It passes to the helper and back."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    """The headers that may pass to whoever shares the answer."""
    content_type: str = "application/json"
    body: bytes = b""
    """The whole body, where one caller gets it as it is."""
    frame: Any = None
    """What the protocol keeps of the answer, such as the model's version."""


class CallError(Exception):
    """A call that ends without an answer of the model."""

    counted_as: Rejection | Outcome | None = None
    """The reason as metrics, logs and a header name it; None for what is no call to the model."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        retry_after: float | None = None,
        field: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message: Final = message
        self.status: Final = status
        self.retry_after: Final = retry_after
        """Seconds after which trying again makes sense; None when it does not."""
        self.field: Final = field
        """The field of the request that is wrong, where it is one."""


class Rejected(CallError):
    """The call was not accepted; nothing was done for it."""

    def __init__(
        self,
        reason: Rejection,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        field: str | None = None,
        rows: int = 1,
    ) -> None:
        """`rows`: how many the call has, as far as they were counted."""
        status = _STATUS_OF_REJECTION[reason] if status is None else status
        super().__init__(message, status=status, retry_after=retry_after, field=field)
        self.reason: Final = reason
        self.counted_as = reason
        self.rows: Final = rows


class TooLate(Rejected):
    """The call's time was over before it was parsed."""

    def __init__(self, seconds: float) -> None:
        super().__init__(Rejection.EXPIRED, f"not understood within {seconds:g} s")


class ModelNotFound(Rejected):
    """The call names a model that is not served here."""

    def __init__(self, message: str) -> None:
        super().__init__(Rejection.INVALID, message, status=404, field="model")


class Unserved(CallError):
    """The call was accepted and could not be answered."""

    counted_as = Outcome.FAILED

    def __init__(
        self,
        message: str,
        *,
        status: int,
        retry_after: float | None = None,
        reply: UpstreamReply | None = None,
        answered: bool = False,
    ) -> None:
        super().__init__(message, status=status, retry_after=retry_after)
        self.reply: Final = reply
        """An upstream server's answer, which the caller gets as it is."""
        self.answered: Final = answered
        """Whether the server is there and refused this request: it may answer others."""


class Fatal(Unserved):
    """The server died twice with this in work, the second time sent by itself."""

    def __init__(self) -> None:
        message = "the model server died twice with this in work; it is not sent again"
        super().__init__(message, status=502, answered=True)


class Lost(Unserved):
    """The server went away while it worked on the call's batch."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=503, retry_after=RETRY_SOON)


class Busy(Unserved):
    """The server did nothing for the call's batch, and asks to be left alone for `seconds`."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 503,
        retry_after: float = RETRY_SOON,
        reply: UpstreamReply | None = None,
        answered: bool = False,
    ) -> None:
        super().__init__(
            message, status=status, retry_after=retry_after, reply=reply, answered=answered
        )
        self.seconds: Final = retry_after


class Expired(CallError):
    """The call was accepted and its time ran out."""

    counted_as = Outcome.EXPIRED

    def __init__(self, seconds: float) -> None:
        super().__init__(f"not answered within {seconds:g} s", status=504)


class GivenUp(CallError):
    """The call was accepted, and then others were served in its place."""

    def __init__(self, outcome: Outcome, seconds: float, *, retry_after: float) -> None:
        """`outcome` is `SHED` or `EVICTED`; `seconds` is the time that the call had."""
        message = f"{_GIVEN_UP[outcome]} (it had {seconds:g} s)"
        super().__init__(message, status=503, retry_after=retry_after)
        self.counted_as = outcome


def refuse_many(rows: int, most: int) -> None:
    """Raise `Rejected` for a call of more than so many rows.

    Asked before the rows are made: each takes memory and time.
    """
    if rows > most:
        raise too_many(rows, most)


def too_many(rows: int, most: int) -> Rejected:
    """The error for a call of more than so many rows."""
    message = f"{rows} rows in one request are more than the queue holds ({most})"
    return Rejected(Rejection.TOO_LARGE, message, rows=rows)


def let_frames_go(error: BaseException) -> None:
    """Take their frames from an error that is answered, and from its causes.

    A frame keeps the body that it worked on, and often the future or task that keeps the error:
    such a cycle would stay until a collection.
    """
    parts = [error]
    for part in parts:
        part.__traceback__ = None
        causes = (part.__cause__, part.__context__)
        parts.extend(cause for cause in causes if cause is not None and cause not in parts)
