"""What a run of batches was worth: shares, goodput and latency of what became of the requests.

Shares are of all requests; a request that was refused or given up is not in time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from batchedmodel_cli.simulator.engine import NANOSECONDS, Request, Run
from batchedmodel_contract.outcomes import Outcome, Rejection

_GIVEN_UP: Final = (Outcome.SHED, Outcome.EVICTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds of something, over all requests that have it."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a run was worth; the five shares after `longest_in_time_share` and it add up to 1."""

    requests: int
    in_time_share: float
    longest_in_time_share: float
    """Of the tenth of the requests that is longest."""
    late_share: float
    """Answered after they were due."""
    refused_share: float
    """Refused on arrival."""
    shed_share: float
    """Taken, and given up before their deadline."""
    expired_share: float
    """Taken, and not answered at their deadline."""
    latency: Latency | None
    """From arrival to answer; None if nothing was answered."""
    goodput: float
    """In time per second, from the first arrival until the last one or the last answer in time,
    whichever is later."""
    busy_share: float
    """Part of the time from first arrival to last answer in which the average worker computed."""
    mean_batch: float


def verdict(requests: Sequence[Request], run: Run, *, pods: int = 1, workers: int = 1) -> Verdict:
    """Judge a run of at least one request; `workers` are those of each pod's device."""
    at = np.array([request.at for request in requests], dtype=np.int64)
    due = np.array([request.due for request in requests], dtype=np.int64)
    lengths = np.array([request.length for request in requests])
    finished = np.array(run.finished, dtype=np.int64)
    completed = finished >= 0
    in_time = completed & (finished <= due)
    longest = lengths >= np.sort(lengths)[9 * len(lengths) // 10]
    total, hits = len(requests), int(in_time.sum())
    spanned = int(max(at[-1], finished[in_time].max(initial=0)) - at[0])
    worked = run.until - int(at[0])
    return Verdict(
        requests=total,
        in_time_share=hits / total,
        longest_in_time_share=float(in_time[longest].mean()),
        late_share=(int(completed.sum()) - hits) / total,
        refused_share=sum(isinstance(ended, Rejection) for ended in run.ended) / total,
        shed_share=sum(ended in _GIVEN_UP for ended in run.ended) / total,
        expired_share=sum(ended is Outcome.EXPIRED for ended in run.ended) / total,
        latency=latency_of((finished - at)[completed] / NANOSECONDS),
        goodput=hits * NANOSECONDS / spanned if spanned else 0.0,
        busy_share=run.busy / (pods * workers * worked) if worked > 0 else 0.0,
        mean_batch=sum(run.batches) / len(run.batches) if run.batches else 0.0,
    )


def latency_of(seconds: ArrayLike) -> Latency | None:
    """Of so many seconds; None of none."""
    listed = np.asarray(seconds, dtype=float)
    if not listed.size:
        return None
    p50, p95, p99 = (float(at) for at in np.percentile(listed, (50, 95, 99)))
    return Latency(mean=float(listed.mean()), p50=p50, p95=p95, p99=p99)
