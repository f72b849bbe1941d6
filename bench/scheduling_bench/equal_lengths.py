"""Equal lengths: how much of what the clairvoyant could serve ours does serve."""

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Final

from bench_report import Figure, at_least
from scheduling_bench.scenarios import NOISE, Plan, Scenario, equal
from scheduling_bench.summaries import over_seeds
from scheduling_bench.trials import clairvoyant_cap99, our_cap99, served
from scheduling_bench.verdicts import Verdict

OVERLOADS: Final = (1.5, 3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One row: what is tried, the goal, and the share that is expected, where the search begins."""

    scenario: Scenario
    goal: float
    expected: float
    noisy_goal: float | None = None
    """Where it is also tried on a noisy device."""
    noisy_expected: float = 0.8
    overloaded: bool = False
    """Whether to go on to 1.5 and 3 times the highest rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One cell with one seed."""

    share: float
    """Of the clairvoyant's cap99, in percent."""
    noisy_share: float | None
    loads: dict[float, Verdict]
    """By multiples of our own cap99, 1 among them."""
    noisy_loads: dict[float, Verdict]
    """The same on the noisy device, by multiples of our cap99 there; empty where not tried."""


Trials = list[tuple[Cell, list[Future[Tried]]]]

CELLS: Final = (
    Cell(scenario=equal("A", "Poisson", 760), goal=96, expected=0.94, overloaded=True),
    Cell(scenario=equal("A", "MMPP", 465), goal=96, expected=0.93),
    Cell(
        scenario=equal("A", "gamma CV 4", 285),
        goal=88,
        expected=0.91,
        noisy_goal=80,
        noisy_expected=0.84,
    ),
    Cell(scenario=equal("B", "Poisson", 2780), goal=96, expected=0.97, overloaded=True),
    Cell(scenario=equal("B", "MMPP", 1670), goal=96, expected=0.97),
    Cell(
        scenario=equal("B", "gamma CV 4", 2200),
        goal=88,
        expected=0.885,
        noisy_goal=80,
        noisy_expected=0.84,
    ),
    Cell(scenario=equal("C", "Poisson", 224), goal=96, expected=0.974, overloaded=True),
    Cell(scenario=equal("C", "MMPP", 139), goal=96, expected=0.97),
    Cell(scenario=equal("C", "gamma CV 4", 40), goal=88, expected=0.95),
    Cell(scenario=equal("E", "Poisson", 950), goal=96, expected=0.98, overloaded=True),
    Cell(scenario=equal("E", "MMPP", 670), goal=96, expected=0.99),
    Cell(scenario=equal("E", "gamma CV 4", 910), goal=88, expected=0.96),
    Cell(
        scenario=equal("D", "Poisson", 312),
        goal=82,
        expected=0.838,
        noisy_goal=75,
        noisy_expected=0.73,
    ),
    Cell(
        scenario=equal("D", "MMPP", 193),
        goal=82,
        expected=0.838,
        noisy_goal=75,
        noisy_expected=0.73,
    ),
)


def submit(executor: Executor, plan: Plan) -> Trials:
    """Have all cells tried with all seeds."""
    return [
        (cell, [executor.submit(try_cell, cell, seed, plan) for seed in plan.seeds])
        for cell in CELLS
    ]


def try_cell(cell: Cell, seed: int, plan: Plan) -> Tried:
    """Numerator and denominator on the same arrivals, only sped up."""
    scenario = cell.scenario
    bound = clairvoyant_cap99(scenario, seed, plan)
    best = our_cap99(scenario, seed, plan, bound * cell.expected)
    loads = {1.0: best.verdict}
    if cell.overloaded:
        loads |= {x: served(scenario, seed, plan.requests, x * best.rate) for x in OVERLOADS}
    noisy, noisy_loads = None, {}
    if cell.noisy_goal is not None:
        noisy_scenario = replace(scenario, disturbances=NOISE)
        noisy = our_cap99(noisy_scenario, seed, plan, bound * cell.noisy_expected)
        noisy_loads = {1.0: noisy.verdict} | {
            x: served(noisy_scenario, seed, plan.requests, x * noisy.rate) for x in OVERLOADS
        }
    return Tried(
        share=100 * best.rate / bound,
        noisy_share=None if noisy is None else 100 * noisy.rate / bound,
        loads=loads,
        noisy_loads=noisy_loads,
    )


def report(trials: Trials) -> list[Figure]:
    """The rows without noise, then those with it."""
    figures: list[Figure] = []
    for cell, futures in trials:
        shares = [future.result().share for future in futures]
        name = f"{cell.scenario.name}: of the clairvoyant's cap99"
        figures += over_seeds(name, shares, "%", at_least, cell.goal)
    for cell, futures in trials:
        if cell.noisy_goal is not None:
            name = f"{cell.scenario.name}, 5 % noise: of the clairvoyant's cap99"
            figures += over_seeds(name, _noisy(futures), "%", at_least, cell.noisy_goal)
    return figures


def _noisy(futures: Sequence[Future[Tried]]) -> list[float]:
    shares = (future.result().noisy_share for future in futures)
    return [share for share in shares if share is not None]
