"""How many models roll at the same time for what concerns many of them, and when none may. Pure.

What a model's status says is enough to know where it stands, so that another operator goes on.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Generic, TypeVar

from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.rollout.rollout import Cause, Record

Name = TypeVar("Name")


class Standing(StrEnum):
    """Where a model stands with an upgrade, or an edit of its class."""

    SETTLED = "Settled"
    ROLLING = "Rolling"
    FAILED = "Failed"
    """Its pods were taken back, or it is degraded since."""


def standing(status: Body) -> Standing:
    """As a BatchedModel's status has it."""
    record = Record.of(status)
    if record.cause is Cause.EDIT:
        return Standing.SETTLED
    given = status.get("conditions")
    conditions = given if isinstance(given, list) else []
    if record.fault is not None or {("Degraded", "True")} & {
        (one.get("type"), one.get("status")) for one in conditions if isinstance(one, dict)
    }:
        return Standing.FAILED
    rolls = record.target != record.good and status.get("desiredReplicas") != 0
    return Standing.ROLLING if rolls else Standing.SETTLED


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
        if not self._known or (self._failed and name not in self._failed):
            return False
        return len(self._rolling - {name}) < self._at_most

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
        before = self._room()
        for group, belongs in (
            (self._rolling, now is Standing.ROLLING),
            (self._failed, now is Standing.FAILED),
            (self._waiting, waits),
        ):
            (group.add if belongs else group.discard)(name)
        return self._next() if self._room() != before else ()

    def forget(self, name: Name) -> tuple[Name, ...]:
        """A model that is gone. Returns as `note` does."""
        return self.note(name, Standing.SETTLED, waits=False)

    def _room(self) -> object:
        return len(self._rolling), bool(self._failed), frozenset(self._next())

    def _next(self) -> tuple[Name, ...]:
        waiting: Iterable[Name] = sorted(self._waiting, key=str)
        free = max(0, self._at_most - len(self._rolling))
        return tuple(one for one in waiting if self.may_begin(one))[:free]
