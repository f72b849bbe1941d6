"""What lone requests and small groups pay: mean latency against Greedy far below saturation.

Lateness is `Serve` here, so that both answer every request: under `Refuse` each would leave out
its own slow ones, and the means would be of different requests.
"""

from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Final

from batchedmodel_contract.manifest.batching import Lateness, PolicyName
from bench_report import Figure, at_least, at_most
from scheduling_bench.scenarios import CAP99_OF_A, CLUMPS, Plan, Scenario, equal, mixed
from scheduling_bench.summaries import over_seeds
from scheduling_bench.trials import judged, ours, plant_of, requests_of

# `near` is what a load of 100 % means here.
_POISSON: Final = equal("A", "Poisson", CAP99_OF_A)
_CLUMPS: Final = replace(_POISSON, name="A clumps of 8 in 1 ms", arrivals=CLUMPS)
# Where a batch packs, Greedy needs no length buckets: with them it would only wait for its turns.
_PACKED: Final = replace(mixed(50, "Poisson", 1000, packed=True), edges=())
_MORE: Final = 2.0  # percent
_LESS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Our mean latency as a part of Greedy's, by seed."""

    poisson: list[Future[float]]
    clumps: list[Future[float]]
    light_clumps: list[Future[float]]
    packed: list[Future[float]]


def submit(executor: Executor, plan: Plan) -> Trials:
    """Have all rows tried with all seeds."""

    def at(scenario: Scenario, load: float) -> list[Future[float]]:
        return [executor.submit(ratio, scenario, seed, plan, load) for seed in plan.seeds]

    return Trials(
        poisson=at(_POISSON, 0.3),
        clumps=at(_CLUMPS, 0.3),
        light_clumps=at(_CLUMPS, 0.1),
        packed=at(_PACKED, 0.3),
    )


def ratio(scenario: Scenario, seed: int, plan: Plan, load: float) -> float:
    """Our mean latency as a part of Greedy's, on the same requests."""
    requests = requests_of(scenario, seed, plan.requests, load * scenario.near, refuse=False)
    means = []
    for name in (PolicyName.DEADLINE, PolicyName.GREEDY):
        policy = ours(scenario, policy=name, lateness=Lateness.SERVE)
        latency = judged(scenario, requests, policy, plant_of(scenario, seed)).whole.latency
        assert latency is not None, "with this much patience everybody is answered"
        means.append(latency.mean)
    return means[0] / means[1]


def report(trials: Trials) -> list[Figure]:
    """How much longer under smooth traffic, how much shorter under clumps."""

    def percent(futures: list[Future[float]], sign: int) -> list[float]:
        return [sign * 100 * (future.result() - 1) for future in futures]

    tail = "mean latency against Greedy"
    return [
        *over_seeds(
            f"{_POISSON.name} at 30 %: {tail}", percent(trials.poisson, 1), "% more", at_most, _MORE
        ),
        *over_seeds(
            f"{_CLUMPS.name} at 30 %: {tail}", percent(trials.clumps, -1), "% less", at_least, _LESS
        ),
        *over_seeds(f"{_CLUMPS.name} at 10 %: {tail}", percent(trials.light_clumps, -1), "% less"),
        *over_seeds(f"{_PACKED.name} at 30 %: {tail}", percent(trials.packed, 1), "% more"),
    ]
