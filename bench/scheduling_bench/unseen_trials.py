"""Ours against its rivals on devices and traffic that it was not tuned on.

Ours knows what the warm-up would have measured; every rival knows all times exactly. All meet the
same requests. What counts is what is in time after the first third of them, in which ours may
learn: rows, or the work that they are. Batches leave when the device is free, so that nothing but
the choice of batches differs.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from batchedmodel_cli.simulator.engine import NANOSECONDS, Request, Run, simulate
from batchedmodel_cli.simulator.traces import Trace
from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness, Objective
from batchedmodel_scheduling.batching.decisions import Policy
from batchedmodel_scheduling.batching.policies import new_policy
from bench_report import Figure, at_least, at_most
from rival_policies.bucket_window import BucketWindow
from rival_policies.clockwork import Clockwork
from rival_policies.nexus import Nexus
from rival_policies.receding import Receding
from rival_policies.tei import Tei
from scheduling_bench.affine import profile_of
from scheduling_bench.devices import warmed_up
from scheduling_bench.oracle import least_dropped, machine
from scheduling_bench.plants import DisturbedPlant
from scheduling_bench.scenarios import EDGES, Plan
from scheduling_bench.summaries import half_width, over_seeds
from scheduling_bench.unseen import LONGEST, Unseen, drawn, steady, written_down
from scheduling_bench.workload import Workload

JUDGED: Final = tuple(range(5401, 5417))
"""Seeds of the drawn rows that are reported; 4001 to 4048 and 5301 to 5316 were tuned on."""
_QUICK_ROWS: Final = 1
_TOLD: Final = "told"
_CLAIRVOYANT: Final = "clairvoyant"
_FEW: Final = "few points"
_TOLD_LATER: Final = "told, later"
_NO_RIVALS: Final = {_TOLD, _CLAIRVOYANT, _FEW, _TOLD_LATER}
_LEARNT_BATCHES: Final = 300
"""After which the policy that knew few points is judged, by requests that come from then on."""
_LEARNING: Final = 16  # times the least number of requests, for as many batches
_OF_TOLD_BY_FEW: Final = 90.0  # percent
_KNOWN: Final = 1000
"""Of so many requests, all of one length, the best of all schedules is found."""
_OURS: Final = {"rows": "ours", "work": "ours by work"}
"""With the objective that each measure is of."""
_QUEUE: Final = 1_000_000
_TARGETS: Final = 30
"""A run lasts for so many targets, within a few times the number of requests of the plan."""
_MORE: Final = 8
_PART: Final = 4  # of the plan's requests are the least
_WORSE: Final = 1.0  # percent: a rival may be that much better
_OF_TOLD: Final = 97.0  # percent
_RECOVERS: Final = 5.0  # seconds
_NEAR: Final = 0.97
_WINDOW: Final = 0.5  # seconds
_SMOOTHED: Final = 3  # windows: what is served in one of them is chance
_RECOVERY: Final = 8.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """In time, as parts of what was offered."""

    rows: float
    work: float
    """Of what the rows cost in full batches of their like."""
    first: float
    """Of the first thousand rows that count."""


Tried = Mapping[str, Served]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """By row and by seed."""

    rows: list[tuple[Unseen, list[Future[Tried]]]]
    recoveries: list[Future[float]]


def submit(executor: Executor, plan: Plan, trace: Trace, *, quick: bool) -> Trials:
    """Have all rows tried with all seeds."""
    rows = [*written_down(trace), *(drawn(seed, trace) for seed in JUDGED)]
    if quick:
        rows = rows[:_QUICK_ROWS] + rows[-_QUICK_ROWS:]
    least = plan.requests // _PART
    return Trials(
        rows=[
            (row, [executor.submit(try_row, row, seed, least) for seed in plan.seeds])
            for row in rows
        ],
        recoveries=[executor.submit(recovery, seed) for seed in plan.seeds],
    )


def try_row(row: Unseen, seed: int, least: int) -> Tried:
    """What each policy has in time of the same requests, of which there are so many at least."""
    count = max(least, min(_MORE * least, round(_TARGETS * row.target_seconds * row.rate)))
    requests = requests_of(row, seed, count)
    policies = {_OURS["rows"]: ours(row, seed, Objective.ROWS)} | rivals(row)
    if row.rule is not CostRule.ROWS:
        policies[_OURS["work"]] = ours(row, seed, Objective.WORK)
    if row.stepped and row.rule is CostRule.ROWS and not row.slows_down:
        policies[_TOLD] = told(row)
    runs = {
        name: simulate(requests, [(policy, plant_of(row, seed, count))])
        for name, policy in policies.items()
    }
    tried = {name: served(row, requests, run) for name, run in runs.items()}
    if _TOLD in runs:
        tried |= by_few_points(row, seed, _LEARNING * least)
    if row.rule is CostRule.ROWS and not row.slows_down:
        tried[_CLAIRVOYANT] = clairvoyant(row, requests)
    return tried


def by_few_points(row: Unseen, seed: int, count: int) -> Tried:
    """Ours by a partial profile, once it has learnt, and the same requests by what is told all."""
    requests = requests_of(row, seed, count)
    few = ours(row, seed, Objective.ROWS, partial=True)
    mine = simulate(requests, [(few, plant_of(row, seed, count))])
    best = simulate(requests, [(told(row), plant_of(row, seed, count))])
    first = _after(_LEARNT_BATCHES, requests, mine)
    return {
        _FEW: served(row, requests, mine, first),
        _TOLD_LATER: served(row, requests, best, first),
    }


def clairvoyant(row: Unseen, requests: Sequence[Request]) -> Served:
    """What the best schedule has of the first that count, on the device without its noise.

    It has nothing else to do, so that nobody can have more.
    """
    first = requests[_from(requests) :][:_KNOWN]
    dropped = least_dropped(first, machine(row.curve, max_rows=row.max_rows))
    assert dropped is not None, "any number may be dropped"
    share = 1 - dropped / len(first)
    return Served(rows=share, work=share, first=share)


def requests_of(row: Unseen, seed: int, count: int) -> list[Request]:
    """What everybody meets; late answers are of no use."""
    workload = Workload(
        arrivals=row.arrivals,
        lengths=row.lengths,
        target_seconds=row.target_seconds,
        refuse=True,
    )
    return workload.draw(seed, count, row.rate)


def plant_of(row: Unseen, seed: int, count: int) -> DisturbedPlant:
    """The row's device."""
    return DisturbedPlant(curve=row.curve, disturbances=row.disturbances(count), seed=seed)


def ours(
    row: Unseen, seed: int, objective: Objective = Objective.WORK, *, partial: bool = False
) -> Policy:
    """The product's policy with what would have been measured; `partial`: before it is ready."""
    profile = warmed_up(
        row.curve,
        row.rule,
        max_rows=row.max_rows,
        longest=LONGEST,
        noise=row.noise,
        seed=seed,
        partial=partial,
    )
    return _with(row, profile, objective)


def without_profile(row: Unseen) -> Policy:
    """The product's policy for a server that measured nothing."""
    return _with(row, None, Objective.ROWS)


def told(row: Unseen, factor: float = 1.0) -> Policy:
    """The product's policy with the exact time of every number of rows, so many times as long."""
    exact = profile_of(row.curve, max_rows=row.max_rows, lengths=(1,), cost_rule=row.rule)
    points = tuple(
        replace(exact.points[0], rows=rows, seconds=factor * row.curve.seconds([1] * rows))
        for rows in range(1, row.max_rows + 1)
    )
    return _with(row, replace(exact, points=points), Objective.ROWS)


def _with(row: Unseen, profile: Profile | None, objective: Objective) -> Policy:
    settings = replace(settings_of(row), length_buckets=(), objective=objective)
    return new_policy(settings, profile)


def settings_of(row: Unseen, wait: float = 0.25) -> BatchSettings:
    """What a user would set; the longest wait is a part of the target."""
    return BatchSettings(
        max_batch_size=row.max_rows,
        max_wait_seconds=wait * row.target_seconds,
        target_seconds=row.target_seconds,
        lateness=Lateness.REFUSE,
        max_queue_size=_QUEUE,
        request_timeout_seconds=30.0 + row.target_seconds,
        length_buckets=EDGES,
    )


def rivals(row: Unseen) -> dict[str, Policy]:
    """Each with the exact times of the device as it is in the beginning."""
    seconds, target = row.curve.seconds, row.target_seconds
    padded = row.rule is not CostRule.PACKED
    usual = sorted(row.lengths.draw(1001, np.random.default_rng(0)))[500]
    planner = partial(Receding, seconds=seconds, target=target, padded=padded)
    greedy, window = settings_of(row, wait=0.0), settings_of(row, wait=0.1)
    return {
        "greedy": BucketWindow(replace(greedy, length_buckets=()), drop_expired=True),
        "window": BucketWindow(window, drop_expired=True),
        "nexus": Nexus(greedy, seconds, target=target, length=usual),
        "clockwork": Clockwork(greedy, seconds),
        "tei": Tei(greedy, budget=_budget(row), padded=padded, drop_expired=True),
        "plan for rows": planner(greedy, worth=lambda length: 1.0),
        "plan for work": planner(greedy, worth=partial(cost, row)),
    }


def _budget(row: Unseen) -> int:
    """Tokens of the largest batch of which two fit into the target, at least the longest row."""
    longest = 1 if row.rule is CostRule.ROWS else LONGEST
    rows = range(1, row.max_rows + 1)
    fits = [n for n in rows if 2 * row.curve.seconds([longest] * n) <= row.target_seconds]
    return longest * max(fits, default=1)


def cost(row: Unseen, length: int) -> float:
    """Seconds of a row in a full batch of such rows."""
    return row.curve.seconds([length] * row.max_rows) / row.max_rows


def served(row: Unseen, requests: Sequence[Request], run: Run, first: int | None = None) -> Served:
    """What was in time of the requests from this one on, by default after the first third."""
    first = _from(requests) if first is None else first
    judged = requests[first:]
    costs = {length: cost(row, length) for length in {one.length for one in judged}}
    in_time = [0 <= at <= one.due for one, at in zip(judged, run.finished[first:], strict=True)]
    hits = sum(costs[one.length] for one, hit in zip(judged, in_time, strict=True) if hit)
    offered = sum(costs[one.length] for one in judged)
    return Served(
        rows=sum(in_time) / len(judged),
        work=hits / offered,
        first=sum(in_time[:_KNOWN]) / len(in_time[:_KNOWN]),
    )


def _from(requests: Sequence[Request]) -> int:
    """The first request that counts."""
    return len(requests) // 3


def _after(batches: int, requests: Sequence[Request], run: Run) -> int:
    """The first request that comes behind so many batches, or behind half of the requests."""
    left = sorted(at for at in run.released if at >= 0)
    rows = min(sum(run.batches[:batches]), len(left))
    first = next((n for n, one in enumerate(requests) if one.at > left[rows - 1]), len(requests))
    return min(first, len(requests) // 2)


def recovery(seed: int) -> float:
    """Seconds from when a device becomes slower until ours serves as if it had been told."""
    row = steady()
    rate = row.rate
    count = round(2 * _RECOVERY * rate)
    requests = requests_of(row, seed, count)
    change = round(_RECOVERY * NANOSECONDS)
    plants = [plant_of(row, seed, count) for _ in range(2)]
    mine = simulate(requests, [(ours(row, seed), plants[0])])
    best = simulate(requests, [(told(row, 1.4), plants[1])])
    width = round(_WINDOW * NANOSECONDS)
    bins = round(_RECOVERY / _WINDOW)

    def in_time(run: Run) -> list[int]:
        found = [0] * bins
        for one, at in zip(requests, run.finished, strict=True):
            if one.at >= change and 0 <= at <= one.due:
                found[min(bins - 1, (one.at - change) // width)] += 1
        return found

    shares = [a / max(1, b) for a, b in zip(in_time(mine), in_time(best), strict=True)]
    behind = [n for n in range(bins) if np.mean(shares[n : n + _SMOOTHED]) < _NEAR]
    return _WINDOW * (behind[-1] + 1 if behind else 0)


def report(trials: Trials) -> list[Figure]:
    """Each row by rows and by work, then what was learnt and how fast."""
    figures: list[Figure] = []
    learnt: list[float] = []
    measures: list[Mapping[str, float]] = []
    of_best: list[Mapping[str, float]] = []
    for row, futures in trials.rows:
        tried = [future.result() for future in futures]
        figures.append(_against_rivals(row, tried, "rows", lambda one: one.rows))
        if row.rule is not CostRule.ROWS:
            figures.append(_against_rivals(row, tried, "work", lambda one: one.work))
        measures += _measures(row, tried)
        of_best += [_of_best(one) for one in tried if _CLAIRVOYANT in one]
        mine = _OURS["rows"]
        learnt += [100 * one[mine].rows / one[_TOLD].rows for one in tried if _TOLD in one]
    figures += _means("mean over all measures: in time", measures)
    figures += _means("mean over equal rows: in time, of the best schedule's", of_best)
    if learnt:
        name = "stepped devices: in time, of what the same policy has that was told everything"
        figures += over_seeds(name, learnt, "%", at_least, _OF_TOLD)
    later = [
        100 * one[_FEW].rows / one[_TOLD_LATER].rows
        for _, futures in trials.rows
        for one in (future.result() for future in futures)
        if _FEW in one
    ]
    if later:
        name = (
            "stepped devices by a partial profile, after 300 batches: in time, of told everything's"
        )
        figures += over_seeds(name, later, "%", at_least, _OF_TOLD_BY_FEW)
    recoveries = [future.result() for future in trials.recoveries]
    name = "a device that becomes 1.4 times as slow: until as good as told, within 3 %"
    return [*figures, *over_seeds(name, recoveries, "s", at_most, _RECOVERS)]


def _measures(row: Unseen, tried: Sequence[Tried]) -> list[dict[str, float]]:
    """By policy what was in time, by rows and, where lengths differ, by work; over all seeds."""
    by_rows, by_work = _OURS["rows"], _OURS["work"]
    names = tried[0].keys() - {*_NO_RIVALS, by_work}
    found = [{name: float(np.mean([one[name].rows for one in tried])) for name in names}]
    if by_work in tried[0]:
        others = {name: name for name in names - {by_rows}} | {by_rows: by_work}
        found.append(
            {name: float(np.mean([one[of].work for one in tried])) for name, of in others.items()}
        )
    return found


def _of_best(one: Tried) -> dict[str, float]:
    names = one.keys() - _NO_RIVALS
    return {name: one[name].first / one[_CLAIRVOYANT].first for name in names}


def _means(name: str, found: Sequence[Mapping[str, float]]) -> list[Figure]:
    """Ours, and the rival that is best over all of them."""
    if not found:
        return []
    mean = {policy: 100 * float(np.mean([one[policy] for one in found])) for policy in found[0]}
    mine = mean.pop(_OURS["rows"])
    rival = max(mean, key=lambda policy: mean[policy])
    return [
        Figure(name=f"{name}, ours", value=mine, unit="%"),
        Figure(name=f"{name}, {rival}", value=mean[rival], unit="%"),
    ]


def _against_rivals(
    row: Unseen, tried: Sequence[Tried], unit: str, of: Callable[[Served], float]
) -> Figure:
    """By how many percent the best rival is surely ahead: below 0 where ours is."""
    surely: dict[str, float] = {}
    mine = _OURS[unit]
    for name in tried[0].keys() - {*_OURS.values(), *_NO_RIVALS}:
        ahead = [100 * (of(one[name]) / max(1e-9, of(one[mine])) - 1) for one in tried]
        surely[name] = float(np.mean(ahead)) - half_width(ahead)
    best = max(surely, key=lambda name: surely[name])
    share = float(np.mean([of(one[mine]) for one in tried]))
    told_name = f"{row.name}: {unit} in time {share:.1%}, {best} surely ahead by"
    return at_most(told_name, surely[best], "%", _WORSE)
