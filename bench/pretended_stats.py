"""What a sidecar answers whose pod has its part of a load that does not change.

Called by the benchmarks in which one process answers in place of thousands of sidecars.
"""

from batchedmodel_contract.processes.stats import BUCKETS, SidecarStats


def steady_stats(settings: str = "") -> SidecarStats:
    """A load that three pods are right for; `settings` is the hash of those in force."""
    return SidecarStats(
        instance="bench",
        model_ready=True,
        draining=False,
        profile_known=True,
        offered_work=(0.7,) * BUCKETS,
        age_seconds=3600.0,
        backlog_work=0.0,
        queue_length=0,
        outstanding=1,
        settings_hash=settings,
        max_batch_size=32,
    )
