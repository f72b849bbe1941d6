"""What batches cost their tenants: estimated when a batch leaves, corrected when it ends.

Work is in seconds of the device where all of it was measured, and in full batches otherwise.
Corrections count only while tenants have turns.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_scheduling.batching.decisions import Batch, BatchId
from batchedmodel_scheduling.latency.batch_times import BatchTimes
from batchedmodel_scheduling.queue.item_queue import ItemQueue
from batchedmodel_scheduling.queue.items import Item

_FORGOTTEN: Final = 1 + 1 / 256
"""By which the cheapest unit of work grows with each batch, as the device may have changed."""
_MOST_UNLEARNT: Final = 16.0
"""Full batches that one batch costs at most, unless such items are known to take more. A tenant
that paid for a stall of seconds would wait for seconds beside a flood."""
_LEAST_SECONDS: Final = 1e-6
"""Of an item; where nothing is learnt all items pay alike."""


class Charges:
    """Charges tenants of one queue for one device."""

    def __init__(self, times: BatchTimes, queue: ItemQueue) -> None:
        self.full_batch = 1
        """Items."""
        self._times: Final = times
        self._queue: Final = queue
        self._batches: Final[set[BatchId]] = set()
        """Batches that left while tenants had turns, and have not ended."""
        self._unit_seconds = math.inf
        """What a unit of work takes in the cheapest batches, on a device that was not measured."""
        self._last_drop: tuple[Collection[str], int] = (), 0
        """The tenants of a batch that was dropped and that the server may still compute beside the
        next one, and its length."""

    def work(self, length: int) -> float:
        """What an item of this length costs: its share of a full batch."""
        rows = self.full_batch
        share = self._times.share(length, rows)
        return 1 / rows if share is None else share

    def batch_work(self, lengths: Sequence[int]) -> float:
        """What a batch of items of these lengths costs."""
        seconds = self._times.paid(lengths)
        work = None if seconds is None else self._work_in(seconds, max(lengths))
        return len(lengths) / self.full_batch if work is None else work

    def left(self, batch: Batch) -> None:
        """A batch left, whose items have been paid for one by one.

        The tenant of the costliest item pays for padding. All pay for what no item could fill.
        """
        if not self._queue.has_turns:
            return
        self._batches.add(batch.id)
        items, lengths = batch.items, [item.length for item in batch.items]
        prices = [self.work(length) for length in lengths]
        price = sum(prices)
        if self._times.rule is CostRule.PADDED:
            whole = len(prices) * max(prices)
            costliest = items[prices.index(max(prices))]
            self._queue.charge(costliest.share.tenant, whole - price)
            price = whole
        self._charge([item.share.tenant for item in items], self.batch_work(lengths) - price)

    def left_again(self, batch: Batch) -> None:
        """A batch left whose items had their turns before: their tenants pay once more."""
        lengths = [item.length for item in batch.items]
        self._charge([item.share.tenant for item in batch.items], self.batch_work(lengths))

    def served(self, batch: Batch, seconds: float | None) -> None:
        """All items of a batch were answered, by one pass of so many seconds; None: by several.

        The profile's times are taken for true. Without one a price says nothing of an item's size:
        who makes a batch longer than a full one of the cheapest items pays for that.
        """
        has_paid = self._ended(batch)
        if not seconds or self._times.counts_seconds:
            return
        lengths = [item.length for item in batch.items]
        paid = self.batch_work(lengths)
        self._unit_seconds = min(seconds / paid, self._unit_seconds * _FORGOTTEN)
        # A server may stall once beside any items; only a stall that comes again is learnt.
        prediction = self._times.predict(lengths) or 0.0
        most = max(_MOST_UNLEARNT, 2 * prediction / self._unit_seconds)
        beyond = min(seconds / self._unit_seconds, most) - max(1.0, paid)
        (tenants, length), self._last_drop = self._last_drop, ((), 0)
        part = length / (length + sum(lengths))
        self._charge(tenants, beyond * part)
        if has_paid:
            self._divide(batch.items, beyond * (1 - part))

    def refused(self, batch: Batch, items: Sequence[Item], seconds: float, *, lost: bool) -> None:
        """These items of a batch have no answer, after so many seconds: they pay for all of it.

        `lost`: the server hung or died. The reason is unknown: at most a full batch is charged.
        """
        self._ended(batch)
        lengths = [item.length for item in batch.items]
        work = self._work_in(seconds, max(lengths))
        if work is None:
            work = min(_MOST_UNLEARNT, seconds / self._unit_seconds)
        if lost:
            work = min(work, self.work(max(lengths)) * self.full_batch)
        self._charge([item.share.tenant for item in items], work - self.batch_work(lengths))

    def dropped(self, batch: Batch, seconds: float) -> None:
        """No caller wants a batch any more, after so many seconds."""
        self._ended(batch)
        if self._times.counts_seconds:
            return
        lengths = [item.length for item in batch.items]
        tenants = {item.share.tenant for item in batch.items}
        self._last_drop = tenants, sum(lengths)
        work = min(_MOST_UNLEARNT, seconds / self._unit_seconds)
        self._charge(list(tenants), work - self.batch_work(lengths))

    def _ended(self, batch: Batch) -> bool:
        """Whether its tenants paid for it when it left."""
        has_paid = batch.id in self._batches
        self._batches.discard(batch.id)
        return has_paid

    def _work_in(self, seconds: float, longest: int) -> float | None:
        """The work that so much time of the device is; None while nothing is known.

        `longest`: the length of the longest item that it was for.
        """
        if self._times.counts_seconds:
            return seconds
        rows = self.full_batch
        full = self._times.table(longest, rows)[rows] * self._times.drift.scale
        return seconds / full if full else None

    def _divide(self, items: Sequence[Item], work: float) -> None:
        """The tenants of a batch pay for work that its items have not paid.

        A tenant's part is how much sooner the batch would have ended without its items, by what has
        been learnt; equal items pay alike.
        """
        if work <= 0:
            return
        tenants = Counter([item.share.tenant for item in items])
        parts: dict[str, float] = dict(tenants)
        lengths = [item.length for item in items]
        if len(tenants) > 1 and len(set(lengths)) > 1:
            together = self._times.predict(lengths) or 0.0
            for tenant, count in tenants.items():
                others = [item.length for item in items if item.share.tenant != tenant]
                without = self._times.predict(others) or 0.0
                parts[tenant] = max(together - without, _LEAST_SECONDS * count)
        whole = sum(parts.values())
        for tenant, part in parts.items():
            self._queue.charge(tenant, work * part / whole)

    def _charge(self, tenants: Collection[str], work: float) -> None:
        """The tenants pay equal parts of the work."""
        if work > 0:
            for tenant in tenants:
                self._queue.charge(tenant, work / len(tenants))
