"""BentoML's adaptive batching (CORK): a line fitted to past batches, and a wait by what waits cost.

A batch of n is expected to take a*n + b, fitted by least squares to the last 50 batches, anew at
most every 5 s. While more than one waits, the head is dropped if it would be answered after the
limit were all of the queue served now (the whole queue, even above the greatest batch). When the
device is free, n requests wait for one more while n * (time since the last arrival + one tick + a)
is at most 0.95 of the mean wait of past heads. At first it trains: eight batches of one, whose
first two are not kept, then one each of one, two and three.

Source: src/bentoml/_internal/marshal/dispatcher.py of bentoml/BentoML, several versions. Generous:
it wakes when something changes, where BentoML looks once in every tick of 1 ms, also for a device
that became free; it serves the oldest first, where many versions serve the newest; a caller who
left is forgotten; with `known` it has an exact line from the start and neither fits nor trains.
"""

from collections import deque
from typing import Final, NamedTuple

import numpy as np

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import HoldReason, ReleaseReason
from batchedmodel_scheduling.batching.decisions import BatchId, Decision, Event, Finished, Slots
from batchedmodel_scheduling.queue.items import NEVER, Shed
from rival_policies.rival import Rival

_KEPT_BATCHES: Final = 50
_SKIPPED_BATCHES: Final = 2
_REFIT_SECONDS: Final = 5.0
_TICK: Final = 0.001  # seconds
_DECAY: Final = 0.95


class Line(NamedTuple):
    """Seconds of a batch: `per_row * rows + fixed`."""

    per_row: float
    fixed: float

    def seconds(self, rows: int) -> float:
        return self.per_row * rows + self.fixed


class _Sample(NamedTuple):
    rows: int
    seconds: float
    wait: float


class _Phase(NamedTuple):
    """Training: `batches` of `rows`; expired heads are dropped while more than `needed` wait."""

    batches: int
    rows: int
    needed: int


_TRAINING: Final = (_Phase(8, 1, 2), _Phase(1, 1, 6), _Phase(1, 2, 5), _Phase(1, 3, 3))


class Cork(Rival):
    """The settings give the greatest batch size; one limit holds for all requests."""

    def __init__(self, settings: BatchSettings, *, limit: float, known: Line | None = None) -> None:
        """The limit is the greatest latency in seconds from arrival to answer."""
        super().__init__(settings)
        self._limit = limit
        self._known = known
        self.line = known or Line(min(2.0, limit * 2 / 30), min(1.0, limit / 30))
        self._mean_wait = 0.0
        self._samples: deque[_Sample] = deque(maxlen=_KEPT_BATCHES)
        self._to_skip = 0 if known else _SKIPPED_BATCHES
        self._refit_at = -NEVER
        self._training = [] if known else list(_TRAINING)
        self._trained = 0
        self._running: dict[BatchId, tuple[int, float, float]] = {}

    def poll(self, now: float, slots: Slots) -> Decision:
        """Drop heads even while the server is busy."""
        if not self.waiting:
            return self._hold(NEVER)
        is_busy = slots.in_flight >= slots.depth
        if self._training:
            return self._train(self._training[0], now, is_busy)
        shed = self._drop_late(now, is_busy)
        if not is_busy:
            return self._decide(now, shed)
        alone = next(iter(self.waiting.values())) if len(self.waiting) == 1 else None
        until = alone.arrived + self._limit if alone else NEVER
        return self._hold(until, HoldReason.BUSY, shed)

    def observe(self, event: Event, now: float) -> None:
        """Keep how long a batch took from its release on, and how long its head had waited."""
        if not isinstance(event, Finished):
            return
        running = self._running.pop(event.batch, None)
        if running is None or event.compute_seconds is None:
            return
        if self._to_skip:
            self._to_skip -= 1
            return
        rows, began, wait = running
        self._samples.append(_Sample(rows, now - began, wait))
        if now >= self._refit_at:
            self._refit_at = now + _REFIT_SECONDS
            self._refit()

    def _decide(self, now: float, shed: tuple[Shed, ...] = ()) -> Decision:
        rows = len(self.waiting)
        if rows < self.settings.max_batch_size:
            newest = next(reversed(self.waiting.values())).arrived
            patience = self._mean_wait * _DECAY / rows - _TICK - self.line.per_row
            if now < newest + patience:
                return self._hold(newest + patience, shed=shed)
        return self._start(self.settings.max_batch_size, now, shed)

    def _train(self, phase: _Phase, now: float, is_busy: bool) -> Decision:
        shed: list[Shed] = []
        while self.waiting and len(self.waiting) > phase.needed - self._trained:
            head = next(iter(self.waiting.values()))
            if now < head.arrived + self._limit:
                break
            shed.append(self._give_up(head, now))
        if is_busy or not self.waiting:
            return self._hold(NEVER, HoldReason.BUSY, tuple(shed))
        rows = min(phase.rows, self.settings.max_batch_size)
        if len(self.waiting) < rows:
            head = next(iter(self.waiting.values()))
            wait = min(0.95 * self._limit, self.line.seconds(2 * rows + 1))
            until = head.arrived + wait - self.line.seconds(rows)
            if now < until:
                return self._hold(until, shed=tuple(shed))
        self._trained += 1
        decision = self._start(rows, now, tuple(shed), keep_wait=False)
        if self._trained == phase.batches:
            del self._training[0]
            self._trained = 0
            # Not after the warm-up; and before the batch that just left has ended.
            if phase is not _TRAINING[0]:
                self._refit()
        return decision

    def _drop_late(self, now: float, is_busy: bool) -> tuple[Shed, ...]:
        shed: list[Shed] = []
        while self.waiting:
            head, rows = next(iter(self.waiting.values())), len(self.waiting)
            if rows == 1 and not is_busy:
                break  # a lone request is served however late it is
            expected = self.line.seconds(rows) if rows > 1 else 0.0
            if now + expected < head.arrived + self._limit:
                break
            shed.append(self._give_up(head, now))
        return tuple(shed)

    def _start(
        self, at_most: int, now: float, shed: tuple[Shed, ...], keep_wait: bool = True
    ) -> Decision:
        items = self._oldest(at_most)
        decision = self._release(items, ReleaseReason.IDLE, now, shed)
        assert decision.release is not None, "a release without a batch"
        wait = now - items[0].arrived if keep_wait else 0.0
        self._running[decision.release.id] = (len(items), now, wait)
        return decision

    def _refit(self) -> None:
        if not self._samples:
            return
        self._mean_wait = sum(sample.wait for sample in self._samples) / len(self._samples)
        if self._known is None:
            terms = np.array([(sample.rows, 1.0) for sample in self._samples])
            seconds = np.array([sample.seconds for sample in self._samples])
            (per_row, fixed), *_ = np.linalg.lstsq(terms, seconds, rcond=None)
            self.line = Line(max(1e-6, float(per_row)), max(0.0, float(fixed)))
