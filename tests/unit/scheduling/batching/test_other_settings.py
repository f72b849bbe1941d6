"""What goes over from one policy to another, and what a policy makes of other settings."""

from dataclasses import replace

import pytest

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_scheduling.batching.decisions import Finished
from batchedmodel_scheduling.batching.fifo import Greedy, Window
from batchedmodel_scheduling.batching.policies import new_policy, reconfigured, relearning
from batchedmodel_scheduling.queue.items import NEVER
from support.scheduling import BUSY, IDLE, policy_with, released, row_profile, start
from support.strategies import an_item

GREEDY = BatchSettings(policy=PolicyName.GREEDY, max_batch_size=4, max_queue_size=8)
WINDOW = replace(GREEDY, policy=PolicyName.WINDOW, max_wait_seconds=0.010)
# Every batch takes 100 ms.
PROFILE = row_profile(0.1, 0.0)

both = pytest.mark.parametrize("settings", [GREEDY, WINDOW], ids=["Greedy", "Window"])


@both
def test_another_policy_takes_over_what_waits_and_what_was_learnt(settings: BatchSettings) -> None:
    policy = policy_with(settings, [an_item(1), an_item(2)], PROFILE)
    first = start(policy, 1.0)
    policy.offer(an_item(3, arrived=1.0), 1.0)
    other = WINDOW if settings is GREEDY else GREEDY
    successor = reconfigured(policy, other, 1.0)
    assert isinstance(successor, Greedy if other is GREEDY else Window)
    held = successor.poll(1.05, BUSY)
    assert held.wake_at == pytest.approx(1.1)
    second = start(successor, 1.1, BUSY)
    assert [item.id for item in second.items] == [3]
    assert second.id != first.id


@both
def test_the_same_policy_with_other_settings_stays_the_same_object(settings: BatchSettings) -> None:
    policy = policy_with(settings, [an_item(n) for n in range(3)])
    assert reconfigured(policy, replace(settings, max_batch_size=2), 0.0) is policy
    assert released(policy.poll(0.0, IDLE)) == [0, 1]


@both
def test_what_waits_stays_above_a_smaller_queue(settings: BatchSettings) -> None:
    policy = policy_with(settings, [an_item(n) for n in range(8)])
    policy = reconfigured(policy, replace(settings, max_batch_size=2, max_queue_size=2), 0.0)
    assert policy.offer(an_item(8), 0.0) is not None
    batches = [released(policy.poll(0.0, IDLE)) for _ in range(4)]
    assert batches == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert policy.offer(an_item(9), 0.0) is None


@both
def test_other_length_classes_regroup_what_waits_in_order_of_arrival(
    settings: BatchSettings,
) -> None:
    bucketed = replace(settings, length_buckets=(8,))
    items = [an_item(n, length=[4, 16, 5, 17][n], arrived=n / 1e6) for n in range(4)]
    policy = reconfigured(policy_with(bucketed, items), settings, 0.001)
    assert released(policy.poll(0.001, IDLE)) == [0, 1, 2, 3]


@both
def test_a_restarted_server_keeps_what_waits_and_nothing_that_was_learnt(
    settings: BatchSettings,
) -> None:
    policy = policy_with(settings, [an_item(n) for n in range(4)], PROFILE)
    lost = start(policy, 1.0)
    policy.offer(an_item(5, arrived=1.0), 1.0)
    policy = relearning(policy, None)
    policy.observe(Finished(batch=lost.id, compute_seconds=None), 1.2)
    batch = start(policy, 1.2)
    assert [item.id for item in batch.items] == [5]
    assert batch.id != lost.id
    policy.offer(an_item(6, arrived=1.2), 1.2)
    assert policy.poll(8.0, BUSY).wake_at == NEVER


@both
def test_identifiers_of_batches_never_repeat(settings: BatchSettings) -> None:
    policy = new_policy(settings, PROFILE)
    seen = []
    for number in range(6):
        policy.offer(an_item(number), 0.0)
        seen.append(start(policy, 1.0).id)
        policy = relearning(policy, PROFILE)
        other = WINDOW if isinstance(policy, Greedy) else GREEDY
        policy = reconfigured(policy, other, 1.0)
    assert len(set(seen)) == 6


def test_an_identifier_may_not_wait_twice() -> None:
    policy = policy_with(GREEDY, [an_item(1)])
    with pytest.raises(ValueError, match="item 1 waits already"):
        policy.offer(an_item(1), 0.0)
