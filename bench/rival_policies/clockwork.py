"""Clockwork, reduced to one model on one device: the batch that still fits the head's deadline.

Batch sizes are powers of two, and the head is the earliest deadline. When the device is free, the
greatest size that the queue fills and that ends before the head's deadline leaves; a head that not
even a batch of one would serve in time is dropped. Shrinking the batch to rescue the head costs
the throughput that the others need: under overload it spirals down.

Source: the paper (OSDI 2020); the sizes are those that its workers compile for. Generous: exact
times, where Clockwork takes the slowest of its last ten runs; nothing is planned ahead, no margin
is kept, and no batch is held back for actions of other models.
"""

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import ReleaseReason
from batchedmodel_scheduling.batching.decisions import Decision
from batchedmodel_scheduling.queue.items import Shed
from rival_policies.rival import Rival, Seconds, alike


class Clockwork(Rival):
    """The settings give the greatest batch size."""

    def __init__(self, settings: BatchSettings, seconds: Seconds) -> None:
        super().__init__(settings)
        self._seconds = seconds

    def _decide(self, now: float) -> Decision:
        queue = sorted(self.waiting.values(), key=lambda item: item.due)
        shed: list[Shed] = []
        for head in queue:
            if now + self._seconds([head.length]) <= head.due:
                break
            shed.append(self._give_up(head, now))
        items = alike(queue[len(shed) : len(shed) + self.settings.max_batch_size])
        size = 1 << (len(items).bit_length() - 1) if items else 0
        while size:
            # One always fits: that was tried with the same figures above.
            if now + self._seconds([item.length for item in items[:size]]) <= items[0].due:
                chosen = sorted(items[:size], key=lambda item: (item.arrived, item.id))
                return self._release(chosen, ReleaseReason.IDLE, now, tuple(shed))
            size //= 2
        return self._hold(now, shed=tuple(shed))
