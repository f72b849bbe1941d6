"""What every policy has: settings, bounds, running averages, and the pipeline to the server.

`Pipeline` says when the server behind can take the next batch. A native server takes a second batch
while the first runs. At once would be too early: the batch could still grow. When the first ends
would be too late: the device would be idle for the way there. So a batch leaves just in time: at
the predicted end, less the hand-off that was learnt.

An upstream server may have several workers. A batch has one for itself, and the next batch begins
where a worker is free first. What is learnt is how long a batch takes beside the others, so workers
that slow each other down need no model of their own.
"""

import math
import sys
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import HoldReason, Outcome, Rejection, ReleaseReason
from batchedmodel_scheduling.batching.charges import Charges
from batchedmodel_scheduling.batching.companions import Turn, companions
from batchedmodel_scheduling.batching.decisions import (
    Batch,
    BatchId,
    Decision,
    Event,
    Finished,
    HandedOver,
    MemoryCap,
    Policy,
    Slots,
    limits,
)
from batchedmodel_scheduling.latency.batch_times import BatchTimes
from batchedmodel_scheduling.lora.slots import AdapterSlots
from batchedmodel_scheduling.queue.item_queue import ItemQueue
from batchedmodel_scheduling.queue.items import NEVER, Item, ItemId, Refusal, Shed
from batchedmodel_scheduling.queue.ready_queue import QueuedItem, ReadyQueue

_WEIGHT: Final = 0.1  # of the newest batch
_HAND_OFF_WEIGHT: Final = 0.1
_FIRST_HAND_OFF: Final = 0.001  # seconds; what a local socket and two event loops take at most
_HAND_OFF_STEP: Final = 0.0005  # seconds, so that a hand-off of nothing can grow
_LAG_WEIGHT: Final = 0.05
_LONGEST_GUARD: Final = 0.005  # seconds; a timer that is later was held up by something else
_REMEMBERED_BATCHES: Final = 32
_STALE_SECONDS: Final = 1.0
_UNKNOWN_SECONDS: Final = 0.05  # of a batch, before any was measured
_RETRY_UNKNOWN: Final = 1.0
# Not as a pair: compiled by mypyc 2.4, a constant pair of numbers reads as one that is not set.
_RETRY_SHORTEST: Final = 0.01
_RETRY_LONGEST: Final = 60.0
_EVICTED: Final = Outcome.EVICTED  # an enum finds its members by Python's code


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """The state of the adaptation; the last four are None without a whole profile or a target."""

    effective_batch_size: float
    """Rows, over the recent batches."""
    effective_wait_seconds: float
    """From a row's arrival to its release, over the recent batches."""
    predicted_lateness_seconds: float
    """By how much a batch's most urgent row was expected to miss its due time when it left."""
    target_feasible: bool | None
    """Whether a row of usual length on an idle server meets the target."""
    sustainable_rate: float | None
    """Rows a second of usual length that one server can answer within the target."""
    sustainable_share: float | None
    """The same as a share of what full batches would answer, above 0 and at most 1; None also for a
    target that not even one row meets."""
    smallest_feasible_target_seconds: float | None
    """What such a row needs on an idle server."""


class Recent:
    """Running averages over the batches that left."""

    def __init__(self) -> None:
        self.batch_size = 0.0
        self.wait = 0.0
        self.lateness = 0.0
        self.length = 1.0
        """Of a row, whatever batch it was in."""
        self._rows = self._tokens = 0.0
        self._has_batch = False

    def observe(self, items: list[Item], now: float, ends: float) -> None:
        """A batch leaves; it is expected to end at `ends`."""
        count = len(items)
        arrived, length, due = 0.0, 0.0, math.inf
        for item in items:
            arrived += item.arrived
            length += item.length
            due = min(due, item.due)
        wait, late = now - arrived / count, max(0.0, ends - due)
        part = _WEIGHT if self._has_batch else 1.0
        self._has_batch = True
        self.batch_size += part * (count - self.batch_size)
        self.wait += part * (wait - self.wait)
        self.lateness += part * (late - self.lateness)
        self._rows += part * (count - self._rows)
        self._tokens += part * (length - self._tokens)
        self.length = self._tokens / self._rows


def signals(recent: Recent, times: BatchTimes, hand_off: float, settings: BatchSettings) -> Signals:
    """Averages of what was done, and what the device allows."""
    feasible, rate, share, smallest = None, None, None, None
    if times.counts_seconds:
        table = times.upper_table(max(1, round(recent.length)), settings.max_batch_size)
        smallest = hand_off + table[1]
        target = settings.target_seconds
        feasible = None if target is None else smallest <= target
        rate = sustainable_rate(table, target)
        full = settings.max_batch_size / table[settings.max_batch_size]
        share = min(1.0, rate / full) if rate else None
    return Signals(
        effective_batch_size=recent.batch_size,
        effective_wait_seconds=recent.wait,
        predicted_lateness_seconds=recent.lateness,
        target_feasible=feasible,
        sustainable_rate=rate,
        sustainable_share=share,
        smallest_feasible_target_seconds=smallest,
    )


def sustainable_rate(table: list[float], target: float | None) -> float:
    """Rows a second in time, by seconds per batch size from 0 on; 0 if not even one is.

    An item that comes just after a batch has left waits for that batch and then for its own: twice
    the time of a batch must fit into the target.
    """
    longest = math.inf if target is None else target / 2
    rates = [rows / table[rows] for rows in range(1, len(table)) if table[rows] <= longest]
    return max(rates, default=0.0)


@dataclass(slots=True, kw_only=True)
class _Handed:
    """A batch that was released; `ends` is the predicted end of its forward pass."""

    lengths: list[int]
    workers: int
    """How many batches ran side by side when it was released. Behind that many others it waits for
    a worker, behind fewer it runs."""
    at: float = NEVER
    since: float = NEVER
    """From when on its worker had no other batch."""
    ends: float = NEVER
    trial: bool = False


class Pipeline:
    """Follows released batches and predicts when a worker is free."""

    def __init__(
        self, times: BatchTimes, ids: Iterator[int] | None = None, *, adapter_slots: int = 0
    ) -> None:
        """`ids` numbers the batches; a successor continues its predecessor's, so none repeats.

        `adapter_slots`: of the server; 0 where it has no adapters.
        """
        self.adapters: Final = AdapterSlots(adapter_slots)
        """What the server has in its slots once all batches that were released have run."""
        self.ids: Final = count(1) if ids is None else ids
        self.times: Final = times
        self.most_workers = 1
        """Batches that the server runs side by side, as its owner says."""
        self._depth = sys.maxsize
        """Batches that it could hold when it could hold any."""
        self._handed: dict[BatchId, _Handed] = {}
        self.hand_off = _FIRST_HAND_OFF
        """Seconds between the release of a batch and its beginning, and back again."""
        self._lag = 0.0
        self._lag_spread = 0.0
        self._guard = 0.0
        self._free_since = -NEVER
        self.doubted = False
        """An item waits that was predicted to be late: its batch is a trial of the prediction."""
        self._served: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED_BATCHES)

    @property
    def workers(self) -> int:
        """Batches that run side by side; fewer while the shell lets the server try only some."""
        return min(self.most_workers, self._depth)

    def opens_at(self, slots: Slots, now: float) -> float:
        """When the next batch should leave: now, just before a running one ends, or `NEVER`."""
        if slots.depth:
            self._depth = slots.depth
        if slots.in_flight >= slots.depth:
            return NEVER
        if slots.in_flight < self.workers:
            return now
        return max(now, self._free_at() - self.hand_off - self._guard)

    def starts_at(self, now: float) -> float:
        """When the device would begin a batch that left now."""
        return self.free_from(now)[0]

    def free_from(self, now: float) -> list[float]:
        """When each worker could begin a batch that left now, the first one first."""
        return self._free_after([handed.ends for handed in self._handed.values()], now)

    def _free_after(self, ends: Iterable[float], now: float) -> list[float]:
        soonest = now + self.hand_off
        busy_until = [max(soonest, end) for end in sorted(ends)[-self.workers :] if end < NEVER]
        return [soonest] * (self.workers - len(busy_until)) + busy_until

    def _free_at(self) -> float:
        """When the first worker is free of what was handed over; `NEVER` if unknown."""
        ends = sorted([handed.ends for handed in self._handed.values()])
        return ends[-self.workers] if len(ends) >= self.workers else NEVER

    def unsure_by(self) -> float:
        """Standard deviation of the time at which a worker will be free, seconds."""
        if len(self._handed) < self.workers:
            return 0.0
        predicted = (self.times.predict(handed.lengths) for handed in self._handed.values())
        return self.times.drift.spread * max((seconds or 0.0 for seconds in predicted), default=0.0)

    def unproven(self, now: float) -> bool:
        """Whether nothing has run for so long that what was learnt may no longer be true."""
        return not self._handed and now - self._free_since >= _STALE_SECONDS

    def woken(self, late: float) -> None:
        """A timer rang so many seconds after the time that it was set to."""
        error = max(0.0, min(_LONGEST_GUARD, late)) - self._lag
        self._lag += _LAG_WEIGHT * error
        self._lag_spread += _LAG_WEIGHT * (abs(error) - self._lag_spread)
        self._guard = self._lag + 2 * self._lag_spread

    def release(self, items: list[Item], reason: ReleaseReason) -> Batch:
        """Make a batch of the items and follow it from now on."""
        batch = Batch(id=BatchId(next(self.ids)), items=tuple(items), reason=reason)
        lengths = [item.length for item in items]
        self._handed[batch.id] = _Handed(lengths=lengths, workers=self.workers, trial=self.doubted)
        self.doubted = False
        if self.adapters.slots:
            adapters = {item.adapter for item in items if item.adapter}
            if self.adapters.fits(adapters):
                self.adapters.place(sorted(adapters))
        return batch

    def observe(self, event: HandedOver | Finished, now: float) -> None:
        """Follow a batch on its way; events of unknown batches are ignored."""
        handed = self._handed.get(event.batch)
        if handed is None:
            return
        if isinstance(event, HandedOver):
            self._begin(handed, now)
        else:
            del self._handed[event.batch]
            self._finish(handed, event, now)

    def follows(self, batch: BatchId) -> bool:
        """Whether a batch was released and, as far as is known here, has not ended."""
        return batch in self._handed

    def drain_seconds(self, rows: int) -> float | None:
        """How long all workers will need for these rows at their recent rate; None if unknown."""
        seconds = sum(duration for _, duration in self._served)
        served = sum(count for count, _ in self._served)
        return rows * seconds / served / self.workers if served and seconds > 0 else None

    def _begin(self, handed: _Handed, now: float) -> None:
        others = [other.ends for other in self._handed.values() if other.ends < NEVER]
        predicted = self.times.predict(handed.lengths)
        handed.at = handed.since = now
        if predicted is not None:
            handed.ends = self._free_after(others, now)[0] + predicted

    def _finish(self, handed: _Handed, event: Finished, now: float) -> None:
        self._free_since = now
        ahead: list[_Handed] = []
        behind: list[_Handed] = []
        for place, other in enumerate(self._handed.values(), start=1):
            (behind if place >= other.workers else ahead).append(other)
        if behind:
            # It waited for this worker and begins now, whatever was predicted.
            behind[0].since = now
        if event.compute_seconds is None or handed.at == NEVER:
            return
        self.times.observe(handed.lengths, event.compute_seconds, trial=handed.trial)
        self._served.append((len(handed.lengths), now - handed.since))
        on_the_way = now - handed.at - event.compute_seconds - event.queue_seconds
        # A hand-off that something else held up says little: it counts as twice the usual.
        at_most = 2 * self.hand_off + _HAND_OFF_STEP
        self.hand_off += _HAND_OFF_WEIGHT * (min(at_most, max(0.0, on_the_way)) - self.hand_off)
        self._foretell(behind, [other.ends for other in ahead], now)

    def _foretell(self, behind: list[_Handed], ends: list[float], now: float) -> None:
        """When batches will end that run one behind the other, beside others that end then."""
        for other in behind:
            predicted = self.times.predict(other.lengths)
            if other.at < NEVER and predicted is not None:
                before = sorted(ends)[-other.workers :]
                begins = max(now, before[0]) if len(before) == other.workers else now
                other.ends = begins + predicted
                ends.append(other.ends)


def leaves_early(slots: Slots, opens_at: float) -> bool:
    """Whether a full batch may leave though the server begins it later, as far as is known."""
    return slots.in_flight < slots.depth and (not slots.just_in_time or opens_at == NEVER)


class BasePolicy(Policy):
    """A policy of the product: when a batch leaves, and which of the candidates are in it.

    The sidecar asks it for more than `Policy` has.
    """

    def __init__(
        self,
        settings: BatchSettings,
        pipeline: Pipeline,
        queue: ItemQueue,
        *,
        narrow_classes: bool = True,
    ) -> None:
        """`queue` may hold items in the order of another policy."""
        self.pipeline: Final = pipeline
        self.queue: Final = queue
        self.charges: Final = Charges(pipeline.times, queue)
        self.memory = MemoryCap(cost=None)
        self.recent = Recent()
        self._narrow: Final = narrow_classes
        self._offer = 0
        """The number of the queue's offer that is chosen from: beyond 0, those before it wait for
        company."""
        self._use(settings)

    @abstractmethod
    def entry(self, item: Item) -> QueuedItem:
        """The item as it waits."""

    @abstractmethod
    def _choose(
        self, ready: ReadyQueue, now: float, opens: float, slots: Slots, shed: list[Shed]
    ) -> Decision:
        """Release some of the candidates, or hold all of them; `shed` gains what is given up."""

    def offer(self, item: Item, now: float) -> Refusal | None:
        """Take the item, or say why not."""
        return self.offer_call((item,), now)

    def offer_call(self, items: Sequence[Item], now: float) -> Refusal | None:
        """Take all items of a call of one tenant, or say why none."""
        refusal = self.refusal(items[0].share, len(items)) or self._late_in_turn(items, now)
        if refusal is not None:
            return refusal
        for at, item in enumerate(items):
            refusal = self._admit(item, now)
            if refusal is not None:
                for before in items[:at]:
                    self.queue.cancel(before.id)
                return refusal
        return None

    def refusal(self, share: Share, rows: int) -> Refusal | None:
        """Why a call of so many rows is refused whatever it holds: known before it is read."""
        queue = self.queue
        reason = queue.room.refusal(share, rows)
        if reason is None:
            return None
        # A long list makes no room: it would end accepted calls, and be late itself.
        short = rows <= queue.next_items
        if reason is Rejection.QUEUE_FULL and short and queue.late.of(share.tenant) >= rows:
            return None
        return Refusal(reason=reason, retry_after=self.retry_after(queue.room.in_use))

    def withdraw(self, item_id: ItemId, now: float) -> None:
        """Forget a waiting item."""
        self.queue.cancel(item_id)

    def come_back(self, item: Item) -> None:
        """An item that left waits again."""
        self.queue.come_back(self.entry(item))

    def release_again(self, item: Item) -> Batch:
        """An item that left and does not wait in the queue leaves by itself."""
        batch = self.pipeline.release([item], ReleaseReason.IDLE)
        self.charges.left_again(batch)
        return batch

    def poll(self, now: float, slots: Slots) -> Decision:
        """At most one batch to release now. After a release, poll again."""
        queue = self.queue
        queue.wake(now)
        shed: list[Shed] = []
        if queue.evicted:
            shed = [Shed(item, _EVICTED) for item in queue.evicted]
            queue.evicted = []
        opens = self.pipeline.opens_at(slots, now)
        if queue.has_turns and len(queue) and opens > now and not leaves_early(slots, opens):
            return self._hold(opens, HoldReason.BUSY, shed)  # those in turn are looked up then
        decision, wake_at, self._offer = None, NEVER, 0
        while (ready := queue.candidates(self._offer)) is not None:
            decision = self._choose(ready, now, opens, slots, shed)
            wake_at = min(wake_at, decision.wake_at)
            if decision.reason is HoldReason.EMPTY and queue.on_time:
                continue  # all of that offer was given up
            if decision.release is not None or decision.reason is not HoldReason.GATHERING:
                break
            self._offer += 1
            if opens > now:
                break
        assert decision is not None, "there is a first offer"
        if queue.resting.items:
            wake_at = min(wake_at, queue.resting.changes_at())
        if decision.release is None and wake_at < decision.wake_at:
            return replace(decision, wake_at=wake_at)
        return decision

    def observe(self, event: Event, now: float) -> None:
        """Learn what became of a released batch, or what the server holds."""
        if isinstance(event, MemoryCap):
            self.memory = event
            self._use(self.settings, reorder=False)
        else:
            self.pipeline.observe(event, now)

    def configure(self, settings: BatchSettings, now: float) -> None:
        """Use other settings from now on; what waits is ordered by them, or newcomers pass it."""
        self._use(settings)

    def retry_after(self, rows: int | None) -> float:
        """The time to serve so many rows; None for what no time helps."""
        if rows is None:
            return _RETRY_LONGEST
        drain = self.pipeline.drain_seconds(rows)
        delay = _RETRY_UNKNOWN if drain is None else drain
        return min(_RETRY_LONGEST, max(_RETRY_SHORTEST, delay))

    def seconds_of_rows(self, rows: int) -> float:
        """How long so many rows take in full batches, as far as is known."""
        drain = self.pipeline.drain_seconds(rows)
        return _UNKNOWN_SECONDS * rows / self.settings.max_batch_size if drain is None else drain

    def signals(self) -> Signals:
        """What is adapted without being set."""
        return signals(self.recent, self.pipeline.times, self.pipeline.hand_off, self.settings)

    def _use(self, settings: BatchSettings, *, reorder: bool = True) -> None:
        self.settings = settings
        self.pipeline.most_workers = settings.max_concurrent_batches
        self.limits = limits(settings, self.memory, self.pipeline.times.rule)
        self.charges.full_batch = settings.max_batch_size
        if reorder:
            room = self.queue.room
            room.size, room.spare = settings.max_queue_size, settings.spare_rows
            next_items = settings.max_concurrent_batches * settings.max_batch_size
            ready = ReadyQueue(settings.length_buckets, narrow=self._narrow)
            self.queue.order_by(self.entry, self.charges.work, ready, next_items)

    def _hold(self, until: float, reason: HoldReason, shed: list[Shed]) -> Decision:
        return Decision(release=None, shed=tuple(shed), wake_at=until, reason=reason)

    def _late_in_turn(self, items: Sequence[Item], now: float) -> Refusal | None:
        """Why items are no use that come behind others of their tenant."""
        return None

    def _admit(self, item: Item, now: float) -> Refusal | None:
        """Let an item wait, for which there is room."""
        self.queue.push(self.entry(item))
        return None

    def _usual_rows(self) -> int:
        """How many items share a batch if they are as long as those of recent batches."""
        return self.limits.rows_of(round(self.recent.length))

    def _companions(self, waiting: Sequence[Item], rows: int, now: float) -> list[int]:
        """The places of the items that leave together by their adapters; at most so many."""
        lengths = [item.length for item in waiting[:rows]]
        seconds = self.pipeline.times.predict(lengths) or _UNKNOWN_SECONDS
        turn = Turn(rows=rows, now=now, seconds=seconds)
        return companions(waiting, self.pipeline.adapters, turn)

    def _released(
        self,
        batch: Sequence[QueuedItem],
        reason: ReleaseReason,
        now: float,
        late: Sequence[QueuedItem] = (),
    ) -> Batch:
        """Let items leave in a batch, with late ones behind those on time."""
        if self._offer:
            self.queue.pass_over(batch)
        self.queue.leave(batch, late)
        items = [entry.item for entry in chain(batch, late)]
        lengths = [item.length for item in items]
        ends = self.pipeline.starts_at(now) + (self.pipeline.times.predict(lengths) or 0.0)
        self.recent.observe(items, now, ends)
        self.queue.usual_next_items = self.pipeline.most_workers * self._usual_rows()
        released = self.pipeline.release(items, reason)
        self.charges.left(released)
        return released
