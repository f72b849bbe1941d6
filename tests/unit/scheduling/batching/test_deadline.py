"""What `Deadline` does while all can be in time: what leaves, when, and in what company."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import HoldReason, ReleaseReason
from batchedmodel_scheduling.batching.decisions import Decision, Finished, MemoryCap, Slots
from batchedmodel_scheduling.batching.policies import new_policy
from batchedmodel_scheduling.batching.policy import BasePolicy
from batchedmodel_scheduling.queue.items import NEVER, Item, Priority, RequestGroup
from support.scheduling import (
    BUSY,
    IDLE,
    measured,
    offer,
    policy_with,
    released,
    row_profile,
    serve,
    start,
)
from support.strategies import an_item

SETTINGS = BatchSettings(max_batch_size=4, max_queue_size=64, max_wait_seconds=0.005)
# 15 ms for one, 30 ms for four.
DEVICE = row_profile(0.010, 0.005)
HAND_OFF = 0.001
HIGH, NORMAL, LOW = Priority


def padded(fixed: float, per_token: float) -> Profile:
    points = [(r, n, fixed + per_token * r * n) for r in (1, 4, 16) for n in (1, 16, 64)]
    return measured(points)


def deadline_with(
    items: Sequence[Item], settings: BatchSettings = SETTINGS, profile: Profile | None = DEVICE
) -> BasePolicy:
    return policy_with(settings, items, profile)


# When a batch leaves


def test_a_lone_item_leaves_an_idle_model_at_once() -> None:
    decision = deadline_with([an_item(1)]).poll(0.0, IDLE)
    assert released(decision) == [1]
    assert decision.reason is ReleaseReason.IDLE


def test_a_full_batch_leaves_at_once_and_the_next_fills_the_second_slot() -> None:
    policy = deadline_with([an_item(n) for n in range(9)])
    assert [int(item.id) for item in start(policy, 0.0).items] == [0, 1, 2, 3]
    second = policy.poll(0.0, BUSY)
    assert released(second) == [4, 5, 6, 7]
    assert second.reason is ReleaseReason.FULL


def test_a_batch_that_fills_up_while_the_model_runs_leaves_at_once() -> None:
    policy = deadline_with([an_item(0)])
    start(policy, 0.0)
    offer(policy, [an_item(n, arrived=0.001) for n in range(1, 4)])
    assert policy.poll(0.001, BUSY).release is None
    offer(policy, [an_item(4, arrived=0.002)])
    assert released(policy.poll(0.002, BUSY)) == [1, 2, 3, 4]


def test_a_batch_is_full_when_its_tokens_are() -> None:
    tight = replace(SETTINGS, max_batch_tokens=20)
    policy = deadline_with([an_item(0, length=8)], tight, padded(0.01, 0.0001))
    start(policy, 0.0)
    offer(policy, [an_item(n, length=8, arrived=0.001) for n in (1, 2)])
    decision = policy.poll(0.001, BUSY)
    assert released(decision) == [1, 2]
    assert decision.reason is ReleaseReason.FULL


def test_a_batch_that_is_not_full_leaves_just_in_time() -> None:
    policy = deadline_with([an_item(0)])
    start(policy, 1.0)
    offer(policy, [an_item(1, arrived=1.001)])
    held = policy.poll(1.001, BUSY)
    assert (held.release, held.reason) == (None, HoldReason.BUSY)
    assert held.wake_at == pytest.approx(1.0 + HAND_OFF + 0.015 - HAND_OFF)
    decision = policy.poll(held.wake_at, BUSY)
    assert released(decision) == [1]
    assert decision.reason is ReleaseReason.JUST_IN_TIME


@pytest.mark.parametrize("slots", [Slots(depth=2, in_flight=2), Slots(depth=0, in_flight=0)])
def test_nothing_leaves_to_a_server_that_can_take_nothing(slots: Slots) -> None:
    held = deadline_with([an_item(n) for n in range(9)]).poll(0.0, slots)
    assert (held.release, held.wake_at, held.reason) == (None, NEVER, HoldReason.BUSY)


def test_nothing_waits_means_never() -> None:
    decision = new_policy(SETTINGS, DEVICE).poll(0.0, IDLE)
    assert decision == Decision(release=None, shed=(), wake_at=NEVER, reason=HoldReason.EMPTY)


# Waiting for company


def group(numbers: Sequence[int], size: int, arrived: float = 0.0) -> list[Item]:
    return [
        an_item(n, arrived=arrived, request_group=RequestGroup(id="g", size=size)) for n in numbers
    ]


def test_an_announced_group_is_waited_for_and_leaves_when_it_is_complete() -> None:
    policy = deadline_with(group([1], 3))
    held = policy.poll(0.0, IDLE)
    assert (held.release, held.reason, held.wake_at) == (None, HoldReason.GATHERING, 0.005)
    offer(policy, group([2, 3], 3, arrived=0.001))
    decision = policy.poll(0.001, IDLE)
    assert released(decision) == [1, 2, 3]
    assert decision.reason is ReleaseReason.GROUP_COMPLETE


def test_who_announces_what_never_comes_makes_others_wait_once_a_second() -> None:
    policy = deadline_with([])
    held = 0
    for number in range(50):
        now = number * 0.020
        group = RequestGroup(id=f"never {number}", size=4096)
        offer(policy, [an_item(number, arrived=now, due=now + 1, request_group=group)])
        decision = policy.poll(now, IDLE)
        if decision.reason is HoldReason.GATHERING:
            held += 1
            now += 0.005
            decision = policy.poll(now, IDLE)
        assert decision.release is not None
        policy.observe(Finished(batch=decision.release.id, compute_seconds=0.004), now + 0.004)
    assert held == 1


def test_no_wait_passes_its_bound() -> None:
    policy = deadline_with(group([1], 3))
    assert policy.poll(0.0, IDLE).wake_at == 0.005
    decision = policy.poll(0.005, IDLE)
    assert released(decision) == [1]
    assert decision.reason is ReleaseReason.DELAY


def test_no_wait_passes_the_bound_of_another_key() -> None:
    """New groups of one key, each due earlier, keep the item of another key for its wait only."""
    policy = deadline_with([an_item(1, key="b")])
    offer(policy, [an_item(2, arrived=0.004, due=1.0, request_group=RequestGroup(id="x", size=2))])
    assert policy.poll(0.004, IDLE).wake_at == 0.005
    offer(policy, [an_item(3, arrived=0.005, due=0.9, request_group=RequestGroup(id="y", size=2))])
    assert policy.poll(0.005, IDLE).release is not None


def test_a_group_of_which_members_left_is_not_waited_for() -> None:
    policy = deadline_with(group([0, 1, 2, 3], 6))
    first = start(policy, 0.0)
    policy.observe(Finished(batch=first.id, compute_seconds=0.030), 0.031)
    offer(policy, group([4], 6, arrived=0.031))
    decision = policy.poll(0.031, IDLE)
    assert released(decision) == [4]


def test_a_member_that_was_refused_is_not_waited_for() -> None:
    policy = deadline_with(group([1], 3))
    assert policy.poll(0.0, IDLE).reason is HoldReason.GATHERING
    hopeless = group([2], 3)[0]._replace(due=0.001, deadline=0.001)
    assert policy.offer(hopeless, 0.0) is not None
    offer(policy, group([3], 3))
    assert released(policy.poll(0.0, IDLE)) == [1, 3]


def test_the_rest_of_a_clump_is_waited_for_once_clumps_are_known() -> None:
    policy = new_policy(replace(SETTINGS, max_batch_size=16), DEVICE)
    clumps = [
        an_item(4 * clump + n, arrived=0.1 * clump + 0.0005 * n)
        for clump in range(40)
        for n in range(4)
    ]
    served = serve(policy, clumps, lambda lengths: 0.010 + 0.005 * len(lengths))
    assert [len(batch.items) for _, batch in served.batches][-20:] == [4] * 20


def test_without_a_wait_nothing_is_held() -> None:
    policy = deadline_with(group([1], 3), replace(SETTINGS, max_wait_seconds=0.0))
    assert released(policy.poll(0.0, IDLE)) == [1]


# Who shares a batch, and who goes first


def test_the_one_that_is_due_first_goes_first() -> None:
    dues = [9.0, 3.0, 5.0, 7.0, 1.0]
    policy = deadline_with([an_item(n, due=due) for n, due in enumerate(dues)])
    assert released(policy.poll(0.0, IDLE)) == [4, 1, 2, 3]


def test_incompatible_items_never_share_a_batch_and_never_block_each_other() -> None:
    items = [an_item(n, key="abc"[n % 3], arrived=0.0, due=5.0 + n) for n in range(9)]
    policy = deadline_with(items)
    batches = [released(policy.poll(0.0, IDLE)) for _ in range(3)]
    assert batches == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_of_more_keys_than_are_looked_at_the_most_urgent_go_first_and_all_have_their_turn() -> None:
    items = [an_item(n, key=f"key {n}", due=100.0 - n) for n in range(56)]
    policy = deadline_with(items)
    assert [released(policy.poll(0.0, IDLE)) for _ in items] == [[n] for n in range(55, -1, -1)]


def test_a_group_that_is_complete_but_not_full_leaves_just_in_time() -> None:
    policy = deadline_with([an_item(0)])
    start(policy, 0.0)
    offer(policy, group([1, 2], 2, arrived=0.001))
    assert policy.poll(0.001, BUSY).reason is HoldReason.BUSY
    assert released(policy.poll(0.015, BUSY)) == [1, 2]


def test_a_full_batch_is_not_held_while_another_key_waits_for_company() -> None:
    items = [an_item(1, due=1.0, request_group=RequestGroup(id="x", size=2))]
    policy = deadline_with([*items, *(an_item(n, key="b", due=2.0) for n in range(2, 6))])
    assert policy.poll(0.0, IDLE).release is not None


def test_short_and_long_ones_share_a_batch_only_where_it_pays() -> None:
    items = [an_item(n, length=[4, 60][n % 2]) for n in range(8)]
    apart = deadline_with(items, profile=padded(0.001, 0.001))
    assert sorted(released(apart.poll(0.0, IDLE))) in ([0, 2, 4, 6], [1, 3, 5, 7])
    pairs = [an_item(1, length=4), an_item(2, length=60)]
    shared = deadline_with(pairs, profile=padded(0.1, 0.00001))
    assert sorted(released(shared.poll(0.0, IDLE))) == [1, 2]


def test_a_smaller_memory_makes_smaller_batches() -> None:
    policy = deadline_with([an_item(n) for n in range(4)])
    policy.observe(MemoryCap(cost=2), 0.0)
    assert released(policy.poll(0.0, IDLE)) == [0, 1]


def test_high_overtakes_normal_in_a_backlog() -> None:
    backlog = [an_item(n, due=1.0) for n in range(40)]
    urgent = an_item(99, arrived=0.0455, due=1.0455, priority=HIGH)
    served = serve(
        new_policy(SETTINGS, DEVICE), [*backlog, urgent], lambda n: 0.010 + 0.005 * len(n)
    )
    assert served.late([*backlog, urgent]) == []
    leaves = next(now for now, batch in served.batches if urgent in batch.items)
    assert sum(now > leaves for now, _ in served.batches) >= 6


def test_batches_of_high_are_not_passed_by_those_of_an_urgent_item_of_low_priority() -> None:
    """One HIGH filled up the batch of the urgent NORMAL one and passed two that were as urgent."""
    fast = padded(0.004, 0.0001)
    items = [an_item(n, length=8, due=0.9, priority=HIGH) for n in (1, 2, 3)]
    policy = deadline_with(
        [an_item(0, length=1, due=0.5), *items], replace(SETTINGS, max_batch_size=2), fast
    )
    assert released(policy.poll(0.0, IDLE)) == [1, 2]
    assert sorted(released(policy.poll(0.0, IDLE))) == [0, 3]


def test_they_are_not_passed_either_where_the_target_is_out_of_reach() -> None:
    """There nobody hurries, and batches run in order of due time: two single rows take 10 ms."""
    settings = replace(SETTINGS, max_batch_size=2, target_seconds=0.008)
    items = [an_item(n, length=8, due=0.505, priority=HIGH) for n in (1, 2, 3)]
    policy = deadline_with([an_item(0, length=1, due=0.5), *items], settings, padded(0.005, 0.0001))
    assert released(policy.poll(0.0, IDLE)) == [1, 2]


def test_a_starving_priority_leads_at_least_every_twentieth_batch() -> None:
    """HIGH alone overloads the device; each LOW item is far from due."""
    high = [an_item(n, arrived=n / 200, due=n / 200 + 9.0, priority=HIGH) for n in range(600)]
    low = [an_item(1000 + n, arrived=1.0, due=900.0, priority=LOW) for n in range(3)]
    roomy = replace(SETTINGS, max_queue_size=4096)
    served = serve(new_policy(roomy, DEVICE), [*high, *low], lambda n: 0.010 + 0.005 * len(n))
    late = [batch for now, batch in served.batches if now >= 1.0]
    turns = [n for n, batch in enumerate(late) if set(low) & set(batch.items)]
    assert turns[0] <= 20
    assert late[turns[0]].reason is ReleaseReason.FLOOR
    assert late[turns[0]].items[0].priority is LOW


# Other settings


def test_another_target_orders_newcomers_and_those_that_wait_alike() -> None:
    """A priority is worth the target: what had waited by a short one was passed by newcomers."""
    policy = deadline_with(
        [an_item(1, due=5.0, priority=HIGH)], replace(SETTINGS, target_seconds=0.1)
    )
    policy.configure(replace(SETTINGS, max_batch_size=1), 0.0)
    offer(policy, [an_item(2, due=5.0, priority=HIGH)])
    assert [released(policy.poll(0.0, IDLE)) for _ in range(2)] == [[1], [2]]


# What it learns


def test_without_a_profile_it_works_and_learns_to_predict() -> None:
    policy = new_policy(replace(SETTINGS, target_seconds=0.2), None)
    items = [an_item(n, arrived=n / 100, due=n / 100 + 0.2) for n in range(500)]
    served = serve(policy, items, lambda lengths: 0.010 + 0.005 * len(lengths))
    assert len(served.finished) == 500
    assert policy.pipeline.times.predict([1]) is not None
    assert policy.pipeline.times.predict([1] * 2) == pytest.approx(0.020, rel=0.05)
    assert any(batch.reason is ReleaseReason.JUST_IN_TIME for _, batch in served.batches)


def test_what_it_does_by_itself_is_shown() -> None:
    policy = deadline_with([an_item(n) for n in range(4)], replace(SETTINGS, target_seconds=0.1))
    start(policy, 0.002)
    shown = policy.signals()
    assert shown.effective_batch_size == 4
    assert shown.effective_wait_seconds == pytest.approx(0.002)
    assert shown.target_feasible
