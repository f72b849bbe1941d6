"""Reads what a sidecar tells of its work.

Another process in a pod can answer in the sidecar's place. So every number is bounded where it is
read: sums, quotients and squares of them stay finite.
"""

from collections.abc import Mapping
from typing import Any, Final

from batchedmodel_contract.inference.profile import ProfileExtent
from batchedmodel_contract.invalid_input import InvalidInput, readable
from batchedmodel_contract.processes.stats import BUCKETS, SidecarStats
from batchedmodel_contract.schema.reading import ruled
from batchedmodel_contract.schema.rules import Real

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
