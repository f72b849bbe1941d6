"""What a run was worth: shares, goodput, latency and fairness of what became of the requests.

Shares are of all requests unless they say otherwise, and a request that was refused or given up
counts as not on time.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from batchedmodel_cli.simulator.engine import NANOSECONDS, Request, Run
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_scheduling.queue.items import Priority

_Name = TypeVar("_Name", bound=int)
_GIVEN_UP: Final = (Outcome.SHED, Outcome.EVICTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds from arrival to answer, of completed requests."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some of the requests."""

    requests: int
    on_time_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a run was worth."""

    requests: int
    on_time_share: float
    goodput: float
    """On time per second, from the first arrival until the last one or the last answer in time,
    whichever is later."""
    latency: Latency | None
    """None if nothing was completed."""
    refused_share: float
    """Told on arrival that they are not taken."""
    shed_share: float
    """Taken, and given up before their deadline."""
    expired_share: float
    """Taken, and still waiting at their deadline."""
    late_after_admission_share: float
    """Of those taken: answered late, or expired."""
    by_length: dict[int, Part]
    """By upper edge of the length bucket; only buckets that have requests."""
    by_priority: dict[Priority, Part]
    busy_share: float
    """Part of the time from first arrival to last answer in which the average worker computed."""
    mean_batch: float

    @property
    def worst_to_best_length(self) -> float:
        """On-time share of the worst length bucket, as a part of that of the best."""
        shares = [part.on_time_share for part in self.by_length.values()]
        return min(shares) / max(shares) if shares and max(shares) > 0 else 0.0


def verdict(
    requests: Sequence[Request],
    run: Run,
    *,
    edges: Sequence[int] = (),
    pods: int = 1,
    workers: int = 1,
) -> Verdict:
    """Judge a run of at least one request; a length beyond the edges counts to the last one.

    `workers` are those of each pod's device.
    """
    at = np.array([request.at for request in requests], dtype=np.int64)
    due = np.array([request.due for request in requests], dtype=np.int64)
    finished = np.array(run.finished, dtype=np.int64)
    completed = finished >= 0
    on_time = completed & (finished <= due)
    outcomes = run.ended
    refused = sum(isinstance(outcome, Rejection) for outcome in outcomes)
    shed = sum(outcome in _GIVEN_UP for outcome in outcomes)
    expired = sum(outcome is Outcome.EXPIRED for outcome in outcomes)
    late = int(np.count_nonzero(completed & ~on_time))
    total, admitted = len(requests), len(requests) - refused
    spanned = int(max(at[-1], finished[on_time].max(initial=0)) - at[0])
    worked = run.until - int(at[0])
    hits: list[bool] = on_time.tolist()
    buckets = (edges[min(bisect_left(edges, one.length), len(edges) - 1)] for one in requests)
    return Verdict(
        requests=total,
        on_time_share=sum(hits) / total,
        goodput=sum(hits) * NANOSECONDS / spanned if spanned else 0.0,
        latency=_latency((finished - at)[completed] / NANOSECONDS) if completed.any() else None,
        refused_share=refused / total,
        shed_share=shed / total,
        expired_share=expired / total,
        late_after_admission_share=(late + expired) / admitted if admitted else 0.0,
        by_length=_parts(buckets, hits) if edges else {},
        by_priority=_parts((request.priority for request in requests), hits),
        busy_share=run.busy / (pods * workers * worked) if worked > 0 else 0.0,
        mean_batch=sum(run.batches) / len(run.batches) if run.batches else 0.0,
    )


def _latency(seconds: NDArray[np.float64]) -> Latency:
    p50, p95, p99 = (float(at) for at in np.percentile(seconds, (50, 95, 99)))
    return Latency(mean=float(seconds.mean()), p50=p50, p95=p95, p99=p99)


def _parts(names: Iterable[_Name], on_time: Sequence[bool]) -> dict[_Name, Part]:
    """The parts in ascending order of their names."""
    members: defaultdict[_Name, list[bool]] = defaultdict(list)
    for name, hit in zip(names, on_time, strict=True):
        members[name].append(hit)
    return {
        name: Part(requests=len(hits), on_time_share=sum(hits) / len(hits))
        for name, hits in sorted(members.items())
    }
