"""What a sidecar tells the autoscaler: the work offered to it and the work that waits.

Work is in seconds of the device. It is told as one bucket for each of the last seconds, so that a
new autoscaler is exact at once and a missed poll loses nothing.

Another process in a pod can answer in the sidecar's place. So every number is bounded where it is
read: sums, quotients and squares of them stay finite.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from batchedmodel_contract.inference.profile import ProfileExtent
from batchedmodel_contract.invalid_input import InvalidInput, readable
from batchedmodel_contract.schema.reading import ruled
from batchedmodel_contract.schema.rules import Real

BUCKETS: Final = 60
BUCKET_SECONDS: Final = 1.0

# Far beyond all real values, and small enough to be counted with.
_WORK: Final = Real(minimum=0, maximum=1e9)
_ROWS: Final = Real(minimum=0, maximum=1e9)
_SIZE: Final = Real(minimum=1, maximum=1e6)
_EVER: Final = Real(minimum=0, maximum=1e15)
"""What only grows while a sidecar runs."""
_NUMBERS: Final[Mapping[str, Real]] = {
    "age_seconds": Real(minimum=0, maximum=1e9),
    "backlog_work": _WORK,
    "queue_length": _ROWS,
    "outstanding": _ROWS,
    "max_batch_size": _SIZE,
    "max_concurrent_batches": _SIZE,
    "sustainable_share": Real(minimum=1e-6, maximum=1),
    "waited_row_seconds": _EVER,
    "released_rows": _EVER,
    "rows_per_second": Real(minimum=1e-6, maximum=1e12),
    "shortest_latency_seconds": Real(minimum=0, maximum=1e6),
}
_COUNTS: Final = (
    "queue_length", "outstanding", "max_batch_size", "max_concurrent_batches", "released_rows",
)  # fmt: skip
_REQUIRED: Final = ("age_seconds", "backlog_work", "queue_length", "outstanding", "max_batch_size")
"""Numbers that sidecars of every version tell; the others have their defaults."""


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


@readable("stats")
def stats_from_mapping(mapping: Mapping[str, Any]) -> SidecarStats:
    """The stats in a document; raises `InvalidInput`."""
    work = tuple(ruled(_WORK, bucket, "offered_work") for bucket in mapping["offered_work"])
    if len(work) != BUCKETS:
        raise InvalidInput("offered_work", f"is not {BUCKETS} amounts of work")
    numbers: dict[str, Any] = {
        name: ruled(rule, mapping[name], name)
        for name, rule in _NUMBERS.items()
        if name in _REQUIRED or mapping.get(name) is not None
        # A sidecar of an earlier version says 0 where it can answer nothing within its target.
        if name != "rows_per_second" or mapping[name] != 0
    }
    return SidecarStats(
        instance=str(mapping["instance"]),
        model_ready=bool(mapping["model_ready"]),
        draining=bool(mapping["draining"]),
        profile_known=bool(mapping["profile_known"]),
        settings_hash=str(mapping["settings_hash"]),
        profile=ProfileExtent(mapping.get("profile", ProfileExtent.ABSENT)),
        offered_work=work,
        **numbers | {name: int(numbers[name]) for name in _COUNTS if name in numbers},
    )
