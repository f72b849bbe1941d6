"""That no priority starves: the one that others keep waiting leads a batch from time to time.

Owned by `Deadline`. It counts batches, not seconds: a priority that waits while others are served
is owed a twentieth of a batch for each.
"""

from collections.abc import Mapping, Set
from typing import Final

from batchedmodel_scheduling.core.policy import Priority

_SHARE: Final = 0.05


class StarvationGuard:
    """What each priority is owed."""

    def __init__(self) -> None:
        self._owed: dict[Priority, float] = {}

    def released(self, served: Set[Priority], waiting: Mapping[Priority, int]) -> None:
        """A batch left with items of these priorities; so many of each still wait."""
        for priority in Priority:
            if priority in served or not waiting.get(priority):
                self._owed.pop(priority, None)
            else:
                self._owed[priority] = self._owed.get(priority, 0.0) + _SHARE

    def overdue(self) -> Priority | None:
        """The priority that must lead the next batch, if any."""
        if not self._owed:
            return None
        priority = max(self._owed, key=lambda one: self._owed[one])
        # Twenty times a twentieth is a little less than one.
        return priority if self._owed[priority] > 1 - _SHARE / 2 else None
