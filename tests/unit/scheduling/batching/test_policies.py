"""What Greedy and Window do, sentence by sentence, and what every policy tells whom it refuses."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.outcomes import HoldReason, Outcome, Rejection, ReleaseReason
from batchedmodel_scheduling.batching.decisions import Batch, Decision, Finished, HandedOver, Slots
from batchedmodel_scheduling.batching.policies import new_policy
from batchedmodel_scheduling.batching.policy import BasePolicy
from batchedmodel_scheduling.queue.items import NEVER, Item
from support.scheduling import policy_with, row_profile
from support.strategies import an_item

GREEDY = BatchSettings(policy=PolicyName.GREEDY, max_batch_size=4, max_queue_size=8)
WINDOW = replace(GREEDY, policy=PolicyName.WINDOW, max_wait_seconds=0.010)
DEADLINE = replace(GREEDY, policy=PolicyName.DEADLINE)
IDLE, BUSY, TAKEN, ABSENT = (
    Slots(depth=2, in_flight=0),
    Slots(depth=2, in_flight=1),
    Slots(depth=2, in_flight=2),
    Slots(depth=0, in_flight=0),
)
# Every batch of up to eight rows takes 100 ms.
PROFILE = row_profile(0.1, 0.0, rows=(1, 4, 8))
HAND_OFF = 0.001

both = pytest.mark.parametrize("settings", [GREEDY, WINDOW], ids=["Greedy", "Window"])
every = pytest.mark.parametrize(
    "settings", [GREEDY, WINDOW, DEADLINE], ids=["Greedy", "Window", "Deadline"]
)


def numbers(items: Sequence[Item]) -> list[int]:
    return [int(item.id) for item in items]


def expired(decision: Decision) -> list[int]:
    assert {shed.outcome for shed in decision.shed} <= {Outcome.EXPIRED}
    return numbers([shed.item for shed in decision.shed])


def released(decision: Decision) -> Batch:
    assert decision.release is not None, decision
    return decision.release


def start(policy: BasePolicy, now: float, slots: Slots = IDLE) -> Batch:
    """Release a batch and hand it over at once."""
    batch = released(policy.poll(now, slots))
    policy.observe(HandedOver(batch=batch.id), now)
    return batch


# Greedy


def test_a_lone_item_leaves_at_once_under_greedy() -> None:
    decision = policy_with(GREEDY, [an_item(1)]).poll(0.0, IDLE)
    assert numbers(released(decision).items) == [1]
    assert decision.reason is ReleaseReason.IDLE


def test_greedy_takes_whatever_waits_when_the_model_is_free() -> None:
    policy = policy_with(GREEDY, [an_item(1), an_item(2), an_item(3)])
    assert numbers(released(policy.poll(0.0, IDLE)).items) == [1, 2, 3]


def test_the_second_batch_of_greedy_leaves_just_in_time() -> None:
    policy = policy_with(GREEDY, [an_item(1)], PROFILE)
    start(policy, 1.0)
    policy.offer(an_item(2, arrived=1.01), 1.01)
    held = policy.poll(1.01, BUSY)
    assert (held.release, held.reason) == (None, HoldReason.BUSY)
    # The batch reaches the device after one hand-off, and so will the next.
    assert held.wake_at == pytest.approx(1.0 + HAND_OFF + 0.1 - HAND_OFF)
    decision = policy.poll(held.wake_at, BUSY)
    assert numbers(released(decision).items) == [2]
    assert decision.reason is ReleaseReason.JUST_IN_TIME


def test_a_batch_that_overruns_its_prediction_holds_the_next_no_longer() -> None:
    policy = policy_with(GREEDY, [an_item(1)], PROFILE)
    start(policy, 0.0)
    policy.offer(an_item(2, arrived=7.0), 7.0)
    assert policy.poll(7.0, BUSY).release is not None


def test_items_that_arrive_while_the_model_runs_share_the_next_batch() -> None:
    policy = policy_with(GREEDY, [an_item(1)], PROFILE)
    start(policy, 0.0)
    for number in (2, 3):
        policy.offer(an_item(number, arrived=0.01 * number), 0.01 * number)
        assert policy.poll(0.01 * number, BUSY).release is None
    assert numbers(released(policy.poll(0.101, BUSY)).items) == [2, 3]


# Window


def test_a_lone_item_waits_for_its_window() -> None:
    policy = policy_with(WINDOW, [an_item(1, arrived=5.0)])
    held = policy.poll(5.0, IDLE)
    assert (held.release, held.reason) == (None, HoldReason.GATHERING)
    assert held.wake_at == pytest.approx(5.010)
    decision = policy.poll(held.wake_at, IDLE)
    assert numbers(released(decision).items) == [1]
    assert decision.reason is ReleaseReason.DELAY


def test_a_window_opens_when_the_oldest_member_arrives_and_not_when_somebody_looks() -> None:
    policy = policy_with(WINDOW, [an_item(1, arrived=5.0), an_item(2, arrived=5.008)])
    assert policy.poll(5.009, IDLE).wake_at == pytest.approx(5.010)
    assert numbers(released(policy.poll(5.010, IDLE)).items) == [1, 2]


def test_a_window_moves_on_when_its_oldest_member_leaves() -> None:
    policy = policy_with(WINDOW, [an_item(1, arrived=5.0), an_item(2, arrived=5.008)])
    policy.withdraw(an_item(1).id, 5.009)
    assert policy.poll(5.010, IDLE).wake_at == pytest.approx(5.018)


def test_a_wait_of_zero_holds_nothing() -> None:
    policy = policy_with(replace(WINDOW, max_wait_seconds=0.0), [an_item(1)])
    assert policy.poll(0.0, IDLE).release is not None


def test_a_batch_whose_window_is_over_grows_until_the_model_is_free() -> None:
    policy = policy_with(WINDOW, [an_item(1)], PROFILE)
    start(policy, 0.010)
    policy.offer(an_item(2, arrived=0.020), 0.020)
    held = policy.poll(0.050, BUSY)
    assert (held.release, held.reason) == (None, HoldReason.BUSY)
    policy.offer(an_item(3, arrived=0.060), 0.060)
    assert numbers(released(policy.poll(held.wake_at, BUSY)).items) == [2, 3]


def test_the_wake_up_is_the_later_of_the_window_and_the_free_model() -> None:
    policy = policy_with(WINDOW, [an_item(1)], PROFILE)
    start(policy, 0.010)
    policy.offer(an_item(2, arrived=0.020), 0.020)
    assert policy.poll(0.020, BUSY).wake_at == pytest.approx(0.110)
    policy.withdraw(an_item(2).id, 0.1)
    policy.offer(an_item(3, arrived=0.105), 0.105)
    assert policy.poll(0.105, BUSY).wake_at == pytest.approx(0.115)


# Both


@both
def test_a_full_group_leaves_at_once(settings: BatchSettings) -> None:
    policy = policy_with(settings, [an_item(n) for n in range(5)])
    decision = policy.poll(0.0, IDLE)
    assert numbers(released(decision).items) == [0, 1, 2, 3]
    assert decision.reason is ReleaseReason.FULL
    assert decision.wake_at == 0.0


@both
def test_a_full_group_leaves_while_the_model_runs_because_it_cannot_grow(
    settings: BatchSettings,
) -> None:
    policy = policy_with(settings, [an_item(n) for n in range(8)], PROFILE)
    start(policy, 0.0)
    decision = policy.poll(0.0, BUSY)
    assert numbers(released(decision).items) == [4, 5, 6, 7]
    assert decision.reason is ReleaseReason.FULL


@both
def test_of_two_full_groups_the_one_with_the_older_head_leaves(settings: BatchSettings) -> None:
    items = [an_item(n, key="ab"[n % 2], arrived=n / 1e6) for n in range(8)]
    assert numbers(released(policy_with(settings, items).poll(0.001, IDLE)).items) == [0, 2, 4, 6]


@both
@pytest.mark.parametrize("slots", [TAKEN, ABSENT], ids=["all slots taken", "no server"])
def test_nothing_leaves_when_the_server_can_take_nothing(
    settings: BatchSettings, slots: Slots
) -> None:
    policy = policy_with(settings, [an_item(n) for n in range(5)])
    held = policy.poll(1.0, slots)
    assert held.release is None
    assert held.wake_at == NEVER


@both
def test_without_a_profile_one_batch_at_a_time_is_handed_over(settings: BatchSettings) -> None:
    policy = policy_with(settings, [an_item(1), an_item(2)])
    batch = start(policy, 1.0)
    policy.offer(an_item(3, arrived=1.0), 1.0)
    assert policy.poll(9.0, BUSY).wake_at == NEVER
    policy.observe(Finished(batch=batch.id, compute_seconds=0.1), 9.0)
    assert numbers(released(policy.poll(9.0, IDLE)).items) == [3]


@both
def test_nothing_waits_means_never(settings: BatchSettings) -> None:
    decision = new_policy(settings, PROFILE).poll(0.0, IDLE)
    assert decision == Decision(release=None, shed=(), wake_at=NEVER, reason=HoldReason.EMPTY)


@both
def test_an_item_is_shed_at_its_deadline_and_never_released(settings: BatchSettings) -> None:
    policy = policy_with(settings, [an_item(1, deadline=2.0), an_item(2, deadline=2.1)])
    decision = policy.poll(2.0, IDLE)
    assert expired(decision) == [1]
    assert numbers(released(decision).items) == [2]


@both
def test_when_all_items_are_late_nothing_is_left_to_wait_for(settings: BatchSettings) -> None:
    policy = policy_with(settings, [an_item(1, deadline=2.0), an_item(2, deadline=2.0)])
    decision = policy.poll(3.0, IDLE)
    assert expired(decision) == [1, 2]
    assert (decision.release, decision.wake_at, decision.reason) == (None, NEVER, HoldReason.EMPTY)


def test_late_items_make_no_group_full() -> None:
    late = [an_item(n, deadline=1.0) for n in range(3)]
    policy = policy_with(WINDOW, [*late, an_item(3, arrived=1.0)])
    held = policy.poll(1.0, IDLE)
    assert expired(held) == [0, 1, 2]
    assert (held.release, held.reason) == (None, HoldReason.GATHERING)
    assert held.wake_at == pytest.approx(1.010)


def test_a_late_item_ends_nobody_elses_window() -> None:
    policy = policy_with(WINDOW, [an_item(1, deadline=1.0), an_item(2, arrived=0.995)])
    held = policy.poll(1.0, IDLE)
    assert expired(held) == [1]
    assert held.release is None
    assert held.wake_at == pytest.approx(1.005)


@every
def test_a_full_queue_refuses(settings: BatchSettings) -> None:
    policy = policy_with(settings, [an_item(n) for n in range(8)])
    refusal = policy.offer(an_item(8), 0.0)
    assert refusal is not None
    assert refusal.reason is Rejection.QUEUE_FULL
    start(policy, 0.0)
    assert policy.offer(an_item(8), 0.0) is None


@every
def test_a_refused_item_is_told_when_what_waits_will_be_served(settings: BatchSettings) -> None:
    policy = policy_with(settings, [an_item(n) for n in range(8)])
    batch = start(policy, 0.0)
    for number in range(8, 12):
        policy.offer(an_item(number), 0.0)
    policy.observe(Finished(batch=batch.id, compute_seconds=0.4), 0.4)
    refusal = policy.offer(an_item(12), 0.4)
    assert refusal is not None
    assert refusal.retry_after == pytest.approx(8 * 0.4 / 4)


@every
@pytest.mark.parametrize(
    ("took", "retry_after"),
    [(None, 1.0), (1e-6, 0.01), (3600.0, 60.0)],
    ids=["unknown", "fast", "slow"],
)
def test_a_retry_delay_stays_within_bounds(
    settings: BatchSettings, took: float | None, retry_after: float
) -> None:
    policy = policy_with(settings, [an_item(n, deadline=1e9) for n in range(8)])
    batch = start(policy, 0.0)
    for number in range(8, 12):
        policy.offer(an_item(number, deadline=1e9), 0.0)
    policy.observe(Finished(batch=batch.id, compute_seconds=took), took or 1.0)
    refusal = policy.offer(an_item(12), 0.0)
    assert refusal is not None
    assert refusal.retry_after == retry_after


@both
def test_a_withdrawn_item_is_forgotten_and_frees_its_place(settings: BatchSettings) -> None:
    policy = policy_with(settings, [an_item(n) for n in range(8)])
    policy.withdraw(an_item(2).id, 0.0)
    policy.withdraw(an_item(2).id, 0.0)
    policy.withdraw(an_item(99).id, 0.0)
    assert policy.offer(an_item(8), 0.0) is None
    assert numbers(released(policy.poll(0.0, IDLE)).items) == [0, 1, 3, 4]


@both
def test_incompatible_items_never_share_a_batch(settings: BatchSettings) -> None:
    items = [an_item(n, key="aab"[n]) for n in range(3)]
    policy = policy_with(settings, items)
    assert numbers(released(policy.poll(1.0, IDLE)).items) == [0, 1]
    assert numbers(released(policy.poll(1.0, IDLE)).items) == [2]


@both
def test_of_two_groups_the_one_with_the_older_head_leaves(settings: BatchSettings) -> None:
    items = [an_item(1, key="b", arrived=0.0), an_item(2, key="a", arrived=0.5)]
    assert numbers(released(policy_with(settings, items).poll(1.0, IDLE)).items) == [1]
    swapped = [an_item(1, key="b", arrived=0.5), an_item(2, key="a", arrived=0.0)]
    assert numbers(released(policy_with(settings, swapped).poll(1.0, IDLE)).items) == [2]


@both
def test_only_items_of_one_length_class_share_a_batch(settings: BatchSettings) -> None:
    lengths = [8, 9, 7, 32, 33, 500]
    bucketed = replace(settings, length_buckets=(8, 32))
    items = [an_item(n, length=length) for n, length in enumerate(lengths)]
    policy = policy_with(bucketed, items)
    batches = [numbers(released(policy.poll(1.0, IDLE)).items) for _ in range(3)]
    assert batches == [[0, 2], [1, 3], [4, 5]]


@both
def test_batches_that_failed_teach_nothing(settings: BatchSettings) -> None:
    policy = policy_with(settings, [an_item(1)], PROFILE)
    batch = start(policy, 1.0)
    policy.observe(Finished(batch=batch.id, compute_seconds=None), 1.5)
    policy.offer(an_item(2, arrived=2.0), 2.0)
    start(policy, 2.5)
    policy.offer(an_item(3, arrived=2.5), 2.5)
    assert policy.poll(2.52, BUSY).wake_at == pytest.approx(2.6)
