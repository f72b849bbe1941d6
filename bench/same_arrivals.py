"""What the simulator makes of arrivals that real processes are given as well.

Called by the benchmarks that compare the two. Pure: it starts nothing.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from batchedmodel_cli.simulator.arrivals import Poisson
from batchedmodel_cli.simulator.engine import NANOSECONDS, Curve, Plant, simulate
from batchedmodel_cli.simulator.workload import requests, stream
from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_scheduling.batching.policies import new_policy
from scheduling_bench.devices import warmed_up

_DEPTH: Final = 2  # batches that our model server holds
_MICROSECOND: Final = 1000  # nanoseconds; what the load generator is told arrivals in


def poisson(rate: float, seconds: float, *, seed: int, name: str) -> list[int]:
    """`rate` arrivals per second: nanoseconds, in whole microseconds; the same for equal names."""
    times = Poisson().times(round(rate * seconds), rate, stream(seed, name))
    return [at // _MICROSECOND * _MICROSECOND for at in times]


def microseconds(times: Sequence[int]) -> list[int]:
    """Times in nanoseconds as the load generator takes them."""
    return [at // _MICROSECOND for at in times]


def finished(
    curve: Curve, settings: BatchSettings, times: Sequence[int], *, hand_off_seconds: float = 0.0
) -> NDArray[np.int64]:
    """When the device has served each request, in nanoseconds; the times are those of arrival.

    The policy knows of the device what the server's warm-up measures.
    """
    profile = warmed_up(
        curve, CostRule.ROWS, max_rows=settings.max_batch_size, longest=1, noise=0.0, seed=0
    )
    plant = Plant(curve=curve, hand_off_seconds=hand_off_seconds, depth=_DEPTH)
    timeout = settings.request_timeout_seconds
    asked = requests(
        times,
        [1] * len(times),
        settings.target_seconds or timeout,
        request_timeout_seconds=timeout,
    )
    run = simulate(asked, [(new_policy(settings, profile), plant)])
    return np.array(run.finished, dtype=np.int64)


def percentiles(seconds: NDArray[np.float64], *which: float) -> list[float]:
    """By nearest rank, as the load generator has them."""
    return [float(it) for it in np.percentile(seconds, which, method="inverted_cdf")]


def latencies(times: Sequence[int], ended: NDArray[np.int64]) -> NDArray[np.float64]:
    """Seconds from each arrival to its end."""
    return (ended - np.array(times, dtype=np.int64)) / NANOSECONDS
