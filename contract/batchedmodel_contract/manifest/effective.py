"""Values in force of fields whose default depends on other fields.

The declarations in `spec` say the same in words. The functions take single values, because the
autoscaler reads no whole spec. The limit of the queue is in `batching`.
"""

from batchedmodel_contract.manifest.spec import DRAIN_MARGIN_SECONDS
from batchedmodel_contract.manifest.workload import (
    DEFAULT_TARGET_QUEUE_WAIT_MILLISECONDS,
    DEFAULT_TARGET_UTILIZATION_PERCENT,
)


def drain_timeout_seconds(given: int | None, *, request_timeout_seconds: int) -> int:
    """How long accepted requests may take once a pod was told to stop."""
    return request_timeout_seconds + DRAIN_MARGIN_SECONDS if given is None else given


def target_utilization_percent(given: int | None) -> int:
    """Share that is to be used, for the metrics `Load` and `CPU`."""
    return DEFAULT_TARGET_UTILIZATION_PERCENT if given is None else given


def target_queue_length(given: int | None, *, max_batch_size: int) -> int:
    """Rows that may wait per pod, for metric `QueueLength`."""
    return max_batch_size if given is None else given


def target_concurrency(
    given: int | None, *, max_batch_size: int, max_concurrent_batches: int
) -> int:
    """Rows that may wait or be under way per pod, for metric `Concurrency`.

    By default a full batch for each that may run, which keeps a pod busy by 70 to 85 %.
    """
    return max_batch_size * max_concurrent_batches if given is None else given


def target_queue_time_milliseconds(
    given: int | None, *, target_latency_milliseconds: int | None
) -> int:
    """How long a row may wait on average, for metric `QueueTime`."""
    if given is not None:
        return given
    if target_latency_milliseconds is not None:
        return max(1, target_latency_milliseconds // 2)
    return DEFAULT_TARGET_QUEUE_WAIT_MILLISECONDS
