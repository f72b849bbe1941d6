"""How well ours knows the device: its predictions against the exact times behind the noise.

A device that notes for each batch what ours predicts, at the moment at which it begins, stands in
the ordinary run: everything is learnt from the traffic as it comes.
"""

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from batchedmodel_cli.simulator.engine import NANOSECONDS, Plant
from batchedmodel_scheduling.latency.batch_times import BatchTimes
from batchedmodel_scheduling.queue.items import Item
from bench_report import Figure, at_most
from scheduling_bench.plants import Disturbances
from scheduling_bench.scenarios import Plan, Scenario, equal
from scheduling_bench.summaries import over_seeds
from scheduling_bench.trials import judged, ours, plant_of, requests_of

_NOISY: Final = Disturbances(noise=0.05, straggler_probability=0.02, straggler_factor=5.0)
# Slow enough to bear 40 % longer batches, and with batches of all sizes.
_RATE: Final = 370.0
_SCENARIO: Final = replace(equal("A", "MMPP", _RATE), disturbances=_NOISY)
_CHANGES: Final = (1.4, 0.6)
_CLOSE: Final = 0.05
_ERROR: Final = 10.0  # percent
_BATCHES: Final = 30.0


@dataclass(slots=True, kw_only=True)
class Watched:
    """A plant that notes how far the prediction is off whenever a batch begins."""

    plant: Plant
    times: BatchTimes
    changes_at: float
    factor: float
    errors: list[float] = field(default_factory=list)
    """Predicted over exact seconds, less 1, by batch."""
    before: int = 0
    """Batches that began before the change."""

    @property
    def workers(self) -> int:
        """As the plant's."""
        return self.plant.workers

    @property
    def depth(self) -> int:
        """See `Device`."""
        return self.plant.depth

    @property
    def hand_off(self) -> int:
        """See `Device`."""
        return self.plant.hand_off

    def duration(self, items: Sequence[Item], now: int) -> int:
        """See `Device`."""
        lengths = [item.length for item in items]
        exact = self.plant.curve.seconds(lengths)
        if now >= self.changes_at * NANOSECONDS:
            exact *= self.factor
        else:
            self.before += 1
        predicted = self.times.predict(lengths)
        assert predicted is not None, "there is a profile"
        self.errors.append(predicted / exact - 1)
        return self.plant.duration(items, now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """By seed: the error of a steady device, and how fast each sudden change is followed."""

    errors: list[Future[float]]
    batches: dict[float, list[Future[float]]]


def submit(executor: Executor, plan: Plan) -> Trials:
    """Have all rows tried with all seeds."""
    return Trials(
        errors=[executor.submit(error_p95, seed, plan) for seed in plan.seeds],
        batches={
            factor: [
                executor.submit(batches_until_close, seed, plan, factor) for seed in plan.seeds
            ]
            for factor in _CHANGES
        },
    )


def error_p95(seed: int, plan: Plan) -> float:
    """95th percentile of the error's size in percent, from the first batch on."""
    watched = _watch(seed, plan, 1.0)
    return float(np.percentile(np.abs(watched.errors), 95)) * 100


def batches_until_close(seed: int, plan: Plan, factor: float) -> float:
    """How many batches after the device has changed for the prediction to be within 5 %.

    Infinite if it never is.
    """
    watched = _watch(seed, plan, factor)
    after = watched.errors[watched.before :]
    close = (number for number, error in enumerate(after) if abs(error) <= _CLOSE)
    return float(next(close, np.inf))


def _watch(seed: int, plan: Plan, factor: float) -> Watched:
    """A run in which the device changes half-way."""
    half = plan.requests / _RATE / 2
    disturbances = replace(_NOISY, drift=((half, factor),))
    scenario: Scenario = replace(_SCENARIO, disturbances=disturbances)
    policy = ours(scenario)
    watched = Watched(
        plant=plant_of(scenario, seed),
        times=policy.pipeline.times,
        changes_at=half,
        factor=factor,
    )
    judged(scenario, requests_of(scenario, seed, plan.requests, _RATE), policy, watched)
    return watched


def report(trials: Trials) -> list[Figure]:
    """The mean error; of the changes the slowest recovery of all seeds."""
    errors = [future.result() for future in trials.errors]
    figures = over_seeds("estimator: error p95", errors, "%", at_most, _ERROR)
    for factor, futures in trials.batches.items():
        counts = [future.result() for future in futures]
        name = f"estimator: batches until within 5 % after {100 * (factor - 1):+.0f} %"
        figures.append(at_most(f"{name}, worst seed", max(counts), "", _BATCHES))
        figures.append(Figure(name=f"{name}, median", value=float(np.median(counts)), unit=""))
    return figures
