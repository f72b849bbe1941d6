"""Batches of rows with many adapters, simulated: what it is worth to choose them by adapter.

A hundred adapters share eight slots; the n-th is asked for by n^-1.1 (Zipf). The device copies an
adapter into a slot before the pass that needs it, and runs a batch of more adapters than slots in
several passes. First come first served is the policy `greedy`, which knows nothing of adapters;
`deadline` is shown as well with that knowledge taken away, so that one sees what it alone brings.

Called by `adapters`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from batchedmodel_cli.simulator.arrivals import Poisson
from batchedmodel_cli.simulator.engine import NANOSECONDS, Plant, Request, simulate
from batchedmodel_cli.simulator.search import highest_rate
from batchedmodel_cli.simulator.workload import Constant, stream
from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_scheduling.batching.policies import new_policy
from batchedmodel_scheduling.lora.passes import passes
from batchedmodel_scheduling.lora.slots import AdapterSlots
from batchedmodel_scheduling.queue.items import Item
from bench_report import Figure, at_least
from scheduling_bench.affine import Affine, profile_of
from scheduling_bench.workload import Workload

ADAPTERS: Final = 100
SLOTS: Final = 8
SKEW: Final = 1.1
ROWS: Final = 32
TARGET_SECONDS: Final = 0.1
COPY_SECONDS: Final = 0.001
IN_TIME: Final = 0.99
"""Of all rows, at the rate that is looked for."""
FEW: Final = 20
"""An adapter with fewer rows says nothing of how it fares."""
LEAST: Final = 1.3
CURVE: Final = Affine(fixed=0.004, per_row=0.00025, rule=CostRule.ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A policy, and whether it knows of adapters."""

    name: str
    policy: PolicyName
    knows: bool


FIRST_COME: Final = Way(name="first come first served", policy=PolicyName.GREEDY, knows=False)
UNAWARE: Final = Way(name="deadline without it", policy=PolicyName.DEADLINE, knows=False)
OURS: Final = Way(name="deadline", policy=PolicyName.DEADLINE, knows=True)


@dataclass(slots=True, kw_only=True)
class SlottedPlant(Plant):
    """A device that copies an adapter into a slot before the pass that needs it."""

    adapters: AdapterSlots = field(default_factory=lambda: AdapterSlots(SLOTS))

    def duration(self, items: Sequence[Item], now: int) -> int:
        """Of all passes: more adapters than slots take several, and each copy takes time."""
        numbers, took = [item.adapter for item in items], 0
        for rows in passes(numbers, SLOTS, self.adapters.resident):
            placed = self.adapters.place({numbers[row] for row in rows} - {0})
            took += len(placed.copies) * round(COPY_SECONDS * NANOSECONDS)
            took += Plant.duration(self, [items[row] for row in rows], now + took)
        return took


def drawn(seed: int, count: int, rate: float) -> list[Request]:
    """Requests whose adapters are drawn by Zipf, in an order of popularity drawn once."""
    workload = Workload(
        arrivals=Poisson(), lengths=Constant(), target_seconds=TARGET_SECONDS, refuse=False
    )
    random = stream(seed, "adapters")
    weights = np.arange(1, ADAPTERS + 1) ** -SKEW
    names = random.permutation(ADAPTERS) + 1
    chosen = names[random.choice(ADAPTERS, size=count, p=weights / weights.sum())].tolist()
    requests = workload.draw(seed, count, rate)
    return [replace(one, adapter=adapter) for one, adapter in zip(requests, chosen, strict=True)]


def in_time(way: Way, requests: list[Request]) -> tuple[float, float]:
    """The share of rows that are in time, and that of the adapter that fares worst."""
    settings = BatchSettings(
        policy=way.policy,
        max_batch_size=ROWS,
        max_wait_seconds=0.005,
        target_seconds=TARGET_SECONDS,
        max_queue_size=100_000,
        request_timeout_seconds=30.0,
    )
    profile = profile_of(CURVE, max_rows=ROWS, lengths=[1], cost_rule=CostRule.ROWS)
    policy = new_policy(settings, profile, adapter_slots=SLOTS if way.knows else 0)
    run = simulate(requests, [(policy, SlottedPlant(curve=CURVE, depth=2))])
    rows: dict[int, int] = {}
    good: dict[int, int] = {}
    for request, finished in zip(requests, run.finished, strict=True):
        rows[request.adapter] = rows.get(request.adapter, 0) + 1
        hit = 0 <= finished <= request.due
        good[request.adapter] = good.get(request.adapter, 0) + hit
    worst = min(good[one] / count for one, count in rows.items() if count >= FEW)
    return sum(good.values()) / len(requests), worst


def served_rate(way: Way, seed: int, count: int) -> float:
    """Rows per second of which enough are in time."""

    def holds(rate: float) -> bool:
        return in_time(way, drawn(seed, count, rate))[0] >= IN_TIME

    return highest_rate(holds, 800.0, tolerance=0.02)


def rows(*, quick: bool) -> Iterator[Figure]:
    """The figures; `quick` draws fewer requests."""
    seeds, count = ((1,), 6_000) if quick else ((1, 2, 3), 30_000)
    rates = {
        way.name: float(np.mean([served_rate(way, seed, count) for seed in seeds]))
        for way in (FIRST_COME, UNAWARE, OURS)
    }
    for name, rate in rates.items():
        yield Figure(name=f"rows in time, {name}", value=rate, unit="1/s")
    worst = min(in_time(OURS, drawn(seed, count, 0.95 * rates[OURS.name]))[1] for seed in seeds)
    name = "in time of the adapter that fares worst, at 95 % of that"
    yield Figure(name=name, value=worst, unit="")
    ratio = rates[OURS.name] / rates[FIRST_COME.name]
    name = f"{ADAPTERS} adapters, {SLOTS} slots: rate in time over first come first served"
    yield at_least(name, ratio, "x", LEAST)
