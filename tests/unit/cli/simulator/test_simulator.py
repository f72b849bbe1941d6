"""The simulator as a whole, against what queueing theory knows and against itself."""

import itertools
from collections.abc import Callable

import pytest

from batchedmodel_cli.simulator.arrivals import Arrivals, Gamma, Poisson, Replay
from batchedmodel_cli.simulator.engine import NANOSECONDS, Plant, simulate
from batchedmodel_cli.simulator.search import highest_rate
from batchedmodel_cli.simulator.verdicts import verdict
from batchedmodel_cli.simulator.workload import Constant, Lognormal, stream
from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_scheduling.batching.decisions import (
    BatchId,
    Decision,
    Event,
    Finished,
    Policy,
    Slots,
)
from batchedmodel_scheduling.batching.policies import new_policy
from batchedmodel_scheduling.queue.items import Item, ItemId, Refusal
from scheduling_bench.affine import Affine, profile_of
from scheduling_bench.bursts import Clumps, Mmpp
from scheduling_bench.oracle import least_dropped, machine, on_time_at_least
from scheduling_bench.plants import Disturbances, DisturbedPlant
from scheduling_bench.workload import Workload

FIXED, PER_ROW = 0.005, 0.001
CURVE = Affine(fixed=FIXED, per_row=PER_ROW)
TARGET = 0.05
UNBOUNDED = 4096


def queueing(
    name: PolicyName = PolicyName.GREEDY, rows: int = UNBOUNDED, wait: float = 0.0
) -> Policy:
    settings = BatchSettings(
        policy=name, max_batch_size=rows, max_wait_seconds=wait, max_queue_size=1_000_000
    )
    profile = profile_of(CURVE, max_rows=64, lengths=(1,), cost_rule=CostRule.PADDED)
    return new_policy(settings, profile)


Happened = tuple[float, str, tuple[Item, ...]]
"""When what happened, to which items."""


class Logged:
    """A policy that notes what it is offered and releases, and which batches end."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._running: dict[BatchId, tuple[Item, ...]] = {}
        self.events: list[Happened] = []

    def offer(self, item: Item, now: float) -> Refusal | None:
        self.events.append((now, "offer", (item,)))
        return self._policy.offer(item, now)

    def withdraw(self, item_id: ItemId, now: float) -> None:
        self._policy.withdraw(item_id, now)

    def poll(self, now: float, slots: Slots) -> Decision:
        decision = self._policy.poll(now, slots)
        if (batch := decision.release) is not None:
            self._running[batch.id] = tuple(batch.items)
            self.events.append((now, "release", self._running[batch.id]))
        return decision

    def observe(self, event: Event, now: float) -> None:
        if isinstance(event, Finished):
            self.events.append((now, "finish", self._running.pop(event.batch)))
        self._policy.observe(event, now)

    def configure(self, settings: BatchSettings, now: float) -> None:
        self._policy.configure(settings, now)


def equal_lengths(arrivals: Arrivals, target: float = TARGET) -> Workload:
    return Workload(
        arrivals=arrivals,
        lengths=Constant(),
        target_seconds=target,
        request_timeout_seconds=3600,
    )


POLICIES: dict[str, Callable[[], Policy]] = {
    "greedy": lambda: queueing(rows=64),
    "small batches": lambda: queueing(rows=4),
    "short window": lambda: queueing(PolicyName.WINDOW, 64, TARGET / 10),
    "long window": lambda: queueing(PolicyName.WINDOW, 64, TARGET / 2),
}
EVEN = Replay(recorded=(0, 1))
ARRIVALS: list[Arrivals] = [EVEN, Poisson(), Gamma(cv=4), Mmpp(), Clumps()]


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.3, 0.5, 0.65, 0.8])
def test_greedy_has_the_mean_latency_that_queueing_theory_gives_it(load: float) -> None:
    """Inoue 2021: phi1, the high-load bound of a single server with batches without a cap."""
    drawn = equal_lengths(Poisson()).draw(1, 25_000, load / PER_ROW)
    found = verdict(drawn, simulate(drawn, [(queueing(), Plant(curve=CURVE))])).latency
    assert found is not None
    launches = 1.5 * FIXED / (1 - load)
    expected = launches + PER_ROW / 2 * (load + 2) / (1 - load**2)
    assert found.mean == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("arrivals", ARRIVALS, ids=lambda arrivals: type(arrivals).__name__)
def test_the_device_is_busy_for_its_launches_and_rows(arrivals: Arrivals) -> None:
    drawn = equal_lengths(arrivals).draw(1, 3000, 500)
    run = simulate(drawn, [(queueing(), Plant(curve=CURVE, hand_off_seconds=0.0005, depth=2))])
    assert sum(run.batches) == len(drawn)
    expected = FIXED * len(run.batches) + PER_ROW * len(drawn)
    assert run.busy / NANOSECONDS == pytest.approx(expected)
    assert run.busy <= run.until - drawn[0].at


@pytest.mark.slow
@pytest.mark.parametrize("arrivals", ARRIVALS, ids=lambda arrivals: type(arrivals).__name__)
@pytest.mark.parametrize("policy", PolicyName)
def test_a_device_with_several_workers_runs_as_many_batches_side_by_side(
    arrivals: Arrivals, policy: PolicyName
) -> None:
    drawn = equal_lengths(arrivals).draw(1, 3000, 3 * 700)
    settings = BatchSettings(
        policy=policy, max_batch_size=8, max_queue_size=10_000, max_concurrent_batches=3
    )
    plant = Plant(curve=CURVE, workers=3, depth=3)
    logged = Logged(new_policy(settings, None))
    run = simulate(drawn, [(logged, plant)])
    running, most = 0, 0
    for _, what, _ in logged.events:
        running += {"release": 1, "finish": -1}.get(what, 0)
        most = max(most, running)
    assert most == 3
    found = verdict(drawn, run, workers=3)
    # More than two could do, and none of them idles while others have too much.
    assert 2 / 3 < found.busy_share <= 1


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_under_overload_every_worker_goes_on_answering_in_time(workers: int) -> None:
    rows = 8
    capacity = workers * rows / (FIXED + PER_ROW * rows)
    drawn = equal_lengths(Poisson()).draw(1, 2000 * workers, 1.5 * capacity)
    settings = BatchSettings(
        max_batch_size=rows,
        max_queue_size=100_000,
        target_seconds=TARGET,
        request_timeout_seconds=3600,
        max_concurrent_batches=workers,
    )
    plant = Plant(curve=CURVE, workers=workers, depth=workers)
    profile = profile_of(CURVE, max_rows=rows, lengths=(1,), cost_rule=CostRule.PADDED)
    run = simulate(drawn, [(new_policy(settings, profile), plant)])
    arriving = 2000 * workers / (1.5 * capacity)
    in_time = verdict(drawn, run).in_time_share * len(drawn) / arriving
    assert in_time > 0.95 * capacity


def test_the_mean_number_inside_is_rate_times_mean_latency() -> None:
    """Little's law, the left side by the event log and the right side by the verdict."""
    drawn = equal_lengths(Mmpp()).draw(1, 3000, 500)
    policy = Logged(queueing())
    run = simulate(drawn, [(policy, Plant(curve=CURVE))])
    inside, area, last = 0, 0.0, 0.0
    for at, what, members in policy.events:
        area, last = area + inside * (at - last), at
        inside += {"offer": 1, "release": 0, "finish": -len(members)}[what]
    assert inside == 0
    found = verdict(drawn, run).latency
    assert found is not None
    rate = len(drawn) / last
    assert area / last == pytest.approx(rate * found.mean)


@pytest.mark.slow
def test_even_arrivals_are_on_time_up_to_the_rate_at_which_two_batches_fill_the_target() -> None:
    even = equal_lengths(EVEN)
    rows = (TARGET / 2 - FIXED) / PER_ROW
    expected = rows / (FIXED + PER_ROW * rows)

    def holds(rate: float) -> bool:
        drawn = even.draw(1, 3000, rate)
        run = simulate(drawn, [(queueing(), Plant(curve=CURVE))])
        return verdict(drawn, run).in_time_share >= 0.99

    assert highest_rate(holds, 700) == pytest.approx(expected, rel=0.02)


def test_the_clairvoyant_does_even_arrivals_at_that_rate_too() -> None:
    even = equal_lengths(EVEN)
    optimum = machine(CURVE, max_rows=64)
    found = highest_rate(lambda rate: on_time_at_least(even.draw(1, 2000, rate), 1, optimum), 700)
    assert found == pytest.approx(800, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("arrivals", ARRIVALS, ids=lambda arrivals: type(arrivals).__name__)
@pytest.mark.parametrize("rate", [150, 400, 700])
def test_no_policy_beats_the_clairvoyant(arrivals: Arrivals, rate: float) -> None:
    for seed, depth in itertools.product((1, 2), (1, 2)):
        drawn = equal_lengths(arrivals).draw(seed, 600, rate)
        optimum = machine(CURVE, max_rows=64, hand_off_seconds=0.0005)
        dropped = least_dropped(drawn, optimum)
        assert dropped is not None
        for name, new in POLICIES.items():
            plant = Plant(curve=CURVE, hand_off_seconds=0.0005, depth=depth)
            on_time = verdict(drawn, simulate(drawn, [(new(), plant)])).in_time_share * len(drawn)
            assert round(on_time) <= len(drawn) - dropped, name


def logged(seed: int, policy: Policy, name: str = "device") -> list[Happened]:
    mixed = Lognormal(mu=4, sigma=1, lowest=1, highest=512)
    workload = Workload(arrivals=Mmpp(), lengths=mixed, target_seconds=TARGET)
    noise = Disturbances(noise=0.05, straggler_probability=0.01)
    curve = Affine(fixed=0.004, per_token=6e-6)
    plant = DisturbedPlant(curve=curve, depth=2, disturbances=noise, seed=seed, name=name)
    log = Logged(policy)
    simulate(workload.draw(seed, 1000, 200), [(log, plant)])
    return log.events


def test_equal_seeds_give_the_same_log() -> None:
    assert logged(1, queueing(rows=64)) == logged(1, queueing(rows=64))


@pytest.mark.slow
def test_another_seed_another_noise_or_another_policy_gives_another_log() -> None:
    runs = [
        logged(1, queueing(rows=64)),
        logged(2, queueing(rows=64)),
        logged(1, queueing(rows=64), name="other device"),
        logged(1, queueing(rows=8)),
    ]
    assert len(set(map(tuple, runs))) == len(runs)


def test_another_policy_meets_the_same_arrivals() -> None:
    def offered(policy: Policy) -> list[Happened]:
        return [event for event in logged(1, policy) if event[1] == "offer"]

    assert offered(queueing(rows=64)) == offered(queueing(PolicyName.WINDOW, 8, 0.01))


def test_pods_share_the_load_of_a_router() -> None:
    drawn = equal_lengths(Poisson()).draw(1, 4000, 1200)
    pods = [(queueing(), Plant(curve=CURVE)) for _ in range(4)]
    run = simulate(drawn, pods, router=stream(1, "router"))
    found = verdict(drawn, run, pods=4)
    assert found.in_time_share > 0.99
    assert 0.8 < found.busy_share < 1
