"""Traffic that is not alike: keys, priorities, deadlines, late ones, and a wrong profile."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness
from batchedmodel_contract.outcomes import ReleaseReason
from batchedmodel_scheduling.batching.policies import new_policy
from batchedmodel_scheduling.queue.items import Item, Priority
from support.scheduling import IDLE, measured, policy_with, released, row_profile, serve
from support.strategies import an_item

# 6 ms for one, 21 ms for sixteen.
FIXED, PER_ROW = 0.005, 0.001
DEVICE = row_profile(FIXED, PER_ROW)
SETTINGS = BatchSettings(
    max_batch_size=16, max_queue_size=4096, max_wait_seconds=0.005, target_seconds=0.1
)
REFUSE = replace(SETTINGS, lateness=Lateness.REFUSE)


def seconds(lengths: Sequence[int]) -> float:
    return FIXED + PER_ROW * len(lengths)


def steady(rate: float, until: float, first: int = 0) -> list[Item]:
    """Items due 100 ms after they came."""
    gaps = range(int(rate * until))
    return [an_item(first + n, arrived=n / rate, due=n / rate + 0.1, deadline=30.0) for n in gaps]


def test_late_ones_of_another_key_are_served_beside_steady_traffic() -> None:
    burst = [an_item(100_000 + n, key="b", arrived=1.0, due=1.1, deadline=31.0) for n in range(200)]
    usual = steady(500.0, 8.0)
    served = serve(new_policy(SETTINGS, DEVICE), [*usual, *burst], seconds)
    assert max(served.finished[item.id] for item in burst) < 3.0
    assert len(served.late(usual)) <= 0.05 * len(usual)


@pytest.mark.slow
def test_late_packed_ones_are_served_beside_steady_traffic() -> None:
    def packed_seconds(lengths: Sequence[int]) -> float:
        return 0.004 + 6e-6 * sum(lengths)

    profile = measured(
        [(r, n, packed_seconds([n] * r)) for r in (1, 4, 16) for n in (8, 64, 512)], CostRule.PACKED
    )
    usual = [item._replace(length=90) for item in steady(1000.0, 6.0)]
    burst = [
        an_item(100_000 + n, length=300, arrived=1.0, due=1.1, deadline=31.0) for n in range(100)
    ]
    served = serve(new_policy(SETTINGS, profile), [*usual, *burst], packed_seconds)
    assert max(served.finished[item.id] for item in burst) < 4.0


def test_a_caller_in_a_hurry_is_not_refused_for_those_who_have_time() -> None:
    patient = [an_item(n, due=1.0, deadline=1.0) for n in range(60)]
    hurried = an_item(99, due=0.05, deadline=0.05)
    policy = policy_with(REFUSE, patient, DEVICE)
    assert policy.offer(hurried, 0.0) is None
    assert 99 in released(policy.poll(0.0, IDLE))


def test_the_turn_of_a_priority_makes_no_batch_that_is_late_for_all() -> None:
    tight = replace(REFUSE, target_seconds=0.05)
    items = [
        an_item(
            n,
            arrived=n / 2000,
            due=n / 2000 + 0.05,
            deadline=n / 2000 + 0.05,
            priority=Priority.LOW if n % 4 == 0 else Priority.HIGH,
        )
        for n in range(4000)
    ]
    served = serve(new_policy(tight, row_profile(0.005, 0.0005, (1, 16, 64))), items, _quicker)
    turns = [batch for _, batch in served.batches if batch.reason is ReleaseReason.FLOOR]
    late = {int(item.id) for batch in turns for item in batch.items} & set(served.late(items))
    assert len(late) <= 0.2 * sum(len(batch.items) for batch in turns)
    answered = [item for item in items if item.id in served.finished]
    assert len(set(served.late(answered))) <= 0.01 * len(answered)


def _quicker(lengths: Sequence[int]) -> float:
    return 0.005 + 0.0005 * len(lengths)


def test_the_highest_priority_is_the_last_to_be_given_up_by_a_packing_device_too() -> None:
    def packed_seconds(lengths: Sequence[int]) -> float:
        return 0.004 + 6e-6 * sum(lengths)

    profile = measured(
        [(r, n, packed_seconds([n] * r)) for r in (1, 4, 16) for n in (8, 64, 512)], CostRule.PACKED
    )
    items = [
        an_item(
            n,
            length=100,
            arrived=n / 1600,
            due=n / 1600 + 0.05,
            deadline=n / 1600 + 0.05,
            priority=[Priority.HIGH, Priority.NORMAL, Priority.NORMAL][n % 3],
        )
        for n in range(4000)
    ]
    tight = replace(REFUSE, target_seconds=0.05)
    served = serve(new_policy(tight, profile), items, packed_seconds)
    share = {
        priority: sum(item.id in served.finished for item in items if item.priority is priority)
        / sum(item.priority is priority for item in items)
        for priority in (Priority.HIGH, Priority.NORMAL)
    }
    assert share[Priority.HIGH] > 0.98
    assert share[Priority.NORMAL] < share[Priority.HIGH]


@pytest.mark.parametrize("factor", [3.0, 10.0])
def test_a_profile_that_is_far_too_slow_locks_callers_out_for_seconds_only(factor: float) -> None:
    slow = row_profile(factor * FIXED, factor * PER_ROW)
    target = replace(REFUSE, target_seconds=2.5 * (FIXED + PER_ROW))
    items = [
        an_item(n, arrived=n / 50, due=n / 50 + 0.015, deadline=n / 50 + 0.015) for n in range(1500)
    ]
    served = serve(new_policy(target, slow), items, seconds)
    behind = [item for item in items if item.arrived > 15.0]
    assert sum(item.id in served.finished for item in behind) >= 0.99 * len(behind)


@pytest.mark.interpreted
@pytest.mark.parametrize("lone", [3, 5, 20])
def test_a_full_batch_leaves_at_once_however_many_wait_for_company(lone: int) -> None:
    waiting = replace(SETTINGS, max_batch_size=8, max_wait_seconds=0.05)
    # Clumps have been seen, so that lone ones are held.
    items = [an_item(n, key=str(n), due=5.0) for n in range(lone)]
    items += [an_item(100 + n, key="full", due=9.0) for n in range(8)]
    policy = policy_with(waiting, items, DEVICE)
    policy._gaps.of = lambda key: _Company()  # type: ignore[attr-defined]
    decision = policy.poll(0.0, IDLE)
    assert sorted(released(decision)) == list(range(100, 108))
    assert decision.reason is ReleaseReason.FULL


class _Company:
    """Gaps that always promise company."""

    def worth_waiting(self, now: float, items: int, **_: float) -> float:
        return now + 0.01


@pytest.mark.interpreted
def test_nothing_is_held_for_company_while_late_ones_could_run() -> None:
    policy = policy_with(SETTINGS, [an_item(1, due=-1.0, deadline=30.0)], DEVICE)
    assert policy.offer(an_item(2, due=5.0), 0.0) is None
    policy._gaps.of = lambda key: _Company()  # type: ignore[attr-defined]
    decision = policy.poll(0.0, IDLE)
    assert decision.release is not None


def test_a_packed_batch_knows_what_one_more_would_cost() -> None:
    """Waiting saves the newcomer a launch, not all of its own time."""
    rate, gap = 30.0, 1 / 30.0
    profile = measured(
        [(r, n, 0.004 + 6e-6 * r * n) for r in (1, 4, 16) for n in (8, 64, 512)], CostRule.PACKED
    )
    items = [
        an_item(n, length=500, arrived=n * gap, due=n * gap + 0.1, deadline=60.0)
        for n in range(int(10 * rate))
    ]
    served = serve(
        new_policy(SETTINGS, profile), items, lambda lengths: 0.004 + 6e-6 * sum(lengths)
    )
    assert all(served.finished[item.id] - item.arrived < 0.0085 for item in items[50:])
