"""More than can be served: what is still served, what is late all the same, and who goes without.

Works on the runs that the rows of capacity have made at multiples of our own cap99.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final

from bench_report import Figure, at_least, at_most
from scheduling_bench import equal_lengths, mixed_lengths
from scheduling_bench.equal_lengths import OVERLOADS
from scheduling_bench.summaries import over_seeds
from scheduling_bench.verdicts import Verdict

_KEPT: Final = 95.0  # percent of the goodput at cap99
_NO_DECLINE: Final = 98.0  # percent; what finite runs differ by is no decline
_LATE: Final = 0.5  # percent of those admitted
_FAIR: Final = 0.5
_FAIR_AT: Final = 2.0

_Loads = Mapping[float, Verdict]


def report(equal: equal_lengths.Trials, mixed: mixed_lengths.Trials) -> list[Figure]:
    """Goodput, lateness and fairness."""
    runs = _runs(equal, mixed)
    overloaded = {name: seeds for name, seeds in runs.items() if OVERLOADS[-1] in seeds[0]}
    high, highest = OVERLOADS
    return [
        *_goodput(f"goodput at {high:g}x, of that at cap99", overloaded, high, 1.0, _KEPT),
        *_goodput(f"goodput at {highest:g}x, of that at cap99", overloaded, highest, 1.0, _KEPT),
        *_goodput(
            f"goodput at {highest:g}x, of that at {high:g}x",
            overloaded,
            highest,
            high,
            _NO_DECLINE,
        ),
        *_late(equal, runs),
        *_fairness(runs),
    ]


def _runs(equal: equal_lengths.Trials, mixed: mixed_lengths.Trials) -> dict[str, Sequence[_Loads]]:
    """By scenario, the runs of each seed by multiples of cap99."""
    runs: dict[str, Sequence[_Loads]] = {}
    for cell, futures in equal:
        runs[cell.scenario.name] = [future.result().loads for future in futures]
    for mixed_cell, mixed_futures in mixed:
        runs[mixed_cell.scenario.name] = [future.result().loads for future in mixed_futures]
    return runs


def _goodput(
    name: str, runs: Mapping[str, Sequence[_Loads]], load: float, against: float, bound: float
) -> list[Figure]:
    """The worst scenario, held against the bound, and then each of them."""
    shares = {
        scenario: [100 * seed[load].whole.goodput / seed[against].whole.goodput for seed in seeds]
        for scenario, seeds in runs.items()
    }
    worst = min(fmean(values) for values in shares.values())
    figures = [at_least(f"{name}, worst scenario", worst, "%", bound)]
    for scenario, values in shares.items():
        figures += over_seeds(f"  {scenario}", values, "%")
    return figures


def _late(equal: equal_lengths.Trials, runs: Mapping[str, Sequence[_Loads]]) -> list[Figure]:
    """The worst single run of all, not a mean."""
    quiet = (seed for seeds in runs.values() for seed in seeds)
    exact = [verdict for seed in quiet for verdict in seed.values()]
    noisy = [future.result().noisy_loads for _, futures in equal for future in futures]
    name = "late after admission, worst run at cap99, 1.5x, 2x, 3x"
    return [
        at_most(name, _latest(exact), "%", _LATE),
        *(
            Figure(
                name=f"late after admission, worst run at {_named(load)}, 5 % noise, no goal",
                value=_latest(loads[load] for loads in noisy if loads),
                unit="%",
            )
            for load in (1.0, *OVERLOADS)
        ),
    ]


def _named(load: float) -> str:
    return "cap99" if load == 1.0 else f"{load:g}x"


def _latest(verdicts: Iterable[Verdict]) -> float:
    return 100 * max(verdict.late_after_admission_share for verdict in verdicts)


def _fairness(runs: Mapping[str, Sequence[_Loads]]) -> list[Figure]:
    figures: list[Figure] = []
    for scenario, seeds in runs.items():
        if _FAIR_AT in seeds[0]:
            name = f"{scenario} at {_FAIR_AT:g}x: on time, worst to best length bucket"
            ratios = [seed[_FAIR_AT].worst_to_best_length for seed in seeds]
            figures += over_seeds(name, ratios, "", at_least, _FAIR)
    return figures
