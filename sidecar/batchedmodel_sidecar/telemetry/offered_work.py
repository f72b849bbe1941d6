"""What was offered to this sidecar, for the autoscaler: also what was refused, read or unread.

Owned by the batcher. It has a name of its own from start to start, so that a restart is not taken
for a fall of the counters.
"""

import uuid
from typing import Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.processes.stats import SidecarStats
from batchedmodel_scheduling.core.base import BasePolicy
from batchedmodel_sidecar.telemetry.ledger import Ledger
from batchedmodel_sidecar.telemetry.work_meter import WorkMeter


class OfferedWork:
    """Work by second, beside the books."""

    def __init__(self, ledger: Ledger, now: float) -> None:
        self._ledger = ledger
        self._meter = WorkMeter(now)
        self._instance: Final = uuid.uuid4().hex

    def add(self, work: float, now: float) -> None:
        """A call brought so much work."""
        self._meter.add(work, now)

    def add_unseen(self, now: float) -> None:
        """A call was refused unread for want of room: it was offered work all the same."""
        self._ledger.rows_offered += 1  # it had one at least
        self._meter.add_unseen(now)

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
        )
