"""What a study asks and what it answers, as plain records.

Made by `simulator` and `study`, shown by `report`. They know nothing of the simulator.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from batchedmodel_contract.manifest.batching import BatchSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds from arrival to answer, of what was answered."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of the traffic in one simulation; the five first shares add up to 1."""

    requests: int
    in_time_share: float
    """Answered within the target or, without one, within the request time-out."""
    late_share: float
    """Answered after it."""
    refused_share: float
    """Told on arrival that they are not taken."""
    shed_share: float
    """Taken, and given up before their time was over."""
    expired_share: float
    """Taken, and not answered when their time was over."""
    latency: Latency | None
    """None if nothing was answered."""
    goodput: float
    """Answered in time, requests a second of the run."""
    busy_share: float
    """Part of the time in which the average device computed."""
    mean_batch: float


class Simulator(Protocol):
    """Runs simulations of one traffic on one kind of device."""

    @property
    def rate(self) -> float:
        """Requests a second, as offered."""
        ...

    def run(self, settings: BatchSettings, replicas: int, rate: float) -> Trial:
        """The same traffic, only faster or slower, in front of so many replicas."""
        ...

    def throughput(self, settings: BatchSettings) -> float:
        """Requests a second that one replica answers, however late, when more wait."""
        ...

    def alone_seconds(self) -> float:
        """What a request of typical length takes on an idle replica."""
        ...


class Measure(StrEnum):
    """By what settings are compared."""

    IN_TIME = "in_time"
    """The part of the traffic that is answered in time."""
    P99 = "p99"
    """The 99th percentile of the latency."""
    THROUGHPUT = "throughput"
    """What one replica answers when more wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting changed, everything else as it is."""

    field: str
    """As the manifest has it, below `spec.batching`."""
    present: str
    value: str
    settings: BatchSettings
    """The effective ones with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What a change would bring."""

    change: Change
    gain: float
    """As a part of what there is; above 0 is better."""
    beyond_profile: bool
    """It makes batches larger than any that was measured."""
    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All changes on the same traffic, the best first."""

    measure: Measure
    rate: float
    """Requests a second at which they were compared."""
    present: Trial
    tried: tuple[Tried, ...]
    advised: Tried | None
    """The one worth making, if there is one."""
    rate_with_advised: float | None
    """The highest rate that the replicas sustain with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answers to a person's questions."""

    replicas: int
    rate: float
    """Requests a second, as offered."""
    offered: Trial
    throughput: float
    """Requests a second that one replica answers, however late, when more wait."""
    highest_rate: float
    """Requests a second that the replicas sustain; 0 if not even a trickle is."""
    replicas_needed: int | None
    """For the offered rate; None if `MOST_REPLICAS` are not enough."""
    comparison: Comparison
