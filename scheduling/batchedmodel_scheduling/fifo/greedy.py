"""Whatever waits when the model is free.

The default of Triton, TEI and TGI: a lone request on an idle model never waits, and under load the
batch grows by itself while the one before it runs.
"""

from batchedmodel_contract.outcomes import ReleaseReason
from batchedmodel_scheduling.core.policy import Item, Slots
from batchedmodel_scheduling.fifo.queueing import QueueingPolicy


class Greedy(QueueingPolicy):
    """Release the group whose head is oldest as soon as the server wants a batch."""

    def _due_at(self, head: Item) -> float:
        return head.arrived

    def _reason(self, slots: Slots) -> ReleaseReason:
        busy = slots.in_flight >= self.pipeline.workers
        return ReleaseReason.JUST_IN_TIME if busy else ReleaseReason.IDLE
