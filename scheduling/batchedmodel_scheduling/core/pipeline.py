"""When the server behind can take the next batch.

A native server takes a second batch while the first runs. At once would be too early: the batch
could still grow. When the first ends would be too late: the device would be idle for the way there.
So a batch leaves just in time: at the predicted end, less the hand-off that was learnt.

An upstream server may have several workers. A batch has one for itself, and the next batch begins
where a worker is free first. What is learnt is how long a batch takes beside the others, so workers
that slow each other down need no model of their own.
"""

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

from batchedmodel_contract.outcomes import ReleaseReason
from batchedmodel_scheduling.core.policy import (
    NEVER,
    Batch,
    BatchId,
    Finished,
    HandedOver,
    Item,
    Slots,
)
from batchedmodel_scheduling.latency.batch_times import BatchTimes
from batchedmodel_scheduling.lora.slots import AdapterSlots

_HAND_OFF_WEIGHT: Final = 0.1
_FIRST_HAND_OFF: Final = 0.001  # seconds; what a local socket and two event loops take at most
_HAND_OFF_STEP: Final = 0.0005  # seconds, so that a hand-off of nothing can grow
_LAG_WEIGHT: Final = 0.05
_LONGEST_GUARD: Final = 0.005  # seconds; a timer that is later was held up by something else
_REMEMBERED_BATCHES: Final = 32
_STALE_SECONDS: Final = 1.0


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
        self._freed = -NEVER
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
        taken = [max(soonest, end) for end in sorted(ends)[-self.workers :] if end < NEVER]
        return [soonest] * (self.workers - len(taken)) + taken

    def _free_at(self) -> float:
        """When the first worker is free of what was handed over; `NEVER` if nobody can tell."""
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
        return not self._handed and now - self._freed >= _STALE_SECONDS

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
        seconds = sum(taken for _, taken in self._served)
        served = sum(count for count, _ in self._served)
        return rows * seconds / served / self.workers if served and seconds > 0 else None

    def _begin(self, handed: _Handed, now: float) -> None:
        others = [other.ends for other in self._handed.values() if other.ends < NEVER]
        predicted = self.times.predict(handed.lengths)
        handed.at = handed.since = now
        if predicted is not None:
            handed.ends = self._free_after(others, now)[0] + predicted

    def _finish(self, handed: _Handed, event: Finished, now: float) -> None:
        self._freed = now
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
