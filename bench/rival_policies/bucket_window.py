"""A window for each length bucket: how most hand-made batchers work, and our first design.

Requests are sorted into buckets by length, and each bucket is batched for itself. It may leave
when it is full or when its oldest member has waited for the window; of those that may, the one
with the oldest head leaves first, as soon as the server can take a batch. A window of 0 is greedy.

Source: general practice; TF Serving's shared batch scheduler closes the batches of each queue by
size or time-out. Generous: the window opens with the oldest member's arrival, even while the
server is busy, so that it costs nothing under load (Ray Serve counts from when it begins to wait);
a batch grows until it leaves; the oldest head goes first instead of a round over the buckets.
"""

import bisect
from collections import OrderedDict
from collections.abc import Hashable
from itertools import islice

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import ReleaseReason
from batchedmodel_scheduling.batching.decisions import Decision
from batchedmodel_scheduling.queue.items import NEVER, Item, ItemId, Refusal, Shed
from rival_policies.rival import Rival

_Bucket = OrderedDict[ItemId, Item]


class BucketWindow(Rival):
    """The settings give the window (`max_wait_seconds`), the edges (`length_buckets`), the caps.

    Edges are upper bounds of the buckets; longer items share a last one.
    """

    def __init__(self, settings: BatchSettings, *, drop_expired: bool = False) -> None:
        """Without `drop_expired`, nobody looks at deadlines: what is late is served late."""
        super().__init__(settings)
        self._drop_expired = drop_expired
        self._buckets: dict[tuple[Hashable, int], _Bucket] = {}

    def offer(self, item: Item, now: float) -> Refusal | None:
        """Put the item into its bucket."""
        refusal = super().offer(item, now)
        if refusal is None:
            self._bucket(item)[item.id] = item
        return refusal

    def configure(self, settings: BatchSettings, now: float) -> None:
        """Sort what waits into the new buckets."""
        super().configure(settings, now)
        self._buckets.clear()
        for item in self.waiting.values():
            self._bucket(item)[item.id] = item

    def _decide(self, now: float) -> Decision:
        shed: tuple[Shed, ...] = ()
        while True:
            chosen, opens_at = self._choose(now)
            if chosen is None:
                return self._hold(opens_at, shed=shed)
            items = list(islice(chosen.values(), self.settings.max_batch_size))
            late = self._give_up_expired(items, now) if self._drop_expired else ()
            if not late:
                is_greedy = self.settings.max_wait_seconds == 0
                reason = ReleaseReason.IDLE if is_greedy else ReleaseReason.DELAY
                return self._release(items, reason, now, shed)
            # Without them the bucket may neither be full nor hold the oldest head.
            shed += late

    def _choose(self, now: float) -> tuple[_Bucket | None, float]:
        """The bucket whose turn it is; if there is none, when the first window ends."""
        window, cap = self.settings.max_wait_seconds, self.settings.max_batch_size
        chosen: _Bucket | None = None
        first, opens_at = NEVER, NEVER
        for bucket in self._buckets.values():
            arrived = next(iter(bucket.values())).arrived
            if arrived + window > now and len(bucket) < cap:
                opens_at = min(opens_at, arrived + window)
            elif arrived < first:
                chosen, first = bucket, arrived
        return chosen, opens_at

    def _bucket(self, item: Item) -> _Bucket:
        group = self._group(item)
        bucket = self._buckets.get(group)
        if bucket is None:
            bucket = self._buckets[group] = OrderedDict()
        return bucket

    def _group(self, item: Item) -> tuple[Hashable, int]:
        return item.key, bisect.bisect_left(self.settings.length_buckets, item.length)

    def _forget(self, item: Item) -> None:
        super()._forget(item)
        group = self._group(item)
        bucket = self._buckets[group]
        del bucket[item.id]
        if not bucket:
            del self._buckets[group]
