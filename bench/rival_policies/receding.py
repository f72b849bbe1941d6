"""A plain receding horizon: plan for what waits as if nothing else came, run the first batch.

When the device is free, what would be late alone is given up. The rest becomes batches: padded,
neighbouring length buckets are merged where that takes less time in sum (TurboTransformers, PPoPP
2021); packed, batches are filled in order of due time up to a budget. Batches run by due time;
when one would be late, Moore and Hodgson's rule takes the batch out that takes longest for its
worth, or the oldest members of the late one, whichever are worth less.

Source: general practice; the three rules are the usual answers to the three questions. Generous:
exact times of the very members. No batch waits for company, and no worth is put on later arrivals.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import groupby
from typing import Final, NamedTuple

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import ReleaseReason
from batchedmodel_scheduling.batching.decisions import Decision
from batchedmodel_scheduling.queue.items import Item
from rival_policies.rival import Rival, Seconds, alike

Worth = Callable[[int], float]
"""What it is worth to have a row of this length in time."""


class _Batch(NamedTuple):
    items: list[Item]
    seconds: float
    worth: float

    @property
    def due(self) -> float:
        return self.items[0].due


class Receding(Rival):
    """The settings give the greatest number of rows and, if it is padded, the length buckets."""

    def __init__(
        self,
        settings: BatchSettings,
        seconds: Seconds,
        *,
        target: float,
        worth: Worth,
        padded: bool = True,
    ) -> None:
        """Batches may take half of the target, in seconds, so that two fit into it."""
        super().__init__(settings)
        self._seconds = seconds
        self._longest: Final = target / 2
        self._worth = worth
        self._padded = padded
        self._tables: dict[int, list[float]] = {}

    def configure(self, settings: BatchSettings, now: float) -> None:
        """Use other settings from now on."""
        super().configure(settings, now)
        self._tables.clear()

    def _decide(self, now: float) -> Decision:
        queue = sorted(self.waiting.values(), key=lambda item: item.due)
        late = [item for item in queue if now + self._seconds([item.length]) > item.due]
        shed = tuple([self._give_up(item, now) for item in late])
        hopeful = alike([item for item in queue if item.id in self.waiting])
        if not hopeful:
            return self._hold(now, shed=shed)
        batches = self._merged(hopeful) if self._padded else self._filled(hopeful)
        run = self._in_time([self._batch(items) for items in batches], now)
        chosen = run[0].items if run else hopeful[:1]
        chosen = sorted(chosen, key=lambda item: (item.arrived, item.id))
        return self._release(chosen, ReleaseReason.IDLE, now, shed)

    def _batch(self, items: list[Item]) -> _Batch:
        seconds = self._seconds([item.length for item in items])
        return _Batch(items, seconds, sum([self._worth(item.length) for item in items]))

    def _in_time(self, batches: list[_Batch], now: float) -> list[_Batch]:
        run: list[_Batch] = []
        for batch in sorted(batches, key=lambda one: one.due):
            run.append(batch)
            while run:
                last, begins = run[-1], now + sum([one.seconds for one in run[:-1]])
                if begins + last.seconds <= last.due:
                    break
                worst = max(run, key=lambda one: one.seconds / one.worth)
                dropped = self._heads(last, begins)
                heads = sum([self._worth(item.length) for item in last.items[:dropped]])
                if dropped == len(last.items) or worst.worth < heads:
                    run.remove(worst)
                else:
                    run[-1] = self._batch(last.items[dropped:])
        return run

    def _heads(self, batch: _Batch, begins: float) -> int:
        """How many of the oldest must go so that the rest is in time."""
        items = batch.items
        late = range(len(items))

        def fits(dropped: int) -> bool:
            rest = items[dropped:]
            return begins + self._seconds([item.length for item in rest]) <= rest[0].due

        return bisect_left(late, True, key=fits)

    def _filled(self, items: list[Item]) -> list[list[Item]]:
        """In order of due time, as many as take no longer than a batch may."""
        batches = []
        while items:
            part = items[: self.settings.max_batch_size]
            lengths = [item.length for item in part]
            sizes = range(1, len(part) + 1)
            count = bisect_right(sizes, self._longest, key=lambda n: self._seconds(lengths[:n]))
            batches.append(items[: max(1, count)])
            items = items[max(1, count) :]
        return batches

    def _merged(self, items: list[Item]) -> list[list[Item]]:
        """Runs of neighbouring buckets, shortest first, that take the least time in sum."""
        by_bucket = sorted(items, key=self._bucket)
        buckets = [list(members) for _, members in groupby(by_bucket, self._bucket)]
        least, cut_at = [0.0], [0]
        for end in range(1, len(buckets) + 1):
            table = self._table(max(item.length for item in buckets[end - 1]))
            cap = len(table) - 1
            options = []
            for begin in range(end):
                full, rest = divmod(sum(map(len, buckets[begin:end])), cap)
                options.append((least[begin] + full * table[cap] + table[rest], begin))
            best, cut = min(options)
            least.append(best)
            cut_at.append(cut)
        batches, end = [], len(buckets)
        while end:
            run = [item for bucket in buckets[cut_at[end] : end] for item in bucket]
            cap = len(self._table(max(item.length for item in run))) - 1
            run.sort(key=lambda item: item.due)
            batches += [run[first : first + cap] for first in range(0, len(run), cap)]
            end = cut_at[end]
        return batches

    def _bucket(self, item: Item) -> int:
        return bisect_left(self.settings.length_buckets, item.length)

    def _table(self, longest: int) -> list[float]:
        """Seconds by rows of this length, for as many as a batch may have."""
        table = self._tables.get(longest)
        if table is None:
            sizes = range(1, self.settings.max_batch_size + 1)
            table = [0.0, *(self._seconds([longest] * rows) for rows in sizes)]
            table = table[: max(2, bisect_right(table, self._longest))]
            self._tables[longest] = table
        return table
