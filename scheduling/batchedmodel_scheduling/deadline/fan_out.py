"""Announced groups: callers that said how many items they are about to send.

While such a group is incomplete it is worth waiting for, within the bounds of any wait; when its
last member is here there is nothing more to wait for. Owned by `Deadline`.
"""

from collections.abc import Hashable, Iterable
from typing import Final

from batchedmodel_scheduling.deadline.lanes import Entry
from batchedmodel_scheduling.policy import FanOut, Item

_REMEMBERED: Final = 4096  # groups; callers choose the names, so they must not fill the memory


class FanOuts:
    """How many members of each group have come."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, int] = {}
        self._begun: set[Hashable] = set()

    def observe(self, announced: FanOut) -> None:
        """A member came."""
        seen = self._seen.pop(announced.id, 0) + 1
        if seen >= announced.size:
            self._begun.discard(announced.id)
            return
        self._seen[announced.id] = seen
        if len(self._seen) > _REMEMBERED:
            oldest = next(iter(self._seen))
            del self._seen[oldest]
            self._begun.discard(oldest)

    def incomplete(self, entries: Iterable[Entry]) -> bool:
        """Whether a group of one of these still lacks members that are worth waiting for."""
        if not self._seen:
            return False
        groups = (entry.item.fan_out for entry in entries)
        return any(
            group is not None and group.id in self._seen and group.id not in self._begun
            for group in groups
        )

    def left(self, items: Iterable[Item]) -> None:
        """These left: the rest of their groups goes without them, and is not waited for."""
        if self._seen:
            for item in items:
                group = item.fan_out
                if group is not None and group.id in self._seen:
                    self._begun.add(group.id)
