"""What can go wrong between a process and an API server. `client` raises these and nothing else."""

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from batchedmodel_kube.object_text import Unreadable, parsed

ENDINGS: Final = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""What ends a task or the process, and is no failure.

Code that answers somebody or runs for ever catches `BaseException`, since panics of libraries in
other languages are no `Exception`, and lets these pass.
"""
_LONGEST_MESSAGE: Final = 1000
_OF_A_WEBHOOK: Final = 'admission webhook "'
_NOT_PRINTED: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class ClusterError(Exception):
    """A request to the API server did not do what it should."""


class Unreachable(ClusterError):
    """No answer, or one that says: not now. It says nothing about the request itself."""


class TooOld(Unreachable):
    """The API server no longer knows the version to go on from: list anew."""


class Conflict(ClusterError):
    """Somebody else was faster. Read again and decide anew."""


class Gone(ClusterError):
    """The object, its namespace or its kind is not there, or is being taken away."""


class Refused(ClusterError):
    """The API server understood the request and refuses it. Only a person's change helps."""


class Forbidden(Refused):
    """The account lacks the right."""


class QuotaExceeded(Refused):
    """The namespace's quota has no room for it."""


class NameTaken(Refused):
    """Somebody else's object has the name."""


class Invalid(Refused):
    """The object breaks a rule of Kubernetes or of an admission policy."""


def translated(status: int, text: bytes) -> ClusterError:
    """The error behind an answer that is none of success: its HTTP status and its body."""
    answer = _status_object(text)
    details = answer.get("details")
    listed = details.get("causes") if isinstance(details, dict) else None
    causes = [cause for cause in listed or () if isinstance(cause, dict)]
    message = str(answer.get("message") or f"the API server answered {status}")
    if status == 422 and len(causes) > 1:
        message = _in_order(message, causes)
    # It quotes what users wrote, and goes into the log, where each line must be one of ours.
    message = _NOT_PRINTED.sub(" ", message[:_LONGEST_MESSAGE])
    reasons = {cause.get("reason") for cause in causes}
    if message.startswith(_OF_A_WEBHOOK):
        # Whatever status it chose: nothing is gone, and nobody was faster.
        return Invalid(message)
    if status == 404 or "NamespaceTerminating" in reasons:
        return Gone(message)
    if status == 409:
        return Conflict(message)
    if status == 410:
        return TooOld(message)
    if status == 403:
        if "exceeded quota" in message:
            return QuotaExceeded(message)
        # RBAC names the user and the verb. Any other 403 comes from an admission policy, which
        # refuses the object.
        return Forbidden(message) if " cannot " in message else Invalid(message)
    # An API server answers a server-side apply that it cannot parse like a fault of its own.
    if status in (400, 413, 415, 422) or "failed to create typed patch object" in message:
        return Invalid(message)
    if status in (401, 408, 429) or status >= 500:
        return Unreachable(message)
    return Refused(message)


def _in_order(message: str, causes: Iterable[Mapping[str, Any]]) -> str:
    """The same faults, sorted: an API server has them in another order each time.

    The message goes into a status, and a status that changes is written, and looked at again.
    """
    about, _, _ = message.partition(": ")
    faults = sorted(f"{cause.get('field')}: {cause.get('message')}" for cause in causes)
    return f"{about}: {', '.join(faults)}"


def _status_object(text: bytes) -> Mapping[str, Any]:
    try:
        answer = parsed(text)
    except Unreadable:
        return {}
    return answer if isinstance(answer, dict) else {}
