"""What a condition is: a list of checks, of which the first that has something to say decides.

A check is a function named for what it finds. The form follows cert-manager's policies.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from batchedmodel_operator.conditions.view import View
from batchedmodel_operator.interfaces import Body

_LONGEST_MESSAGE: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check says of a condition."""

    holds: bool | None
    """None: nobody can know yet."""
    reason: str
    message: str


Check: TypeAlias = Callable[[View], Finding | None]
"""None: it has nothing to say, and the next one is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A condition before it is compared with what it was."""

    type: str
    holds: bool | None
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One of a status's conditions."""

    type: str
    checks: tuple[Check, ...]
    """In the order in which they are asked; the last one always answers."""

    def judge(self, view: View) -> Verdict:
        """What the first check that answers says."""
        found = next(finding for check in self.checks if (finding := check(view)) is not None)
        return Verdict(
            type=self.type, holds=found.holds, reason=found.reason, message=found.message
        )


def yes(reason: str, message: str) -> Finding:
    """The condition holds."""
    return Finding(holds=True, reason=reason, message=message)


def no(reason: str, message: str) -> Finding:
    """It does not."""
    return Finding(holds=False, reason=reason, message=message)


def unknown(reason: str, message: str) -> Finding:
    """Nobody can know yet."""
    return Finding(holds=None, reason=reason, message=message)


def listed(
    before: Sequence[Body], verdicts: Sequence[Verdict], *, generation: int, at: str
) -> list[dict[str, Any]]:
    """The list of conditions; a time changes only where a status does."""
    earlier: Mapping[str, Body] = {one.get("type", ""): one for one in before}
    found = []
    for verdict in verdicts:
        status = "Unknown" if verdict.holds is None else str(verdict.holds)
        was = earlier.get(verdict.type, {})
        kept = was.get("status") == status and "lastTransitionTime" in was
        found.append(
            {
                "type": verdict.type,
                "status": status,
                "reason": verdict.reason,
                "message": _shortened(verdict.message),
                "lastTransitionTime": was["lastTransitionTime"] if kept else at,
                "observedGeneration": generation,
            }
        )
    return found


def _shortened(message: str) -> str:
    if len(message) <= _LONGEST_MESSAGE:
        return message
    return f"{message[: _LONGEST_MESSAGE - 3]}..."
