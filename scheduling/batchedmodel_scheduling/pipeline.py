"""When the server behind can take the next batch.

A server of ours takes a second batch while the first runs. Handing it over at once would commit a
small batch early; handing it over when the first ends would leave the device idle for the way
there. So it leaves just in time: at the predicted end, less the hand-off that was learnt.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

from batchedmodel_contract.outcomes import ReleaseReason
from batchedmodel_scheduling.batch_times import BatchTimes
from batchedmodel_scheduling.policy import (
    NEVER,
    Batch,
    BatchId,
    Finished,
    HandedOver,
    Item,
    Slots,
)

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
    at: float = NEVER
    ends: float = NEVER
    trial: bool = False


class Pipeline:
    """Follows released batches and predicts when the device is free."""

    def __init__(self, times: BatchTimes, ids: Iterator[int] | None = None) -> None:
        """`ids` numbers the batches; a successor continues its predecessor's, so none repeats."""
        self.ids: Final = count(1) if ids is None else ids
        self.times: Final = times
        self._handed: dict[BatchId, _Handed] = {}
        self._hand_off = _FIRST_HAND_OFF
        self._lag = 0.0
        self._lag_spread = 0.0
        self._guard = 0.0
        self._freed = -NEVER
        self.doubted = False
        """Something waits that should be refused for what is believed: its batch is a trial."""
        self._served: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED_BATCHES)

    def opens_at(self, slots: Slots, now: float) -> float:
        """When the next batch should leave: now, just before the running one ends, or `NEVER`."""
        if slots.in_flight >= slots.depth:
            return NEVER
        if slots.in_flight == 0:
            return now
        return max(now, self._free_at() - self._hand_off - self._guard)

    @property
    def hand_off(self) -> float:
        """Seconds between the release of a batch and its beginning, and back again."""
        return self._hand_off

    def starts_at(self, now: float) -> float:
        """When the device would begin a batch that left now."""
        ends = self._free_at() if self._handed else now
        return max(now + self._hand_off, ends if ends < NEVER else now)

    def _free_at(self) -> float:
        return max((handed.ends for handed in self._handed.values()), default=NEVER)

    def unsure_by(self) -> float:
        """Standard deviation of the time at which the device will be free, seconds."""
        predicted = (self.times.predict(handed.lengths) for handed in self._handed.values())
        return self.times.spread * max((seconds or 0.0 for seconds in predicted), default=0.0)

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
        self._handed[batch.id] = _Handed(lengths=lengths, trial=self.doubted)
        self.doubted = False
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

    def drain_seconds(self, rows: int) -> float | None:
        """How long the device will need for these rows at its recent rate; None if unknown."""
        seconds = sum(taken for _, taken in self._served)
        served = sum(count for count, _ in self._served)
        return rows * seconds / served if served and seconds > 0 else None

    def _begin(self, handed: _Handed, now: float) -> None:
        others = [other.ends for other in self._handed.values() if other.ends < NEVER]
        predicted = self.times.predict(handed.lengths)
        handed.at = now
        if predicted is not None:
            handed.ends = max([now + self._hand_off, *others]) + predicted

    def _finish(self, handed: _Handed, event: Finished, now: float) -> None:
        busy_since = max(handed.at, self._freed)
        self._freed = now
        if event.compute_seconds is None or handed.at == NEVER:
            return
        self.times.observe(handed.lengths, event.compute_seconds, trial=handed.trial)
        self._served.append((len(handed.lengths), now - busy_since))
        on_the_way = now - handed.at - event.compute_seconds - event.queue_seconds
        # One that was held up by something else says little: it counts as twice the usual.
        at_most = 2 * self._hand_off + _HAND_OFF_STEP
        self._hand_off += _HAND_OFF_WEIGHT * (min(at_most, max(0.0, on_the_way)) - self._hand_off)
        # What runs next began when this one ended, whatever was predicted before.
        for other in self._handed.values():
            predicted = self.times.predict(other.lengths)
            if other.at < NEVER and predicted is not None:
                other.ends = now + predicted
