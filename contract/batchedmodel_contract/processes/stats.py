"""What a sidecar tells the autoscaler: the work offered to it and the work that waits.

Work is in seconds of the device. Sums over a pod's whole life and one bucket per second of the last
minute: an autoscaler that starts anew is exact at once, and a poll that is missed loses nothing.

Whoever is in a pod can answer in the sidecar's place, so every number is bounded where it is read:
from what is let through here sums, quotients and squares stay finite.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.schema.rules import Broken, Real

BUCKETS: Final = 60
BUCKET_SECONDS: Final = 1.0

# Far from what there can be on both sides, and small enough to be counted with.
_WORK: Final = Real(minimum=0, maximum=1e9)
_SECONDS: Final = Real(minimum=0, maximum=1e9)
_LATENCY: Final = Real(minimum=0, maximum=1e6)
_ROWS: Final = Real(minimum=0, maximum=1e9)
_SIZE: Final = Real(minimum=1, maximum=1e6)
_SHARE: Final = Real(minimum=1e-6, maximum=1)
_RATE: Final = Real(minimum=1e-6, maximum=1e12)
_EVER: Final = Real(minimum=0, maximum=1e15)
"""What only grows while a sidecar runs."""


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
    """What this server can answer within its latency target; None without a profile, and where it
    can answer nothing within it."""
    shortest_latency_seconds: float | None = None
    """What a row of usual length takes on an idle server; None without a profile."""

    def to_mapping(self) -> dict[str, Any]:
        """The JSON document."""
        return asdict(self)


def stats_from_mapping(mapping: Mapping[str, Any]) -> SidecarStats:
    """The stats in a document; raises `InvalidInput`."""
    try:
        work = tuple(_read("offered_work", bucket, _WORK) for bucket in mapping["offered_work"])
        if len(work) != BUCKETS:
            raise InvalidInput("offered_work", f"is not {BUCKETS} amounts of work")
        return SidecarStats(
            instance=str(mapping["instance"]),
            model_ready=bool(mapping["model_ready"]),
            draining=bool(mapping["draining"]),
            profile_known=bool(mapping["profile_known"]),
            offered_work=work,
            age_seconds=_number(mapping, "age_seconds", _SECONDS),
            backlog_work=_number(mapping, "backlog_work", _WORK),
            queue_length=int(_number(mapping, "queue_length", _ROWS)),
            outstanding=int(_number(mapping, "outstanding", _ROWS)),
            settings_hash=str(mapping["settings_hash"]),
            max_batch_size=int(_number(mapping, "max_batch_size", _SIZE)),
            # Sidecars of an earlier version do not tell what follows. They send one batch at a
            # time.
            max_concurrent_batches=int(_later(mapping, "max_concurrent_batches", _SIZE) or 1),
            sustainable_share=_later(mapping, "sustainable_share", _SHARE),
            waited_row_seconds=_later(mapping, "waited_row_seconds", _EVER),
            released_rows=_whole(_later(mapping, "released_rows", _EVER)),
            rows_per_second=_rate(mapping, "rows_per_second"),
            shortest_latency_seconds=_later(mapping, "shortest_latency_seconds", _LATENCY),
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput("stats", f"cannot be read: {error!r}") from error


def _read(name: str, found: object, rule: Real) -> float:
    try:
        return rule.read(found)
    except Broken as broken:
        raise InvalidInput(name, str(broken), found) from broken


def _number(mapping: Mapping[str, Any], name: str, rule: Real) -> float:
    return _read(name, mapping[name], rule)


def _later(mapping: Mapping[str, Any], name: str, rule: Real) -> float | None:
    return None if mapping.get(name) is None else _number(mapping, name, rule)


def _rate(mapping: Mapping[str, Any], name: str) -> float | None:
    # A sidecar of an earlier version says 0 where it can answer nothing within its target.
    return _later(mapping, name, _RATE) if mapping.get(name) != 0 else None


def _whole(amount: float | None) -> int | None:
    return None if amount is None else int(amount)
