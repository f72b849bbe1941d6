"""What a sidecar tells the autoscaler: the work offered to it and the work that waits.

Work is in seconds of the device. It is told as one bucket for each of the last seconds, so that a
new autoscaler is exact at once and a missed poll loses nothing.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

from batchedmodel_contract.inference.profile import ProfileExtent

BUCKETS: Final = 60
BUCKET_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarStats:
    """One pod's answer."""

    instance: str
    """Differs after every start of the process."""
    model_ready: bool
    draining: bool
    profile_known: bool
    """Whether work is in seconds of a measured device; otherwise in full batches."""
    offered_work: tuple[float, ...]
    """Work that arrived in each of the last `BUCKETS` seconds, accepted or not, oldest first."""
    age_seconds: float
    """How long the sidecar has been counting; the buckets before that are empty."""
    backlog_work: float
    """Work that waits or is under way."""
    queue_length: int
    """Rows that wait."""
    outstanding: int
    """Rows that wait or are under way."""
    settings_hash: str
    max_batch_size: int
    max_concurrent_batches: int = 1
    """How many of them the server runs side by side."""
    sustainable_share: float | None = None
    """What the server can answer within its latency target, as a share of what full batches would
    answer; None without a target, a profile, or a target that it can meet."""
    waited_row_seconds: float | None = None
    """Sum of the seconds that all rows have waited since the start."""
    released_rows: int | None = None
    """Rows that have waited since the start and wait no more."""
    rows_per_second: float | None = None
    """What the server can answer within its latency target; None without a profile, and where it
    can answer nothing in time."""
    shortest_latency_seconds: float | None = None
    """What a row of usual length takes on an idle server; None without a profile."""
    profile: ProfileExtent = ProfileExtent.ABSENT
    """One that is partial counts as none in all else that is told."""

    def to_mapping(self) -> dict[str, Any]:
        """The JSON document."""
        return asdict(self)
