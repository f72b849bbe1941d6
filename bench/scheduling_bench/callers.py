"""Callers who are not all alike: priorities, and deadlines of their own beside patient ones.

Reported without goals. Scenario A's device, everything at its exact times.
"""

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Final

from batchedmodel_cli.simulator.engine import NANOSECONDS, Request, simulate
from batchedmodel_cli.simulator.workload import requests as patient_requests
from batchedmodel_cli.simulator.workload import stream
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_scheduling.batching.policies import new_policy
from batchedmodel_scheduling.queue.items import Priority
from bench_report import Figure
from scheduling_bench.affine import profile_of
from scheduling_bench.bursts import Clumps
from scheduling_bench.scenarios import CAP99_OF_A, MAX_ROWS, Plan, equal
from scheduling_bench.summaries import over_seeds
from scheduling_bench.trials import judged, ours, plant_of, requests_of

_A: Final = equal("A", "Poisson", CAP99_OF_A)
_OVERLOAD: Final = 1.5
_MIX: Final = {Priority.HIGH: 0.2, Priority.NORMAL: 0.6, Priority.LOW: 0.2}

_CLUMPS: Final = Clumps(mean_size=20, spread_seconds=0.001)
_LOAD: Final = 0.5  # of cap99: nobody need be refused for lack of capacity
_HURRIED_SHARE: Final = 0.1
_HURRY: Final = round(0.06 * NANOSECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hurried:
    """What became of the callers with a short deadline, as shares of them."""

    refused: float
    in_time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """By seed."""

    priorities: list[Future[dict[Priority, float]]]
    """The part in time of each priority."""
    hurried: list[Future[Hurried]]


def submit(executor: Executor, plan: Plan) -> Trials:
    """Have all rows tried with all seeds."""
    return Trials(
        priorities=[executor.submit(in_time_by_priority, seed, plan) for seed in plan.seeds],
        hurried=[executor.submit(hurried, seed, plan) for seed in plan.seeds],
    )


def in_time_by_priority(seed: int, plan: Plan) -> dict[Priority, float]:
    """The part in time of each priority when half as much again is offered as can be served."""
    plain = requests_of(_A, seed, plan.requests, _OVERLOAD * CAP99_OF_A)
    drawn = stream(seed, "priorities").choice(list(_MIX), len(plain), p=list(_MIX.values()))
    requests = [
        replace(request, priority=Priority(int(priority)))
        for request, priority in zip(plain, drawn, strict=True)
    ]
    found = judged(_A, requests, ours(_A), plant_of(_A, seed))
    return found.by_priority


def hurried(seed: int, plan: Plan) -> Hurried:
    """A tenth of the callers wait for 60 ms at most, the others for the usual time-out.

    No target is set, and callers come in groups.
    """
    settings = BatchSettings(max_batch_size=MAX_ROWS)
    times = _CLUMPS.times(plan.requests, _LOAD * CAP99_OF_A, stream(seed, "arrivals"))
    patience = settings.request_timeout_seconds
    requests = patient_requests(times, [1] * len(times), patience)
    short = (stream(seed, "deadlines").random(len(times)) < _HURRIED_SHARE).nonzero()[0].tolist()
    for n in short:
        until = requests[n].at + _HURRY
        requests[n] = replace(requests[n], due=until, deadline=until)
    return _served(settings, seed, requests, short)


def _served(
    settings: BatchSettings, seed: int, requests: Sequence[Request], judge: Sequence[int]
) -> Hurried:
    profile = profile_of(
        _A.curve, max_rows=MAX_ROWS, lengths=_A.profiled_lengths, cost_rule=_A.curve.rule
    )
    run = simulate(requests, [(new_policy(settings, profile), plant_of(_A, seed))])
    refused = sum(isinstance(run.ended[n], Rejection) for n in judge)
    in_time = sum(0 <= run.finished[n] <= requests[n].due for n in judge)
    return Hurried(refused=refused / len(judge), in_time=in_time / len(judge))


def report(trials: Trials) -> list[Figure]:
    """The part in time by priority; then of the hurried, refused and in time."""
    figures: list[Figure] = []
    shares = [future.result() for future in trials.priorities]
    for priority in _MIX:
        name = f"{_A.name} at {_OVERLOAD:g}x, mixed priorities: {priority.name.lower()} in time"
        figures += over_seeds(name, [100 * seed[priority] for seed in shares], "%")
    found = [future.result() for future in trials.hurried]
    name = "A clumps of 20 at 50 %, no target: callers with 60 ms among patient ones"
    figures += over_seeds(f"{name}, refused", [100 * seed.refused for seed in found], "%")
    figures += over_seeds(f"{name}, in time", [100 * seed.in_time for seed in found], "%")
    return figures
