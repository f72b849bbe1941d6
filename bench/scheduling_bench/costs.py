"""What deciding costs on this machine: the only figures of the benchmark that depend on a clock.

Run alone, after everything else. The queue is kept long by more requests than can be served, so
that every decision is one under pressure: the very thing that takes longest.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from batchedmodel_cli.simulator.engine import simulate
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import HoldReason
from batchedmodel_scheduling.batching.decisions import Decision, Event, Policy, Slots
from batchedmodel_scheduling.queue.items import Item, ItemId, Refusal
from bench_report import Figure, at_most
from scheduling_bench.scenarios import Plan, mixed
from scheduling_bench.trials import ours, plant_of, requests_of

Clock = Callable[[], float]

_MIXED: Final = mixed(50, "Poisson", 500)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """About so many wait, since `rate` requests a second are far beyond what can be served."""

    waiting: int
    target_seconds: float
    rate: float
    packed: bool = False
    tenants: bool = False
    """Whether each item has a tenant and a key of its own."""

    def __str__(self) -> str:
        kind = ", packed" if self.packed else ", each of its own tenant and key"
        return f"{self.waiting:,} waiting{kind if self.packed or self.tenants else ''}"


QUEUES: Final = (
    Queue(waiting=10, target_seconds=0.02, rate=800.0),
    Queue(waiting=80, target_seconds=0.11, rate=1500.0),
    Queue(waiting=160, target_seconds=0.2, rate=1500.0),
    Queue(waiting=1000, target_seconds=0.9, rate=1500.0),
    Queue(waiting=1000, target_seconds=0.45, rate=3000.0, packed=True),
    Queue(waiting=1000, target_seconds=8.0, rate=300.0, tenants=True),
)
_NEAR: Final = 0.25  # a queue may be that much longer or shorter to count
_REQUESTS: Final = 5000
_REQUESTS_PER_WAITING: Final = 16
_REPEATS: Final = 2
_UNPLANNED: Final = (HoldReason.BUSY, HoldReason.EMPTY)
_SIMULATED: Final = 100_000
_P50_MICROSECONDS: Final = 100.0
_P99_MICROSECONDS: Final = 300.0
_OFFER_MICROSECONDS: Final = 10.0
_SIMULATED_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Seconds of single calls; decisions are the polls for which something had to be planned."""

    decisions: list[float]
    polls: list[float]
    offers: list[float]


class Timed:
    """A policy that is timed while about `waiting` items wait."""

    def __init__(
        self, policy: Policy, waiting: int, clock: Clock, *, tenants: bool = False
    ) -> None:
        self.durations: Final = Durations(decisions=[], polls=[], offers=[])
        self._policy = policy
        self._bounds = ((1 - _NEAR) * waiting, (1 + _NEAR) * waiting)
        self._clock = clock
        self._tenants = tenants
        self._waiting = 0

    def offer(self, item: Item, now: float) -> Refusal | None:
        """See `Policy`."""
        if self._tenants:
            item = item._replace(key=item.id, share=Share(str(item.id)))
        began = self._clock()
        refusal = self._policy.offer(item, now)
        took = self._clock() - began
        if self._counts():
            self.durations.offers.append(took)
        self._waiting += refusal is None
        return refusal

    def withdraw(self, item_id: ItemId, now: float) -> None:
        """See `Policy`."""
        raise AssertionError("nobody leaves in a simulation")

    def poll(self, now: float, slots: Slots) -> Decision:
        """See `Policy`."""
        began = self._clock()
        decision = self._policy.poll(now, slots)
        took = self._clock() - began
        if self._counts():
            self.durations.polls.append(took)
            if decision.reason not in _UNPLANNED:
                self.durations.decisions.append(took)
        self._waiting -= len(decision.shed)
        if decision.release is not None:
            self._waiting -= len(decision.release.items)
        return decision

    def observe(self, event: Event, now: float) -> None:
        """See `Policy`."""
        self._policy.observe(event, now)

    def configure(self, settings: BatchSettings, now: float) -> None:
        """See `Policy`."""
        self._policy.configure(settings, now)

    def _counts(self) -> bool:
        low, high = self._bounds
        return low <= self._waiting <= high


def durations(queue: Queue, seed: int, clock: Clock) -> Durations:
    """Time a run with such a queue.

    Each call counts with the least of several identical runs: what it costs by itself, without
    what else this machine had to do in that moment.
    """
    runs = [_timed(queue, seed, clock) for _ in range(_REPEATS)]
    return Durations(
        decisions=_least([run.decisions for run in runs]),
        polls=_least([run.polls for run in runs]),
        offers=_least([run.offers for run in runs]),
    )


def _timed(queue: Queue, seed: int, clock: Clock) -> Durations:
    traffic = mixed(50, "Poisson", 1000, packed=True) if queue.packed else _MIXED
    scenario = replace(traffic, target_seconds=queue.target_seconds)
    count = max(_REQUESTS, _REQUESTS_PER_WAITING * queue.waiting)
    timed = Timed(ours(scenario), queue.waiting, clock, tenants=queue.tenants)
    simulate(requests_of(scenario, seed, count, queue.rate), [(timed, plant_of(scenario, seed))])
    return timed.durations


def _least(runs: list[list[float]]) -> list[float]:
    least: list[float] = np.min(np.array(runs), axis=0).tolist()
    return least


def simulation_seconds(plan: Plan, clock: Clock) -> float:
    """How long it takes to simulate 100,000 requests of mixed lengths, from a part of them."""
    count = min(_SIMULATED, 10 * plan.requests)
    requests = requests_of(_MIXED, plan.seeds[0], count, _MIXED.near)
    began = clock()
    simulate(requests, [(ours(_MIXED), plant_of(_MIXED, plan.seeds[0]))])
    return (clock() - began) * _SIMULATED / count


def report(plan: Plan, clock: Clock = time.perf_counter) -> list[Figure]:
    """Decisions and offers by queue length, and the simulator itself."""
    return [
        *rows({str(queue): durations(queue, plan.seeds[0], clock) for queue in QUEUES}),
        at_most(
            "wall time per 100,000 simulated requests",
            simulation_seconds(plan, clock),
            "s",
            _SIMULATED_SECONDS,
        ),
    ]


def rows(found: Mapping[str, Durations]) -> list[Figure]:
    """Decisions by what waits, and the offers of the queue where they take longest."""
    figures: list[Figure] = []
    for queue, calls in found.items():
        name = f"wall time of a decision, {queue}"
        figures += [
            at_most(f"{name}, p50", _percentile(calls.decisions, 50), "us", _P50_MICROSECONDS),
            at_most(f"{name}, p99", _percentile(calls.decisions, 99), "us", _P99_MICROSECONDS),
            Figure(
                name=f"{name}, p50 with those that need no plan",
                value=_percentile(calls.polls, 50),
                unit="us",
            ),
        ]
    # Python's own max would pass over a NaN.
    slowest = float(np.max([_percentile(calls.offers, 50) for calls in found.values()]))
    name = "wall time of an offer, slowest p50"
    return [*figures, at_most(name, slowest, "us", _OFFER_MICROSECONDS)]


def _percentile(seconds: Sequence[float], percent: float) -> float:
    """In microseconds; NaN, which reaches no goal, where nothing was timed."""
    return 1e6 * float(np.percentile(seconds, percent)) if seconds else math.nan
