"""Nexus: early drop with a sliding window of the expected batch size.

When the device is free, the earliest deadlines are tried with a batch of the size that the
scheduler assigned, or of all that waits if that is less. Heads that would be late in such a batch
are dropped, which slides the window on; the expectation shrinks only when too few are left behind.
So the batch stays large under overload, at the price of the oldest.

Source: the paper (SOSP 2019) and `GetBatchTask` in src/nexus/backend/model_exec.cpp of
uwsampl/nexus; the assigned size is the largest of which two in a row fit the target. Generous: the
time of a batch is exact and that of its very members, where Nexus profiles one input shape; no
other model shares the device; no time for preprocessing is set aside.
"""

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import ReleaseReason
from batchedmodel_scheduling.batching.decisions import Decision
from batchedmodel_scheduling.queue.items import Shed
from rival_policies.rival import Rival, Seconds, alike


class Nexus(Rival):
    """The settings give the greatest batch size that may be assigned."""

    def __init__(
        self, settings: BatchSettings, seconds: Seconds, *, target: float, length: int = 1
    ) -> None:
        """Assign the size for this target in seconds and for items of this length."""
        super().__init__(settings)
        self._seconds = seconds
        self._target = target
        self._length = length
        self._assigned = self._assign()

    def configure(self, settings: BatchSettings, now: float) -> None:
        """Assign the size anew."""
        super().configure(settings, now)
        self._assigned = self._assign()

    def _decide(self, now: float) -> Decision:
        queue = sorted(self.waiting.values(), key=lambda item: item.due)
        shed: list[Shed] = []
        while queue[len(shed) :]:
            items = alike(queue[len(shed) : len(shed) + self._assigned])
            if now + self._seconds([item.length for item in items]) <= items[0].due:
                items.sort(key=lambda item: (item.arrived, item.id))
                return self._release(items, ReleaseReason.IDLE, now, tuple(shed))
            shed.append(self._give_up(items[0], now))
        return self._hold(now, shed=tuple(shed))

    def _assign(self) -> int:
        sizes = range(1, self.settings.max_batch_size + 1)
        fitting = [n for n in sizes if 2 * self._seconds([self._length] * n) <= self._target]
        return max(fitting, default=1)
