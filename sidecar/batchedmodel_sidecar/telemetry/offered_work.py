"""What was offered to this sidecar, for the autoscaler: also what was refused, read or unread.

An overload that is shed must not look like calm. Written by the batcher, read through `/v1/stats`.
"""

import uuid
from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.processes.stats import BUCKET_SECONDS, BUCKETS, SidecarStats
from batchedmodel_scheduling.core.base import BasePolicy
from batchedmodel_sidecar.telemetry.ledger import Ledger


class WorkMeter:
    """How much work was offered in each second of the last minute; times are monotonic seconds."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._buckets = [0.0] * BUCKETS
        self._newest = self._second(started)
        self._changes_at = (self._newest + 1) * BUCKET_SECONDS
        self._requests = self._rows = 0
        self.total = 0.0
        """Work since the start."""

    def add(self, work: float, rows: int, now: float) -> None:
        """A request of so many rows brought so much work."""
        self._requests += 1
        self._rows += rows
        self._put(work, now)

    def add_unseen(self, rows: int, now: float) -> None:
        """A request was refused before its rows were read: it counts as an average one.

        Where several rows were counted, each counts as an average one.
        """
        if rows > 1 and self._rows:
            self.add(self.total / self._rows * rows, rows, now)
        elif self._requests:
            self._put(self.total / self._requests, now)
            self._requests += 1

    def at_least(self, work: float, now: float) -> None:
        """The present second counts as so much work, unless it is more already."""
        self._advance(now)
        bucket = self._newest % BUCKETS
        self._buckets[bucket] = max(self._buckets[bucket], work)

    def buckets(self, now: float) -> tuple[float, ...]:
        """The last minute, oldest second first; the present second is the last and not over yet."""
        self._advance(now)
        start = (self._newest + 1) % BUCKETS
        return tuple(self._buckets[start:] + self._buckets[:start])

    def age(self, now: float) -> float:
        """Seconds since counting began."""
        return now - self._started

    def _put(self, work: float, now: float) -> None:
        if now >= self._changes_at:
            self._advance(now)
        self._buckets[self._newest % BUCKETS] += work
        self.total += work

    def _advance(self, now: float) -> None:
        second = self._second(now)
        for passed in range(max(self._newest, second - BUCKETS) + 1, second + 1):
            self._buckets[passed % BUCKETS] = 0.0
        self._newest = max(self._newest, second)
        self._changes_at = (self._newest + 1) * BUCKET_SECONDS

    @staticmethod
    def _second(now: float) -> int:
        return int(now // BUCKET_SECONDS)


class OfferedWork:
    """Work by second, beside the books."""

    def __init__(self, ledger: Ledger, now: float) -> None:
        self._ledger = ledger
        self._meter = WorkMeter(now)
        self._instance: Final = uuid.uuid4().hex
        """Another one after a restart, which is then no fall of the counters."""

    def add(self, work: float, rows: int, now: float) -> None:
        """A call of so many rows brought so much work."""
        self._meter.add(work, rows, now)

    def add_unseen(self, rows: int, now: float) -> None:
        """A call of so many rows at least was refused, as there was no room: it was offered."""
        self._ledger.rows_offered += rows
        self._meter.add_unseen(rows, now)

    def start_over(self, now: float) -> None:
        """Work is counted in another unit from now on, and the two must not be added up."""
        self._meter = WorkMeter(now)

    def stats(
        self,
        settings: BatchSettings,
        now: float,
        policy: BasePolicy,
        *,
        model_ready: bool,
        draining: bool,
    ) -> SidecarStats:
        """What the autoscaler is told; the policy may use fewer workers than the settings have."""
        signals = policy.signals()
        return SidecarStats(
            instance=self._instance,
            model_ready=model_ready,
            draining=draining,
            # Whatever is known of the device comes from its profile.
            profile_known=signals.sustainable_rate is not None,
            sustainable_share=signals.sustainable_share,
            offered_work=self._meter.buckets(now),
            age_seconds=self._meter.age(now),
            backlog_work=max(0.0, self._ledger.work_live),
            queue_length=self._ledger.rows_waiting,
            outstanding=self._ledger.rows_live,
            settings_hash=settings.digest(),
            max_batch_size=settings.max_batch_size,
            max_concurrent_batches=policy.settings.max_concurrent_batches,
            waited_row_seconds=self._ledger.waiting_rows.integral(now),
            released_rows=self._ledger.waiting_rows.lowered,
            # No rate at all is the verdict on the target and says nothing about the device.
            rows_per_second=signals.sustainable_rate or None,
            shortest_latency_seconds=signals.smallest_feasible_target_seconds,
            profile=policy.pipeline.times.extent,
        )
