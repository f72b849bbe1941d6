"""What a second batch, handed over just in time, is worth when the way to the device is long."""

from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Final

from bench_report import Figure, at_least
from scheduling_bench.scenarios import Plan, Scenario, equal
from scheduling_bench.summaries import over_seeds
from scheduling_bench.trials import our_cap99

_HAND_OFF_SECONDS: Final = 0.002
_GOAL: Final = 10.0  # percent more
_EXPECTED: Final = 1.2
_SCENARIOS: Final = (
    equal("A", "Poisson", 650),
    equal("A", "gamma CV 4", 190),
    equal("t = 3 + 0.3 b, 25 ms", "Poisson", 1840),
    equal("t = 3 + 0.3 b, 25 ms", "gamma CV 4", 750),
)

Trials = list[tuple[Scenario, list[Future[float]]]]


def submit(executor: Executor, plan: Plan) -> Trials:
    """Have both depths tried with all seeds; the guesses are for depth 1."""
    return [
        (scenario, [executor.submit(gain, scenario, seed, plan) for seed in plan.seeds])
        for scenario in _SCENARIOS
    ]


def gain(scenario: Scenario, seed: int, plan: Plan) -> float:
    """How many percent more ours serves with depth 2 than with depth 1."""
    single = replace(scenario, hand_off_seconds=_HAND_OFF_SECONDS, depth=1)
    double = replace(single, depth=2)
    one = our_cap99(single, seed, plan, scenario.near)
    two = our_cap99(double, seed, plan, one.rate * _EXPECTED)
    return 100 * (two.rate / one.rate - 1)


def report(trials: Trials) -> list[Figure]:
    """One row per scenario."""
    figures: list[Figure] = []
    for scenario, futures in trials:
        gains = [future.result() for future in futures]
        name = f"{scenario.name}, hand-off 2 ms: depth 2 over depth 1"
        figures += over_seeds(name, gains, "% more", at_least, _GOAL)
    return figures
