"""Few very long rows beside many short ones that are due much earlier, on devices that pad.

One row in fifty is long and its caller patient. What counts is how many long rows share a batch,
and when it runs: short ones that come meanwhile wait for its end. Ours, which knows what the
warm-up would have measured, is held against Nexus per bucket, which knows all times exactly; of all
ways in which its buckets could share the device the one counts that is best for the row.
"""

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from batchedmodel_cli.simulator.arrivals import Arrivals, Gamma, Poisson
from batchedmodel_cli.simulator.engine import Curve, Request, Run, simulate
from batchedmodel_cli.simulator.workload import requests as requests_at
from batchedmodel_cli.simulator.workload import stream
from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.manifest.batching import (
    BatchSettings,
    Lateness,
    Objective,
)
from batchedmodel_scheduling.batching.decisions import Policy
from batchedmodel_scheduling.batching.policies import new_policy
from bench_report import Figure, at_least
from rival_policies.nexus_per_bucket import NexusPerBucket, Order
from scheduling_bench.affine import Affine
from scheduling_bench.devices import Bimodal, Kneed, Stepped, Tiled, warmed_up
from scheduling_bench.plants import Disturbances, DisturbedPlant
from scheduling_bench.scenarios import Plan
from scheduling_bench.summaries import over_seeds

JUDGED: Final = tuple(range(6201, 6213))
"""Seeds of the rows that are reported; 6001 to 6030 were tuned on."""
LONGEST: Final = 2048
SHORT: Final = 64
"""Tokens of the longest short row."""
_LENGTHS: Final = Bimodal(long_share=0.02, short=(16, SHORT), long=(512, LONGEST))
_EDGES: Final = (SHORT, 1024, LONGEST)
_LOADS: Final = (0.7, 0.85, 1.0, 1.15, 1.3)
_MAX_ROWS: Final = 64
_SAMPLE: Final = 5000
_QUEUE: Final = 1_000_000
_LOOSE_TARGETS: Final = 12
"""A run lasts for so many of them, within a few times the number of requests of the plan."""
_MORE: Final = 4
_OF_NEXUS: Final = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One device and its traffic; targets in seconds."""

    name: str
    curve: Curve
    arrivals: Arrivals
    tight: float
    """Of short rows."""
    loose: float
    """Of long ones."""
    load: float
    """Of `capacity`."""
    noise: float

    def target_of(self, length: int) -> float:
        """When a row of this length is due after its arrival."""
        return self.tight if length <= SHORT else self.loose


def drawn(seed: int) -> Row:
    """A row from the ranges below."""
    random = stream(seed, "two deadlines")
    kind, curve = _device(random)
    # In times of the longest row by itself; a target must be possible for short ones in turn.
    times = float(random.uniform(0.8, 4.0))
    tight = max(times * curve.seconds([LONGEST]), 3 * curve.seconds([SHORT]))
    loose = tight * float(random.uniform(5.0, 20.0))
    bursty = bool(random.integers(2))
    noise = float(random.choice([0.0, 0.02, 0.05]))
    load = _LOADS[int(random.integers(len(_LOADS)))]
    described = [kind, "bursty" if bursty else "smooth", f"{load:g}x", f"{noise:.0%} noise"]
    return Row(
        name=f"few very long rows, two deadlines, drawn {seed}: {', '.join(described)}",
        curve=curve,
        arrivals=Gamma(cv=3.0) if bursty else Poisson(),
        tight=tight,
        loose=loose,
        load=load,
        noise=noise,
    )


def _device(random: np.random.Generator) -> tuple[str, Curve]:
    """A launch of 1 to 8 ms, which is the time of 500 to 4,000 tokens."""
    launch = float(random.uniform(0.001, 0.008))
    tokens = int(random.integers(500, 4001))
    kind = ("affine", "kneed", "tiled", "stepped")[int(random.integers(4))]
    if kind == "affine":
        return kind, Affine(fixed=launch, per_token=launch / tokens)
    if kind == "kneed":
        return kind, Kneed(flat=launch, knee=tokens, rule=CostRule.PADDED)
    if kind == "tiled":
        tile = tokens // 4
        return kind, Tiled(fixed=launch, per_tile=launch / 4, tile=tile, rule=CostRule.PADDED)
    edges = tuple(tokens * step // 2 for step in (1, 2, 4, 8, 16, 32))
    levels = tuple(launch * (1 + edge / tokens) for edge in edges)
    return kind, Stepped(edges=edges, levels=levels, rule=CostRule.PADDED)


def capacity(row: Row) -> float:
    """Rows per second of batches of one bucket each that fit twice into its target."""
    lengths = np.array(_LENGTHS.draw(_SAMPLE, stream(0, "lengths")))
    each, shorter = 0.0, 0
    for edge in _EDGES:
        share = float(np.mean((lengths > shorter) & (lengths <= edge)))
        target, shorter = row.target_of(edge), edge
        sizes = range(1, _MAX_ROWS + 1)
        seconds = {size: row.curve.seconds([edge] * size) for size in sizes}
        fitting = [size for size in sizes if 2 * seconds[size] <= target]
        each += share * min(seconds[size] / size for size in fitting or [1])
    return 1 / each


def requests_of(row: Row, seed: int, count: int) -> list[Request]:
    """What both meet; late answers are of no use."""
    rate = row.load * capacity(row)
    times = row.arrivals.times(count, rate, stream(seed, "arrivals"))
    lengths = _LENGTHS.draw(count, stream(seed, "lengths"))
    patient = requests_at(times, lengths, row.loose, refuse=True)
    urgent = requests_at(times, lengths, row.tight, refuse=True)
    return [
        hurried if hurried.length <= SHORT else one
        for one, hurried in zip(patient, urgent, strict=True)
    ]


def ours(row: Row, seed: int, objective: Objective) -> Policy:
    """The product's policy; the target is that of the patient ones, the others set their own."""
    profile = warmed_up(
        row.curve,
        CostRule.PADDED,
        max_rows=_MAX_ROWS,
        longest=LONGEST,
        noise=row.noise,
        seed=seed,
    )
    return new_policy(replace(_settings(row), objective=objective), profile)


def _settings(row: Row) -> BatchSettings:
    return BatchSettings(
        max_batch_size=_MAX_ROWS,
        max_wait_seconds=row.tight / 4,
        target_seconds=row.loose,
        lateness=Lateness.REFUSE,
        max_queue_size=_QUEUE,
        request_timeout_seconds=30.0 + row.loose,
    )


def rivals(row: Row) -> list[Policy]:
    """Nexus per bucket by all orders, with long batches for their own or for the tight target."""
    own = {edge: row.target_of(edge) for edge in _EDGES}
    tight = dict.fromkeys(_EDGES, row.tight)
    return [
        NexusPerBucket(_settings(row), row.curve.seconds, targets, order)
        for order in Order
        for targets in (own, tight)
    ]


def served(row: Row, requests: Sequence[Request], policy: Policy, seed: int) -> Run:
    """How a policy serves these requests."""
    plant = DisturbedPlant(curve=row.curve, disturbances=Disturbances(noise=row.noise), seed=seed)
    return simulate(requests, [(policy, plant)])


def in_time(row: Row, requests: Sequence[Request], run: Run, objective: Objective) -> float:
    """The part in time, by rows or by work; the first third of the requests does not count."""
    first = len(requests) // 3
    hits = total = 0.0
    for one, at in zip(requests[first:], run.finished[first:], strict=True):
        worth = 1.0
        if objective is Objective.WORK:
            worth = row.curve.seconds([one.length] * _MAX_ROWS)
        total += worth
        hits += worth * (0 <= at <= one.due)
    return hits / total


def over_nexus(row: Row, seed: int, least: int) -> dict[Objective, float]:
    """What ours has in time by each objective, as a part of what the best Nexus has."""
    rate = row.load * capacity(row)
    count = max(least, min(_MORE * least, round(_LOOSE_TARGETS * row.loose * rate)))
    requests = requests_of(row, seed, count)
    others = [served(row, requests, rival, seed) for rival in rivals(row)]
    found = {}
    for objective in Objective:
        mine = served(row, requests, ours(row, seed, objective), seed)
        best = max(in_time(row, requests, other, objective) for other in others)
        found[objective] = in_time(row, requests, mine, objective) / best
    return found


Trials = list[Future[dict[Objective, float]]]


def submit(executor: Executor, plan: Plan) -> Trials:
    """Have all rows tried, each with one of the seeds in turn."""
    return [
        executor.submit(
            over_nexus, drawn(each), plan.seeds[n % len(plan.seeds)], plan.requests // 4
        )
        for n, each in enumerate(JUDGED)
    ]


def report(trials: Trials) -> list[Figure]:
    """Ours over Nexus per bucket, by rows and by work: the mean over the drawn rows."""
    found = [future.result() for future in trials]
    figures: list[Figure] = []
    for objective in Objective:
        name = f"few very long rows, two deadlines: {objective.lower()} in time over Nexus's"
        shares = [one[objective] for one in found]
        figures += over_seeds(name, shares, "x", at_least, _OF_NEXUS)
    return figures
