"""Tries a scenario: how it goes at a rate, and the highest rate with 99 % of all requests on time.

Ours, the windows per length bucket and the clairvoyant meet the same requests for the same seed.
Everything is in virtual time. What is tried for one seed depends on nothing else, so that it may
run in any process.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from batchedmodel_cli.simulator.engine import Device, Request, simulate
from batchedmodel_cli.simulator.search import highest_rate
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness, PolicyName
from batchedmodel_scheduling.batching.decisions import Policy
from batchedmodel_scheduling.batching.policies import new_policy
from batchedmodel_scheduling.batching.policy import BasePolicy
from rival_policies.bucket_window import BucketWindow
from scheduling_bench.affine import profile_of
from scheduling_bench.early_end import EarlyEnd, TooManyMissedError
from scheduling_bench.oracle import machine, on_time_at_least
from scheduling_bench.plants import DisturbedPlant
from scheduling_bench.scenarios import MAX_ROWS, Plan, Scenario
from scheduling_bench.verdicts import Verdict, verdict
from scheduling_bench.workload import Workload

WANTED: Final = 0.99
_QUEUE: Final = 1_000_000  # nobody is refused for lack of room
# A window that drops nobody serves even what is late by a minute: no time-out may hide that.
_PATIENCE_SECONDS: Final = 86400.0


def settings_of(
    scenario: Scenario,
    *,
    policy: PolicyName = PolicyName.DEADLINE,
    lateness: Lateness = Lateness.REFUSE,
    max_wait_seconds: float | None = None,
) -> BatchSettings:
    """What a user would set for this scenario; the longest wait is a quarter of the target."""
    target = scenario.target_seconds
    return BatchSettings(
        policy=policy,
        max_batch_size=MAX_ROWS,
        max_wait_seconds=target / 4 if max_wait_seconds is None else max_wait_seconds,
        target_seconds=target,
        lateness=lateness,
        max_queue_size=_QUEUE,
        request_timeout_seconds=_PATIENCE_SECONDS,
        length_buckets=scenario.edges,
    )


def ours(
    scenario: Scenario,
    *,
    policy: PolicyName = PolicyName.DEADLINE,
    lateness: Lateness = Lateness.REFUSE,
) -> BasePolicy:
    """The product's policy as the product makes it, with the profile of the undisturbed device."""
    profile = profile_of(
        scenario.curve,
        max_rows=MAX_ROWS,
        lengths=scenario.profiled_lengths,
        cost_rule=scenario.curve.rule,
    )
    return new_policy(settings_of(scenario, policy=policy, lateness=lateness), profile)


def plant_of(scenario: Scenario, seed: int, *, depth: int | None = None) -> DisturbedPlant:
    """The scenario's device."""
    return DisturbedPlant(
        curve=scenario.curve,
        hand_off_seconds=scenario.hand_off_seconds,
        depth=scenario.depth if depth is None else depth,
        disturbances=scenario.disturbances,
        seed=seed,
    )


def requests_of(
    scenario: Scenario, seed: int, count: int, rate: float, *, refuse: bool = True
) -> list[Request]:
    """The requests that everybody meets."""
    workload = Workload(
        arrivals=scenario.arrivals,
        lengths=scenario.lengths,
        target_seconds=scenario.target_seconds,
        refuse=refuse,
        request_timeout_seconds=_PATIENCE_SECONDS,
    )
    return workload.draw(seed, count, rate)


def judged(scenario: Scenario, requests: list[Request], policy: Policy, device: Device) -> Verdict:
    """How a policy serves these requests."""
    return verdict(requests, simulate(requests, [(policy, device)]), edges=scenario.edges)


def served(scenario: Scenario, seed: int, count: int, rate: float) -> Verdict:
    """How ours goes at this rate when late answers are refused."""
    requests = requests_of(scenario, seed, count, rate)
    return judged(scenario, requests, ours(scenario), plant_of(scenario, seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A highest rate, and how it goes there."""

    rate: float
    verdict: Verdict


def our_cap99(scenario: Scenario, seed: int, plan: Plan, near: float) -> Capacity:
    """The highest rate at which ours has 99 % of all requests on time.

    Raises ValueError when there is none, because the target is beyond the device.
    """
    held: dict[float, Verdict] = {}

    def holds(rate: float) -> bool:
        requests = requests_of(scenario, seed, plan.requests, rate)
        found = enough(scenario, requests, ours(scenario), plant_of(scenario, seed))
        if found is not None:
            held[rate] = found
        return found is not None

    rate = highest_rate(holds, near, tolerance=plan.tolerance)
    if not rate:
        raise ValueError(f"{scenario.name}: no rate has {WANTED:.0%} on time")
    return Capacity(rate=rate, verdict=held[rate])


def clairvoyant_cap99(scenario: Scenario, seed: int, plan: Plan) -> float:
    """The highest rate at which some schedule has: equal lengths on the undisturbed device."""
    device = machine(scenario.curve, max_rows=MAX_ROWS, hand_off_seconds=scenario.hand_off_seconds)
    return highest_rate(
        lambda rate: on_time_at_least(
            requests_of(scenario, seed, plan.requests, rate), WANTED, device
        ),
        scenario.near,
        tolerance=plan.tolerance,
    )


def window_cap99(scenario: Scenario, seed: int, plan: Plan, near: float) -> float:
    """The highest rate at which any of the windows has, whichever is the best for this seed."""
    return best_rate(_windows(scenario, seed, plan.requests), near, tolerance=plan.tolerance)


def best_rate(
    candidates: Iterable[Callable[[float], bool]], near: float, *, tolerance: float
) -> float:
    """The highest rate of all candidates; those that do not beat the best yet cost one trial."""
    best = 0.0
    for holds in candidates:
        better = best * (1 + tolerance)
        if not best:
            best = highest_rate(holds, near, tolerance=tolerance)
        elif holds(better):
            best = highest_rate(holds, better, tolerance=tolerance)
    return best


def _windows(scenario: Scenario, seed: int, count: int) -> Iterator[Callable[[float], bool]]:
    """A window per bucket, in every way that it could be meant; the likely best first.

    With and without dropping what has expired; with one batch at the server or with a second one
    handed over ahead, as soon as the window allows.
    """
    target = scenario.target_seconds
    for drops, depth, wait in product((True, False), (1, 2), (0.0, target / 10, target / 4)):

        def holds(rate: float, drops: bool = drops, depth: int = depth, wait: float = wait) -> bool:
            requests = requests_of(scenario, seed, count, rate, refuse=drops)
            policy = BucketWindow(settings_of(scenario, max_wait_seconds=wait), drop_expired=drops)
            plant = plant_of(scenario, seed, depth=depth)
            return enough(scenario, requests, policy, plant) is not None

        yield holds


def enough(
    scenario: Scenario, requests: list[Request], policy: Policy, device: Device
) -> Verdict | None:
    """How it goes if 99 % are on time; None if not."""
    allowed = int((1 - WANTED) * len(requests) + 1e-9)
    try:
        found = judged(scenario, requests, EarlyEnd(policy, allowed), device)
    except TooManyMissedError:
        return None
    return found if found.on_time_share >= WANTED else None
