"""The two classic levers: a batch leaves when it is full or when its oldest member waited enough.

The window opens when the oldest member arrives, not when somebody looks, and it is a wish: a batch
whose window is over still waits until the server can take it, and grows meanwhile.
"""

from batchedmodel_contract.outcomes import HoldReason, ReleaseReason
from batchedmodel_scheduling.policy import Slots
from batchedmodel_scheduling.queueing import Hold, Leave, QueueingPolicy


class Window(QueueingPolicy):
    """Release a full group at once, otherwise the group whose window ended first."""

    def _choose(self, now: float, slots: Slots, opens_at: float) -> Leave | Hold:
        if slots.in_flight < slots.depth and (full := self._full()) is not None:
            return Leave(group=full, reason=ReleaseReason.FULL)
        group, head = self._oldest()
        due = head.arrived + self.settings.max_wait_seconds
        if due > now:
            return Hold(until=max(due, opens_at), reason=HoldReason.GATHERING)
        if opens_at > now:
            return Hold(until=opens_at, reason=HoldReason.BUSY)
        return Leave(group=group, reason=ReleaseReason.DELAY)
