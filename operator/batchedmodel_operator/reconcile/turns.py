"""How many models roll at the same time for what concerns many of them, and when none may. Pure.

What a model's status says is enough to know where it stands, so that another operator goes on.
"""

from collections.abc import Iterable
from typing import Final, Generic, NamedTuple, TypeVar

from batchedmodel_operator.conditions.findings import Reason
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.observed.pod_failures import PodFailureReason, Stage
from batchedmodel_operator.observed.state import condition
from batchedmodel_operator.rollout import Cause, Record

Name = TypeVar("Name")
_NOT_READ: Final = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.INVALID_OBJECT,
        Reason.CLASS_NOT_FOUND,
        Reason.DEFINITION_CHANGED,
    }
)
"""Why a manifest is not carried out. What was begun before is not judged any more."""
_QUOTA: Final = frozenset({PodFailureReason.QUOTA_EXCEEDED})
_ITS_NAMESPACES: Final = {
    Cause.UPGRADE: _QUOTA | {PodFailureReason.MISSING_SERVICE_ACCOUNT},
    # A class may name a service account.
    Cause.CLASS: _QUOTA,
}
"""Why the API server takes no pod, where that is the matter of one namespace."""
_NO_DEPLOYMENT: Final = {
    Cause.UPGRADE: frozenset(
        {
            PodFailureReason.INVALID_POD_TEMPLATE,
            *(Reason.FORBIDDEN, Reason.QUOTA_EXCEEDED, Reason.NAME_CONFLICT),
        }
    ),
    Cause.CLASS: _QUOTA,
}
"""Why it takes no Deployment, so that nothing has begun."""
_NOT_ABOUT_ROOM: Final = (
    frozenset(one for one in PodFailureReason if one.stage is Stage.REFUSED) - _QUOTA
)
"""Refusals that no room would mend."""


class Standing(NamedTuple):
    """Where a model stands with an upgrade, or an edit of its class."""

    rolls: bool
    """It has a place: not all of its pods are there yet, and some are let in."""
    failed: bool
    """Its pods were taken back, or it is degraded since."""


SETTLED: Final = Standing(rolls=False, failed=False)


def standing(status: Body) -> Standing:
    """As a BatchedModel's status has it."""
    record = Record.of(status)
    stuck = condition(status, "Reconciled").get("reason") in _NOT_READ
    if record.cause is Cause.EDIT or stuck:
        return SETTLED
    is_back = record.fault is not None
    # What lacks a node or a device says nothing of what it was replaced by.
    capacity = condition(status, "CapacityAvailable")
    lacks_room = capacity.get("status") == "False" and capacity.get("reason") not in _NOT_ABOUT_ROOM
    degraded = condition(status, "Degraded").get("status") == "True"
    may_roll = record.target != record.good and status.get("desiredReplicas") != 0
    rolls = may_roll and not is_back and not _is_kept_out(status, record.cause, degraded=degraded)
    return Standing(rolls=rolls, failed=is_back or (degraded and not lacks_room))


def _is_kept_out(status: Body, cause: Cause, *, degraded: bool) -> bool:
    """Whether its namespace lets none of the new pods in, so that a place is of no use to it.

    Where one came or an old one went the place is kept: how that ends says something of the images.
    """
    if _why(status, "Reconciled") in _NO_DEPLOYMENT[cause]:
        return not degraded
    none_came = condition(status, "ModelLoaded").get("reason") == Reason.NO_PODS
    let_in = _why(status, "CapacityAvailable") not in _ITS_NAMESPACES[cause]
    return none_came and not degraded and not let_in


def _why(status: Body, kind: str) -> object:
    """The reason of a condition that is False."""
    found = condition(status, kind)
    return found.get("reason") if found.get("status") == "False" else None


class Turns(Generic[Name]):
    """Who rolls and who waits. Whoever owns it tells it of each model that it looked at."""

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._known = False
        self._rolling: set[Name] = set()
        self._failed: set[Name] = set()
        self._waiting: set[Name] = set()

    def may_begin(self, name: Name) -> bool:
        """Whether this model may roll now. One that failed may try what is newer still."""
        if not self._known:
            return False
        if name in self._rolling:
            return True
        others_failed = bool(self._failed) and name not in self._failed
        return not others_failed and len(self._rolling) < self._at_most

    def is_failed(self, name: Name) -> bool:
        """Whether all others wait for this one."""
        return name in self._failed

    def seen(self, name: Name, then: Standing) -> None:
        """Where a model stood when it was listed; what a later look found of it comes by `note`."""
        if not self._known:
            self.note(name, then, waits=name in self._waiting)

    def all_known(self) -> tuple[Name, ...]:
        """Every model there was has been told; before, none begins. Returns who is next."""
        self._known = True
        return self._next()

    def note(self, name: Name, now: Standing, *, waits: bool) -> tuple[Name, ...]:
        """Where a model stands. Returns those whose turn may have come by it: look at them."""
        groups = (
            (self._rolling, now.rolls),
            (self._failed, now.failed),
            (self._waiting, waits),
        )
        changed = [(group, there) for group, there in groups if there != (name in group)]
        if not changed:
            return ()
        for group, there in changed:
            (group.add if there else group.discard)(name)
        return tuple(one for one in self._next() if one != name)

    def forget(self, name: Name) -> tuple[Name, ...]:
        """A model that is gone. Returns as `note` does."""
        return self.note(name, SETTLED, waits=False)

    def _next(self) -> tuple[Name, ...]:
        waiting: Iterable[Name] = sorted(self._waiting, key=str)
        free = max(0, self._at_most - len(self._rolling))
        return tuple(one for one in waiting if self.may_begin(one))[:free]
