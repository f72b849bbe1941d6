"""Triton Inference Server's dynamic batcher.

One queue, first in first out within strict priority levels that never age: a batch takes the
highest level first and is filled up from those below. It leaves at the largest preferred size that
can be formed, at once when the delay is 0 (the default), otherwise with all that waits, at most
the maximum, when the oldest member of the batch has waited for the delay or when the batch has
reached the largest preferred size. When the delay is over, preferred sizes no longer count.
Without preferred sizes the maximum is the only one. Lengths are not looked at.

Source: `GetDynamicBatch` in dynamic_batch_scheduler.cc and `PriorityQueue` in scheduler_utils.cc
of the repository triton-inference-server/core, and the server's batcher guide. Generous: with
`reject_expired` every request brings its own time-out, which is off unless a model's queue policy
allows it; a batch grows until the model instance takes it.
"""

from collections import OrderedDict
from itertools import chain, islice

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import ReleaseReason
from batchedmodel_scheduling.batching.decisions import Decision
from batchedmodel_scheduling.queue.items import Item, ItemId, Priority, Refusal, Shed
from rival_policies.rival import Rival, alike


class Triton(Rival):
    """The settings give the delay (`max_wait_seconds`) and the maximum batch size."""

    def __init__(
        self,
        settings: BatchSettings,
        *,
        preferred: tuple[int, ...] = (),
        reject_expired: bool = False,
    ) -> None:
        """Preferred sizes in rows, in any order; those above the maximum are left out."""
        super().__init__(settings)
        self._preferred = preferred
        self._reject_expired = reject_expired
        self._levels: dict[Priority, OrderedDict[ItemId, Item]] = {
            level: OrderedDict() for level in sorted(Priority)
        }

    def offer(self, item: Item, now: float) -> Refusal | None:
        """Append the item to its priority level."""
        refusal = super().offer(item, now)
        if refusal is None:
            self._levels[item.priority][item.id] = item
        return refusal

    def _decide(self, now: float) -> Decision:
        items, shed = self._pending(now)
        if not items:
            return self._hold(now, shed=shed)
        cap, delay = self.settings.max_batch_size, self.settings.max_wait_seconds
        sizes = [size for size in self._preferred if size <= cap] or [cap]
        oldest = min(item.arrived for item in items)
        is_over = delay > 0 and oldest + delay <= now
        reason = ReleaseReason.DELAY if is_over else ReleaseReason.IDLE
        fitting = [size for size in sizes if size <= len(items)]
        if fitting and not is_over:
            items = items[: max(fitting)]
        elif delay > 0 and not is_over and len(items) < max(sizes) and not self._is_cut(items):
            return self._hold(oldest + delay, shed=shed)
        items.sort(key=lambda item: (item.arrived, item.id))
        return self._release(items, reason, now, shed)

    def _pending(self, now: float) -> tuple[list[Item], tuple[Shed, ...]]:
        """What a batch would take now, by level, and the expired that were met."""
        shed: tuple[Shed, ...] = ()
        while True:
            queue = chain.from_iterable(level.values() for level in self._levels.values())
            items = alike(islice(queue, self.settings.max_batch_size))
            late = self._give_up_expired(items, now) if self._reject_expired else ()
            if not late:
                return items, shed
            shed += late

    def _is_cut(self, items: list[Item]) -> bool:
        """Whether the batch can grow no more because another key comes next."""
        return len(items) < min(len(self.waiting), self.settings.max_batch_size)

    def _forget(self, item: Item) -> None:
        super()._forget(item)
        del self._levels[item.priority][item.id]
