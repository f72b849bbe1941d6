"""Mixed lengths: ours against the best window per length bucket, and against the fluid bound.

The device pays rows x the longest row of the batch, unless a row says otherwise. The window that
ours is held against is the best one for each seed by itself.
"""

from collections.abc import Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Final

from batchedmodel_cli.simulator.traces import Trace
from bench_report import Figure, at_least
from scheduling_bench.fluid import highest_fluid_rate
from scheduling_bench.scenarios import MAX_ROWS, Plan, Scenario, beginning, mixed, replayed
from scheduling_bench.summaries import over_seeds
from scheduling_bench.trials import our_cap99, requests_of, served, window_cap99
from scheduling_bench.verdicts import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One row; the scenario's `near` is of the windows, `expected` how many times that is ours."""

    scenario: Scenario
    expected: float
    goal: float | None = None
    overloads: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One cell with one seed; `loads` by multiples of our own cap99."""

    ours: float
    other: float
    """The best window's cap99, or the fluid bound."""
    loads: dict[float, Verdict]


Trials = list[tuple[Cell, list[Future[Tried]]]]

AGAINST_WINDOWS: Final = (
    Cell(scenario=mixed(50, "Poisson", 310), expected=1.7, goal=1.4, overloads=(1.5, 2.0, 3.0)),
    Cell(scenario=mixed(100, "Poisson", 628), expected=1.16, goal=1.08, overloads=(2.0,)),
    Cell(scenario=mixed(50, "gamma CV 4", 36), expected=3.7, goal=3.0),
    Cell(scenario=mixed(50, "Poisson", 290, edged=True), expected=1.6),
    Cell(scenario=mixed(100, "Poisson", 590, edged=True), expected=1.16),
)
PACKED: Final = (
    Cell(scenario=mixed(50, "Poisson", 1000, packed=True), expected=1.0),
    Cell(scenario=mixed(100, "Poisson", 1150, packed=True), expected=1.0),
)
_DIVISORS: Final = {16: (825.0, 1.27, 1.2), 8: (414.0, 1.26, None), 1: (185.0, 1.18, None)}


def submit_windows(executor: Executor, plan: Plan) -> Trials:
    """Have the padded rows tried with all seeds."""
    return [
        (cell, [executor.submit(against_windows, cell, seed, plan) for seed in plan.seeds])
        for cell in AGAINST_WINDOWS
    ]


def submit_packed(executor: Executor, plan: Plan) -> Trials:
    """Have the packed rows tried with all seeds."""
    return [
        (cell, [executor.submit(against_fluid, cell, seed, plan) for seed in plan.seeds])
        for cell in PACKED
    ]


def submit_trace(executor: Executor, plan: Plan, trace: Trace) -> Trials:
    """Have the trace replayed from its beginning, as much of it as all seeds together draw.

    Nothing in it is random, so one seed says all.
    """
    part = beginning(trace, plan.requests * len(plan.seeds))
    once = Plan(seeds=plan.seeds[:1], requests=len(part.times), tolerance=plan.tolerance)
    cells = [
        Cell(scenario=replayed(part, divisor, near), expected=expected, goal=goal)
        for divisor, (near, expected, goal) in _DIVISORS.items()
    ]
    return [(cell, [executor.submit(against_windows, cell, once.seeds[0], once)]) for cell in cells]


def against_windows(cell: Cell, seed: int, plan: Plan) -> Tried:
    """Both on the same requests, only sped up."""
    scenario = cell.scenario
    windows = window_cap99(scenario, seed, plan, scenario.near)
    return _tried(cell, seed, plan, windows, windows * cell.expected)


def against_fluid(cell: Cell, seed: int, plan: Plan) -> Tried:
    """The bound is made from the very lengths that ours meets."""
    scenario = cell.scenario
    drawn = requests_of(scenario, seed, plan.requests, scenario.near)
    cycle = highest_fluid_rate(
        scenario.curve,
        [request.length for request in drawn],
        scenario.edges,
        scenario.target_seconds,
        max_rows=MAX_ROWS,
    )
    return _tried(cell, seed, plan, cycle.rate, scenario.near)


def _tried(cell: Cell, seed: int, plan: Plan, other: float, near: float) -> Tried:
    scenario = cell.scenario
    best = our_cap99(scenario, seed, plan, near)
    loads = {x: served(scenario, seed, plan.requests, x * best.rate) for x in cell.overloads}
    return Tried(ours=best.rate, other=other, loads={1.0: best.verdict, **loads})


def report_windows(trials: Trials) -> list[Figure]:
    """How many times the best window's rate ours is."""
    figures: list[Figure] = []
    for cell, futures in trials:
        gains = [tried.ours / tried.other for tried in _results(futures)]
        name = f"{cell.scenario.name}: cap99 of the best window"
        if cell.goal is None:
            figures += over_seeds(name, gains, "x")
        else:
            figures += over_seeds(name, gains, "x", at_least, cell.goal)
    return figures


def report_packed(trials: Trials) -> list[Figure]:
    """Ours as a share of the fluid bound."""
    figures: list[Figure] = []
    for cell, futures in trials:
        shares = [100 * tried.ours / tried.other for tried in _results(futures)]
        figures += over_seeds(f"{cell.scenario.name}: of the fluid bound", shares, "%")
    return figures


def _results(futures: Iterable[Future[Tried]]) -> list[Tried]:
    return [future.result() for future in futures]
