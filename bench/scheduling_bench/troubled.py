"""Plateaus, noise, stragglers and a device that becomes slower, all at once and with tight targets.

Each by itself costs little; together they mislead what learns its times. Ours by a whole profile, a
partial one and none, against a plain planner that learns its times as well. All meet the same
requests; what counts is as in `unseen_trials`.
"""

from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Final

from batchedmodel_cli.simulator.engine import simulate
from batchedmodel_contract.inference.profile import ProfileExtent
from batchedmodel_contract.manifest.batching import Objective
from batchedmodel_scheduling.batching.decisions import Policy
from bench_report import Figure, at_least
from rival_policies.learning import Learning
from scheduling_bench.scenarios import Plan
from scheduling_bench.unseen import troubled
from scheduling_bench.unseen_trials import (
    ours,
    plant_of,
    requests_of,
    served,
    settings_of,
    without_profile,
)

JUDGED: Final = tuple(range(5701, 5713))
"""Seeds of the devices that are reported; 5501 to 5512 and 5601 to 5612 were tuned on."""
_QUICK: Final = 2
_TARGETS: Final = 120
"""A run lasts for so many: a slow device has learnt nothing in fewer."""
_MOST: Final = 40_000  # requests
_WANTED: Final = 95.0  # percent

Shares = dict[ProfileExtent, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """By device."""

    shares: list[Future[Shares]]


def submit(executor: Executor, plan: Plan, *, quick: bool) -> Trials:
    """Have all devices tried."""
    seeds = JUDGED[:_QUICK] if quick else JUDGED
    least = plan.requests // 2
    return Trials(shares=[executor.submit(of_rival, seed, least) for seed in seeds])


def of_rival(seed: int, least: int) -> Shares:
    """Rows in time, in percent of the rival's, by how much of the device was measured."""
    row = troubled(seed)
    count = min(_MOST, max(least, round(_TARGETS * row.target_seconds * row.rate)))
    requests = requests_of(row, seed, count)
    mine = {
        ProfileExtent.WHOLE: ours(row, seed, Objective.ROWS),
        ProfileExtent.PARTIAL: ours(row, seed, Objective.ROWS, partial=True),
        ProfileExtent.ABSENT: without_profile(row),
    }
    rival = Learning(settings_of(row, wait=0.0), target=row.target_seconds)

    def in_time(policy: Policy) -> float:
        run = simulate(requests, [(policy, plant_of(row, seed, count))])
        return served(row, requests, run).rows

    best = max(1e-3, in_time(rival))
    return {extent: 100 * in_time(policy) / best for extent, policy in mine.items()}


def report(trials: Trials) -> list[Figure]:
    """The worst device and the mean over all."""
    found = [future.result() for future in trials.shares]
    figures: list[Figure] = []
    for extent in ProfileExtent:
        shares = [one[extent] for one in found]
        name = f"all troubles at once, {extent} profile: in time, of a plain planner that learns"
        figures += [
            at_least(f"{name}, worst device", min(shares), "%", _WANTED),
            Figure(name=f"{name}, mean", value=sum(shares) / len(shares), unit="%"),
        ]
    return figures
