"""Whatever waits when the model is free.

The default of Triton, TEI and TGI: a lone request on an idle model never waits, and under load the
batch grows by itself while the one before it runs.
"""

from batchedmodel_contract.outcomes import HoldReason, ReleaseReason
from batchedmodel_scheduling.policy import Slots
from batchedmodel_scheduling.queueing import Hold, Leave, QueueingPolicy


class Greedy(QueueingPolicy):
    """Release the group whose head is oldest as soon as the server wants a batch."""

    def _choose(self, now: float, slots: Slots, opens_at: float) -> Leave | Hold:
        if slots.in_flight < slots.depth and (full := self._full()) is not None:
            return Leave(group=full, reason=ReleaseReason.FULL)
        if opens_at > now:
            return Hold(until=opens_at, reason=HoldReason.BUSY)
        idle = slots.in_flight == 0
        reason = ReleaseReason.IDLE if idle else ReleaseReason.JUST_IN_TIME
        return Leave(group=self._oldest()[0], reason=reason)
