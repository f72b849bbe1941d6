"""The two classic levers: a batch leaves when it is full or when its oldest member waited enough.

The window opens when the oldest member arrives, not when somebody looks, and it is a wish: a batch
whose window is over still waits until the server can take it, and grows meanwhile. A full group
passes an older one whose window is still open, and none whose window is over.
"""

from batchedmodel_contract.outcomes import ReleaseReason
from batchedmodel_scheduling.core.policy import Item, Slots
from batchedmodel_scheduling.fifo.queueing import QueueingPolicy


class Window(QueueingPolicy):
    """Of the groups that are full or whose window is over, release the one with the oldest head."""

    def _due_at(self, head: Item) -> float:
        return head.arrived + self.settings.max_wait_seconds

    def _reason(self, slots: Slots) -> ReleaseReason:
        return ReleaseReason.DELAY
