"""Which group leaves first: no length class may keep another one from the model."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.outcomes import HoldReason, ReleaseReason
from batchedmodel_scheduling.batching.decisions import Batch, Finished, HandedOver, Slots
from batchedmodel_scheduling.batching.policies import new_policy
from batchedmodel_scheduling.batching.policy import BasePolicy
from batchedmodel_scheduling.queue.items import NEVER, Item, ItemId
from support.scheduling import policy_with, row_profile
from support.strategies import an_item

GREEDY = BatchSettings(
    policy=PolicyName.GREEDY, max_batch_size=4, max_queue_size=64, length_buckets=(4,)
)
WINDOW = replace(GREEDY, policy=PolicyName.WINDOW, max_wait_seconds=0.010)
IDLE, BUSY = Slots(depth=2, in_flight=0), Slots(depth=2, in_flight=1)
SHORT, LONG = 2, 10
PASS_SECONDS = 0.1
PROFILE = row_profile(PASS_SECONDS, 0.0, rows=(1, 2, 4))

both = pytest.mark.parametrize("settings", [GREEDY, WINDOW], ids=["Greedy", "Window"])
either_way = pytest.mark.parametrize("profile", [PROFILE, None], ids=["profile", "no profile"])


@dataclass(kw_only=True)
class World:
    """A policy before a serial device that takes two batches at once, in virtual time."""

    policy: BasePolicy
    now: float = 0.0
    batches: list[tuple[float, Batch]] = field(default_factory=list)
    """Each with the time of its release."""
    _events: list[tuple[float, int, Callable[[], object]]] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)
    _in_flight: int = 0
    _free_at: float = 0.0

    def at(self, when: float, happens: Callable[[], object]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), happens))

    def arrive(self, length: int) -> ItemId:
        number = next(self._numbers)
        item = an_item(number, arrived=self.now, length=length, deadline=self.now + 30)
        assert self.policy.offer(item, self.now) is None
        return item.id

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, happens = heapq.heappop(self._events)
            happens()
            self._step()

    def _step(self) -> None:
        while True:
            decision = self.policy.poll(self.now, Slots(depth=2, in_flight=self._in_flight))
            assert not decision.shed, "somebody starved"
            if decision.release is None:
                break
            self._begin(decision.release)
        if decision.wake_at < NEVER:
            self.at(decision.wake_at, lambda: None)

    def _begin(self, batch: Batch) -> None:
        self.batches.append((self.now, batch))
        self._in_flight += 1
        self.policy.observe(HandedOver(batch=batch.id), self.now)
        queued = max(0.0, self._free_at - self.now)
        self._free_at = self.now + queued + PASS_SECONDS
        self.at(self._free_at, lambda: self._end(batch, queued))

    def _end(self, batch: Batch, queued: float) -> None:
        self._in_flight -= 1
        done = Finished(batch=batch.id, compute_seconds=PASS_SECONDS, queue_seconds=queued)
        self.policy.observe(done, self.now)
        for item in batch.items:
            if item.length == SHORT:
                # Its caller asks again as soon as it is answered.
                self.arrive(SHORT)


def four(first: int, arrived: float, length: int = SHORT) -> list[Item]:
    return [an_item(first + n, arrived=arrived, length=length) for n in range(4)]


def numbers(batch: Batch | None) -> list[int]:
    assert batch is not None
    return [int(item.id) for item in batch.items]


@both
@either_way
def test_a_lone_row_waits_no_longer_than_the_rows_that_came_before_it(
    settings: BatchSettings, profile: Profile | None
) -> None:
    world = World(policy=new_policy(settings, profile))
    for _ in range(32):
        world.at(0.0, lambda: world.arrive(SHORT))
    lone: list[ItemId] = []
    world.at(2.05, lambda: lone.append(world.arrive(LONG)))
    world.run(until=10.0)
    after = [batch for when, batch in world.batches if when >= 2.05]
    places = [place for place, batch in enumerate(after) if batch.items[0].id in lone]
    # Of the 32 rows eight are under way and 24 were there first; they make six batches.
    assert places == [6]


@both
@either_way
def test_a_full_class_still_keeps_the_device_busy(
    settings: BatchSettings, profile: Profile | None
) -> None:
    world = World(policy=new_policy(settings, profile))
    for _ in range(32):
        world.at(0.0, lambda: world.arrive(SHORT))
    world.run(until=10.0)
    assert {batch.reason for _, batch in world.batches[2:]} == {ReleaseReason.FULL}
    # 100 passes fit; one more was handed over early.
    assert len(world.batches) >= 100


@both
def test_when_the_server_wants_a_batch_the_oldest_head_leaves_though_another_group_is_full(
    settings: BatchSettings,
) -> None:
    policy = policy_with(settings, [an_item(0, length=LONG), *four(1, arrived=0.001)], PROFILE)
    assert numbers(policy.poll(0.5, IDLE).release) == [0]
    assert numbers(policy.poll(0.5, BUSY).release) == [1, 2, 3, 4]


def test_a_full_group_does_not_wait_for_a_window_that_is_still_open() -> None:
    policy = policy_with(WINDOW, [an_item(0, length=LONG), *four(1, arrived=0.001)], PROFILE)
    assert numbers(policy.poll(0.002, IDLE).release) == [1, 2, 3, 4]


@both
def test_a_full_group_is_not_handed_over_early_past_an_older_head(
    settings: BatchSettings,
) -> None:
    policy = policy_with(settings, four(1, arrived=0.0), PROFILE)
    running = policy.poll(0.0, IDLE).release
    assert running is not None
    policy.observe(HandedOver(batch=running.id), 0.0)
    for item in [an_item(9, arrived=0.010, length=LONG), *four(11, arrived=0.020)]:
        policy.offer(item, item.arrived)
    held = policy.poll(0.050, BUSY)
    assert (held.release, held.reason) == (None, HoldReason.BUSY)
    assert held.wake_at == pytest.approx(PASS_SECONDS)
    assert numbers(policy.poll(held.wake_at, BUSY).release) == [9]


@both
def test_a_full_group_with_the_oldest_head_is_handed_over_early(settings: BatchSettings) -> None:
    policy = policy_with(settings, four(1, arrived=0.0), PROFILE)
    running = policy.poll(0.0, IDLE).release
    assert running is not None
    policy.observe(HandedOver(batch=running.id), 0.0)
    for item in [*four(11, arrived=0.010), an_item(19, arrived=0.020, length=LONG)]:
        policy.offer(item, item.arrived)
    assert numbers(policy.poll(0.050, BUSY).release) == [11, 12, 13, 14]
