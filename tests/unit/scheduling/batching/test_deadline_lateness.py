"""What `Deadline` does when not all can be in time: refuse, shed, serve late, make room."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness, Objective
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import HoldReason, Outcome, Rejection, ReleaseReason
from batchedmodel_scheduling.batching.decisions import Decision, Finished, Slots
from batchedmodel_scheduling.batching.policies import new_policy, relearning
from batchedmodel_scheduling.batching.policy import BasePolicy
from batchedmodel_scheduling.queue.items import NEVER, Item, Priority
from support.scheduling import BUSY, IDLE, measured, offer, released, row_profile, serve, start
from support.strategies import an_item

SERVE = BatchSettings(
    max_batch_size=4, max_queue_size=64, max_wait_seconds=0.005, target_seconds=0.05
)
REFUSE = replace(SERVE, lateness=Lateness.REFUSE)
# 15 ms for one, 30 ms for four.
DEVICE = row_profile(0.010, 0.005)
HIGH, NORMAL, LOW = Priority


def seconds(lengths: Sequence[int]) -> float:
    return 0.010 + 0.005 * len(lengths)


def running(settings: BatchSettings, profile: Profile | None = DEVICE) -> BasePolicy:
    """A policy whose server has just, at time 0, answered a batch."""
    policy = new_policy(settings, profile)
    assert policy.offer(an_item(10_000, arrived=-0.017), -0.017) is None
    batch = start(policy, -0.017)
    policy.observe(Finished(batch=batch.id, compute_seconds=0.015), 0.0)
    return policy


def strict(
    number: int, due: float, arrived: float = 0.0, priority: Priority = Priority.NORMAL
) -> Item:
    """An answer that comes late is of no use."""
    return an_item(number, arrived=arrived, due=due, deadline=due, priority=priority)


def shed(decision: Decision) -> list[tuple[int, Outcome]]:
    return [(int(one.item.id), one.outcome) for one in decision.shed]


# Late answers are of no use


def waiting(policy: BasePolicy) -> list[Item]:
    return [*policy.queue, *policy.queue.evicted]


def test_what_would_be_late_even_alone_is_refused_with_a_retry_delay() -> None:
    refusal = running(REFUSE).offer(strict(1, 0.012), 0.0)
    assert refusal is not None
    assert refusal.reason is Rejection.PREDICTED_LATE
    assert 0 < refusal.retry_after <= 60


def test_who_cannot_be_in_time_on_an_idle_server_need_not_try_again_soon() -> None:
    hopeless = running(REFUSE).offer(strict(1, 0.012), 0.0)
    assert hopeless is not None
    policy = running(REFUSE)
    offer(policy, [strict(n, 0.050) for n in range(6)])
    crowded_out = policy.offer(strict(6, 0.040), 0.0)
    assert crowded_out is not None
    # Six rows wait, and the last one took 17 ms.
    assert crowded_out.retry_after == pytest.approx(6 * 0.017)
    assert hopeless.retry_after == 60.0


def test_one_more_than_full_batches_could_serve_in_time_is_refused() -> None:
    policy = running(REFUSE)
    offer(policy, [strict(n, 0.050) for n in range(6)])
    refusal = policy.offer(strict(6, 0.040), 0.0)
    assert refusal is not None
    assert refusal.reason is Rejection.PREDICTED_LATE


def test_by_rows_the_plan_and_not_the_arrival_says_which_length_is_given_up() -> None:
    policy = running(replace(REFUSE, objective=Objective.ROWS))
    offer(policy, [strict(n, 0.050) for n in range(6)])
    shorter = an_item(6, length=3, arrived=0.0, due=0.040, deadline=0.040)
    assert policy.offer(shorter, 0.0) is None


def test_what_can_be_in_time_is_not_refused_for_others_of_lower_priority() -> None:
    policy = running(REFUSE)
    offer(policy, [strict(n, 0.050, priority=LOW) for n in range(6)])
    assert policy.offer(strict(6, 0.040, priority=HIGH), 0.0) is None


def test_what_became_hopeless_is_told_as_soon_as_the_batch_before_it_has_left() -> None:
    policy = running(REFUSE)
    offer(policy, [*(strict(n, 0.034) for n in range(4)), strict(4, 0.040)])
    assert [item.id for item in start(policy, 0.0).items] == [0, 1, 2, 3]
    told = policy.poll(0.0, BUSY)
    assert shed(told) == [(4, Outcome.SHED)]
    # Nothing waits any more, so that no timer needs to ring.
    assert (told.wake_at, told.reason) == (NEVER, HoldReason.EMPTY)


def test_under_overload_what_is_accepted_is_served_in_time_or_given_up_early() -> None:
    """Twice what the device can do: it goes on at nearly its full rate."""
    items = [strict(n, n / 200 + 0.2, n / 200) for n in range(1000)]
    served = serve(new_policy(replace(REFUSE, target_seconds=0.2), DEVICE), items, seconds)
    in_time = 1000 - len(served.late(items))
    assert in_time >= 0.9 * 4 / 0.030 * 5.0
    assert len(served.finished) - in_time <= 0.005 * len(served.finished)
    for when, gone in served.shed:
        assert gone.outcome is Outcome.SHED
        assert when < gone.item.deadline
    assert len(served.finished) + len(served.refused) + len(served.shed) == 1000


def test_what_expired_behind_the_head_of_its_lane_is_not_released() -> None:
    """HIGH stands before NORMAL that was due earlier, so that heads alone say too little."""
    policy = running(replace(REFUSE, target_seconds=1.0))
    offer(policy, [strict(1, 5.9, priority=HIGH), strict(2, 5.0), strict(3, 9.0)])
    decision = policy.poll(5.05, IDLE)
    assert shed(decision) == [(2, Outcome.EXPIRED)]
    assert sorted(released(decision)) == [1, 3]


def test_what_is_hopeless_behind_the_head_of_its_lane_is_shed() -> None:
    policy = running(replace(REFUSE, target_seconds=1.0))
    offer(policy, [strict(1, 0.9, priority=HIGH), strict(2, 0.10), strict(3, 9.0)])
    policy.pipeline.release([an_item(9)], ReleaseReason.IDLE)  # something runs: not unproven
    decision = policy.poll(0.09, IDLE)
    assert shed(decision) == [(2, Outcome.SHED)]
    assert sorted(released(decision)) == [1, 3]


def test_a_priority_is_no_more_than_a_head_start() -> None:
    """One of high priority with all the time in the world does not cost another its time."""
    policy = running(replace(SERVE, target_seconds=None))
    offer(policy, [an_item(1, due=10.0, priority=HIGH), strict(2, 0.020), an_item(3, due=20.0)])
    assert 2 in released(policy.poll(0.0, IDLE))


# Late answers are served


def test_a_late_one_is_served_from_spare_time() -> None:
    policy = running(SERVE)
    offer(policy, [an_item(1, due=0.010, deadline=30.0)])
    decision = policy.poll(0.0, IDLE)
    assert released(decision) == [1]
    assert decision.reason is ReleaseReason.SPARE


def test_a_burst_is_served_late_and_makes_nobody_else_late() -> None:
    burst = [an_item(n, due=0.05, deadline=30.0) for n in range(12)]
    others = [
        an_item(100 + n, arrived=0.04 * n, due=0.04 * n + 0.05, deadline=30.0) for n in range(2, 40)
    ]
    served = serve(new_policy(SERVE, DEVICE), [*burst, *others], seconds)
    assert len(served.finished) == 50
    assert served.shed == []
    assert served.late(others) == []
    assert len(served.late(burst)) <= 8


def test_late_ones_go_along_where_there_is_room() -> None:
    policy = running(SERVE)
    offer(policy, [an_item(n, due=0.010) for n in (1, 2)])
    offer(policy, [an_item(3, due=0.049)])
    decision = policy.poll(0.0, IDLE)
    assert 3 in released(decision)
    assert len(released(decision)) >= 2


def test_a_late_one_that_nobody_waits_for_any_more_expires() -> None:
    policy = running(SERVE)
    offer(policy, [an_item(1, due=0.010, deadline=0.5)])
    assert shed(policy.poll(0.5, IDLE)) == [(1, Outcome.EXPIRED)]


def test_late_ones_of_very_different_lengths_do_not_pad_each_other() -> None:
    points = [(r, n, 0.001 + 0.001 * r * n) for r in (1, 4) for n in (4, 60)]
    padded = measured(points)
    policy = running(replace(SERVE, target_seconds=None), padded)
    offer(policy, [an_item(n, length=[4, 60][n % 2], due=0.001) for n in range(8)])
    batches = [sorted(released(policy.poll(0.0, IDLE))) for _ in range(2)]
    assert batches == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_a_target_out_of_reach_makes_no_small_batches() -> None:
    """Two single rows in a row miss it: nobody is served sooner by hurrying."""
    items = [an_item(n, arrived=n / 500, due=n / 500 + 0.02, deadline=30.0) for n in range(60)]
    served = serve(new_policy(replace(SERVE, target_seconds=0.02), DEVICE), items, seconds)
    assert len(served.finished) == 60
    sizes = [len(batch.items) for _, batch in served.batches]
    assert sizes[1:-1] == [4] * (len(sizes) - 2)
    assert served.refused == {}
    order = [item.id for _, batch in served.batches for item in batch.items]
    assert order == sorted(order)


# The queue is full


def full_of_late_ones(room: int = 2) -> BasePolicy:
    """Both are late, and stay because the server has no slot for them."""
    policy = running(replace(SERVE, max_batch_size=1, max_queue_size=room))
    offer(policy, [an_item(0)])
    start(policy, 0.0)
    offer(policy, [an_item(n, due=0.020) for n in range(1, room + 1)])
    assert policy.poll(0.0, BUSY).release is None
    return policy


def test_a_queue_full_of_late_ones_makes_room_for_one_that_can_be_in_time() -> None:
    policy = full_of_late_ones()
    assert policy.offer(an_item(3, due=0.050), 0.0) is None
    decision = policy.poll(0.0, BUSY)
    assert shed(decision) == [(2, Outcome.EVICTED)]
    assert sorted([*released(decision), *(int(item.id) for item in waiting(policy))]) == [1, 3]


def test_late_ones_make_room_after_an_edit_as_before() -> None:
    """They counted as in time until the device was free, and newcomers were refused."""
    policy, full = full_of_late_ones(), Slots(depth=1, in_flight=1)
    policy.configure(replace(policy.settings, max_wait_seconds=0.004), 0.0)
    assert policy.poll(0.0, full).release is None
    assert policy.offer(an_item(3, due=0.050), 0.0) is None


def test_nobody_is_evicted_for_one_that_would_be_late_as_well() -> None:
    policy = full_of_late_ones()
    refusal = policy.offer(an_item(3, due=0.020), 0.0)
    assert refusal is not None
    assert refusal.reason is Rejection.QUEUE_FULL


def test_a_queue_full_of_those_that_may_be_in_time_refuses() -> None:
    policy = running(replace(SERVE, max_queue_size=4))
    offer(policy, [an_item(n, due=0.045) for n in range(4)])
    refusal = policy.offer(an_item(4, due=0.050), 0.0)
    assert refusal is not None
    assert refusal.reason is Rejection.QUEUE_FULL


def test_one_that_was_evicted_waits_until_somebody_is_told() -> None:
    """A successor takes over what waits: without this its caller would never hear of it."""
    policy = full_of_late_ones()
    policy.offer(an_item(3, due=0.050), 0.0)
    assert sorted(int(item.id) for item in waiting(policy)) == [1, 2, 3]
    successor = relearning(policy, DEVICE)
    assert sorted(int(item.id) for item in waiting(successor)) == [
        1,
        2,
        3,
    ]


def test_one_that_was_evicted_and_left_before_that_is_told_nothing() -> None:
    policy = full_of_late_ones()
    policy.offer(an_item(3, due=0.050), 0.0)
    policy.withdraw(an_item(2).id, 0.0)
    assert shed(policy.poll(0.0, BUSY)) == []


def full_of_two_tenants(late: int, on_time: int) -> BasePolicy:
    """Eight items: `a` has late ones and some on time, `b` the rest."""
    policy = running(replace(SERVE, max_batch_size=1, max_queue_size=8))
    offer(policy, [an_item(0)])
    start(policy, 0.0)
    offer(policy, [of("a", 1 + at, due=0.020) for at in range(late)])
    assert policy.poll(0.0, BUSY).release is None
    assert len(policy.queue.late) == late
    offer(policy, [of("a", 10 + at, due=0.5) for at in range(on_time)])
    rest = [of("b", 20 + at, due=0.5) for at in range(8 - late - on_time)]
    assert policy.offer_call(rest, 0.0) is None
    return policy


def of(tenant: str, number: int, due: float) -> Item:
    return an_item(number, due=due)._replace(share=Share(tenant))


def test_a_late_one_makes_room_for_another_of_a_tenant_that_may_have_no_more() -> None:
    """It was ended, and the call was told that the queue is full all the same."""
    policy = full_of_two_tenants(late=1, on_time=1)
    assert policy.offer(of("a", 30, due=0.5), 0.0) is None
    assert [int(item.id) for item in policy.queue.evicted] == [1]
    refusal = policy.offer(of("a", 31, due=0.5), 0.0)
    assert refusal is not None
    assert refusal.reason is Rejection.QUEUE_FULL
    assert len(policy.queue.evicted) == 1
    assert policy.queue.room.in_use == 8


def test_no_late_one_is_ended_for_a_call_that_is_refused_for_another_reason() -> None:
    """This one is no use when late, and those before it take longer than it can wait."""
    policy = full_of_two_tenants(late=3, on_time=0)
    refusal = policy.offer(strict(30, due=0.040)._replace(share=Share("a")), 0.0)
    assert refusal is not None
    assert refusal.reason is Rejection.PREDICTED_LATE
    assert policy.queue.evicted == []
    assert len(policy.queue.late) == 3


# An estimate that is wrong


def test_a_wrong_profile_locks_nobody_out_and_is_corrected() -> None:
    """Ten seconds for what takes a thousandth of that."""
    slow = row_profile(10.0, 0.0)
    items = [strict(n, 0.3 * n + 0.1, 0.3 * n) for n in range(600)]
    served = serve(new_policy(REFUSE, slow), items, lambda lengths: 0.010)
    in_time = [item.id for item in items if item.id not in served.late(items)]
    assert 10.0 <= 0.3 * in_time[0] <= 10.5
    assert all(number in in_time for number in range(500, 600))


def test_what_the_profile_rules_out_is_refused_at_once() -> None:
    policy = new_policy(REFUSE, row_profile(10.0, 0.0))
    refusal = policy.offer(strict(1, 0.1, 0.0), 0.0)
    assert refusal is not None
    assert refusal.reason is Rejection.PREDICTED_LATE


def test_where_nothing_can_be_learnt_one_goes_through_every_ten_seconds() -> None:
    """Every batch fails, so that the estimate stays wrong for ever."""
    policy, now, tried = new_policy(REFUSE, row_profile(10.0, 0.0)), 0.0, []
    for number in range(400):
        now = 0.25 * number
        if policy.offer(strict(number, now + 0.1, now), now) is None:
            batch = start(policy, now)
            policy.observe(Finished(batch=batch.id, compute_seconds=None), now + 0.01)
            tried.append(now)
    gaps = [after - before for before, after in pairwise(tried)]
    assert tried[0] == 10.0
    assert max(gaps) <= 11.5
    assert min(gaps) >= 10.0


@pytest.mark.slow
@pytest.mark.parametrize("settings", [SERVE, REFUSE], ids=["Serve", "Refuse"])
def test_a_device_that_became_faster_is_used_again(settings: BatchSettings) -> None:
    """Profiled too slow by far, with a steady load that the real device carries easily.

    Under Refuse it is tried every ten seconds, and it takes some batches to believe in it.
    """
    late = 30.0 if settings is SERVE else 0.0
    items = [
        an_item(n, arrived=0.02 * n, due=0.02 * n + 0.05, deadline=0.02 * n + 0.05 + late)
        for n in range(6000)
    ]
    served = serve(new_policy(settings, row_profile(0.5, 0.5)), items, seconds)
    assert all(number < 5500 for number in served.late(items))


def test_a_long_list_ends_no_accepted_call_for_its_own_sake() -> None:
    policy = running(replace(SERVE, max_queue_size=16))
    late = [an_item(number, due=0.001, deadline=30.0) for number in range(14)]
    for item in late:
        assert policy.offer(item, 0.0) is None
    policy.poll(0.0, BUSY)
    assert len(policy.queue.late) == 14
    many = [an_item(100 + number, due=1.0, deadline=30.0) for number in range(5)]
    refusal = policy.offer_call(many, 0.0)
    assert refusal is not None
    assert refusal.reason is Rejection.QUEUE_FULL
    assert policy.offer_call(many[:4], 0.0) is None
    assert len(policy.queue.evicted) >= 2
