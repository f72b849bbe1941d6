"""What a sidecar tells the autoscaler: the work offered to it and the work that waits.

Work is in seconds of the device. Sums over a pod's whole life and one bucket per second of the last
minute: an autoscaler that starts anew is exact at once, and a poll that is missed loses nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from batchedmodel_contract.mistakes import InvalidInput

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
    """Of what full batches would answer, the part that this server can answer within its latency
    target; None without a target, a profile, or a target that it can meet."""
    waited_row_seconds: float | None = None
    """Seconds that rows have waited since the start, of all rows together."""
    released_rows: int | None = None
    """Rows that have waited since the start and wait no more."""
    rows_per_second: float | None = None
    """What this server can answer within its latency target; None without a profile."""
    shortest_latency_seconds: float | None = None
    """What a row of usual length takes on an idle server; None without a profile."""

    def to_mapping(self) -> dict[str, Any]:
        """The JSON document."""
        return asdict(self)


def stats_from_mapping(mapping: Mapping[str, Any]) -> SidecarStats:
    """The stats in a document; raises `InvalidInput`."""
    try:
        work = tuple(float(bucket) for bucket in mapping["offered_work"])
        if len(work) != BUCKETS or any(not 0 <= bucket < float("inf") for bucket in work):
            raise InvalidInput("offered_work", f"is not {BUCKETS} amounts of work")
        return SidecarStats(
            instance=str(mapping["instance"]),
            model_ready=bool(mapping["model_ready"]),
            draining=bool(mapping["draining"]),
            profile_known=bool(mapping["profile_known"]),
            offered_work=work,
            age_seconds=float(mapping["age_seconds"]),
            backlog_work=float(mapping["backlog_work"]),
            queue_length=int(mapping["queue_length"]),
            outstanding=int(mapping["outstanding"]),
            settings_hash=str(mapping["settings_hash"]),
            max_batch_size=int(mapping["max_batch_size"]),
            # Sidecars of an earlier version do not tell it, and send one batch at a time.
            max_concurrent_batches=int(mapping.get("max_concurrent_batches", 1)),
            sustainable_share=_share(mapping.get("sustainable_share")),
            waited_row_seconds=_amount(mapping, "waited_row_seconds"),
            released_rows=_count(_amount(mapping, "released_rows")),
            rows_per_second=_amount(mapping, "rows_per_second"),
            shortest_latency_seconds=_amount(mapping, "shortest_latency_seconds"),
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput("stats", f"cannot be read: {error!r}") from error


def _amount(mapping: Mapping[str, Any], name: str) -> float | None:
    """Sidecars of an earlier version do not tell it."""
    found = mapping.get(name)
    if found is None:
        return None
    if not isinstance(found, int | float) or not 0 <= found < float("inf"):
        raise InvalidInput(name, "is not a number from 0 on", found)
    return float(found)


def _count(amount: float | None) -> int | None:
    return None if amount is None else int(amount)


def _share(found: object) -> float | None:
    """Sidecars of an earlier version do not tell it."""
    if found is None:
        return None
    if not isinstance(found, int | float) or not 0 < found <= 1:
        raise InvalidInput("sustainable_share", "is not a share above 0 and at most 1", found)
    return float(found)
