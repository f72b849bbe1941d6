"""Announced groups: callers that said how many items they are about to send.

It is worth waiting for the rest of such a group, within the bounds of any wait; when its last
member is here there is nothing more to wait for. Owned by `Deadline`.

A batch is held for a group as long as members follow each other closely. Until that group is
complete, and for a second at most, no batch of the same key is held for another. So a caller that
announces what never comes costs others of its key one short wait a second.
"""

from collections.abc import Hashable, Iterable
from typing import Final, NamedTuple

from batchedmodel_scheduling.core.policy import Item, RequestGroup
from batchedmodel_scheduling.deadline.ready_queue import QueuedItem

PATIENCE_SECONDS: Final = 0.005
"""How long a batch is held from one member of a group to the next."""
CREDIT_SECONDS: Final = 1.0
"""How long no other group of its key is waited for while one stays incomplete."""
_REMEMBERED: Final = 4096  # groups, and keys; callers choose both, so they must not fill the memory


class _Came(NamedTuple):
    members: int
    size: int
    """The largest that a member announced: a smaller one does not complete the group."""
    last: float
    """When the newest member arrived."""


class _Credit(NamedTuple):
    group: Hashable
    until: float


class RequestGroups:
    """How many members of each group have come. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, _Came] = {}
        self._begun: set[Hashable] = set()
        self._credits: dict[Hashable, _Credit] = {}
        """By key, the group that a batch was held for and that is not complete yet."""

    def observe(self, item: Item) -> None:
        """An item came, which may be a member of a group."""
        announced = item.request_group
        if announced is None:
            return
        before = self._seen.pop(announced.id, None)
        seen = 1 if before is None else before.members + 1
        size = announced.size if before is None else max(before.size, announced.size)
        if seen >= size:
            self._begun.discard(announced.id)
            credit = self._credits.get(item.key)
            if credit is not None and credit.group == announced.id:
                del self._credits[item.key]
            return
        self._seen[announced.id] = _Came(seen, size, item.arrived)
        if len(self._seen) > _REMEMBERED:
            oldest = next(iter(self._seen))
            del self._seen[oldest]
            self._begun.discard(oldest)

    def complete(self, entries: Iterable[QueuedItem]) -> bool:
        """Whether some of these are members of groups, and all their groups are complete."""
        groups = [
            entry.item.request_group for entry in entries if entry.item.request_group is not None
        ]
        return bool(groups) and not any(self._lacks(group) for group in groups)

    def awaited(self, entries: Iterable[QueuedItem], now: float) -> float | None:
        """Until when to hold these for the rest of one of their groups; None when not to."""
        if not self._seen:
            return None
        for item in (entry.item for entry in entries):
            if item.request_group is None or not self._lacks(item.request_group):
                continue
            until = self._seen[item.request_group.id].last + PATIENCE_SECONDS
            if until > now and self._has_credit(item.key, item.request_group.id, now):
                return until
        return None

    def left(self, items: Iterable[Item]) -> None:
        """These left: the rest of their groups is not waited for any more."""
        if self._seen:
            for item in items:
                group = item.request_group
                if group is not None and group.id in self._seen:
                    self._begun.add(group.id)

    def _lacks(self, group: RequestGroup) -> bool:
        """Whether members are still to come that are worth waiting for."""
        return group.id in self._seen and group.id not in self._begun

    def _has_credit(self, key: Hashable, group: Hashable, now: float) -> bool:
        """Whether this group may be waited for, as no other one of its key is just now."""
        credit = self._credits.get(key)
        if credit is not None and credit.until > now:
            return credit.group == group
        self._credits.pop(key, None)
        if len(self._credits) >= _REMEMBERED:
            del self._credits[next(iter(self._credits))]
        self._credits[key] = _Credit(group, now + CREDIT_SECONDS)
        return True
