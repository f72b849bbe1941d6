"""What was learnt of a model's pods, as the resource's `status.capacity` keeps it.

The autoscaler writes it and reads it again after a restart. The operator makes the scaling
behaviour and the condition `TargetFeasible` from it. Its numbers are rounded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

FIELD: Final = "capacity"
_DIGITS: Final = 3
_LEAST: Final = 1e-6
_MOST: Final = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What is known of the pods of one revision; None is not measured yet."""

    revision: str
    rows_per_second: float | None = None
    """What a pod can answer within the latency target."""
    startup_seconds: float | None = None
    """From a pod's creation to its readiness."""
    shortest_latency_seconds: float | None = None
    """What one row takes on an idle pod."""

    def to_mapping(self, *, at: str) -> dict[str, Any]:
        """The JSON form; `at` is when it was learnt, as RFC 3339 writes it."""
        latency = self.shortest_latency_seconds
        found = {
            "rowsPerSecond": self.rows_per_second,
            "startupSeconds": self.startup_seconds,
            "shortestLatencyMilliseconds": None if latency is None else latency * 1000,
        }
        numbers = {name: _rounded(value) for name, value in found.items() if value is not None}
        return {"revision": self.revision, **numbers, "learntAt": at}


def capacity_of(status: Mapping[str, Any]) -> Capacity | None:
    """What a resource's status says; None where it says nothing that makes sense."""
    found = status.get(FIELD)
    if not isinstance(found, Mapping) or not isinstance(found.get("revision"), str):
        return None
    latency = _positive(found.get("shortestLatencyMilliseconds"))
    return Capacity(
        revision=found["revision"],
        rows_per_second=_positive(found.get("rowsPerSecond")),
        startup_seconds=_positive(found.get("startupSeconds")),
        shortest_latency_seconds=None if latency is None else latency / 1000,
    )


def _positive(found: object) -> float | None:
    """The number, if it can be counted with: a status may hold anything."""
    if isinstance(found, int | float) and _LEAST <= found <= _MOST:
        return float(found)
    return None


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
