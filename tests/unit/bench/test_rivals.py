"""Each rival does what its system does, case by case."""

from collections.abc import Sequence

import pytest

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import HoldReason, Outcome, Rejection, ReleaseReason
from batchedmodel_scheduling.batching.decisions import Decision, Finished, Policy, Slots
from batchedmodel_scheduling.queue.items import NEVER, Item, ItemId, Priority
from rival_policies.bucket_window import BucketWindow
from rival_policies.clockwork import Clockwork
from rival_policies.cork import Cork, Line
from rival_policies.learning import Learning
from rival_policies.nexus import Nexus
from rival_policies.tei import Tei
from rival_policies.triton import Triton

FREE = Slots(depth=1, in_flight=0)
BUSY = Slots(depth=1, in_flight=1)
LIMIT = 0.05


def caps(rows: int = 4, wait: float = 0.0, edges: tuple[int, ...] = ()) -> BatchSettings:
    return BatchSettings(max_batch_size=rows, max_wait_seconds=wait, length_buckets=edges)


def a_row(
    number: int,
    *,
    at: float = 0.0,
    length: int = 1,
    patience: float = 1000.0,
    key: str = "a",
    priority: Priority = Priority.NORMAL,
) -> Item:
    return Item(
        id=ItemId(number),
        key=key,
        length=length,
        arrived=at,
        due=at + patience,
        deadline=at + patience,
        priority=priority,
    )


def offered(policy: Policy, *items: Item) -> Policy:
    for item in items:
        assert policy.offer(item, item.arrived) is None
    return policy


def rows(count: int, *, at: float = 0.0, patience: float = 1000.0) -> list[Item]:
    return [a_row(number, at=at, patience=patience) for number in range(1, count + 1)]


def released(decision: Decision) -> list[int]:
    return [item.id for item in decision.release.items] if decision.release else []


def shed(decision: Decision) -> list[int]:
    return [given_up.item.id for given_up in decision.shed]


def linear(lengths: Sequence[int]) -> float:
    """5 ms, and 1 ms for each row of length 1."""
    return 0.005 + 0.001 * len(lengths) * max(lengths)


# What all share


@pytest.mark.parametrize("policy", [BucketWindow(caps()), Triton(caps()), Tei(caps())])
def test_a_batch_takes_the_oldest_of_one_key(policy: Policy) -> None:
    offered(policy, a_row(1), a_row(2), a_row(3, key="b"), a_row(4, key="b"))

    assert released(policy.poll(1.0, FREE)) == [1, 2]
    assert released(policy.poll(1.0, FREE)) == [3, 4]
    assert policy.poll(1.0, FREE).reason is HoldReason.EMPTY


def test_a_busy_server_is_handed_nothing() -> None:
    policy = offered(Triton(caps()), *rows(9))

    assert policy.poll(1.0, BUSY).reason is HoldReason.BUSY
    assert policy.poll(1.0, BUSY).wake_at == NEVER


def test_the_queue_is_bounded() -> None:
    settings = BatchSettings(max_batch_size=2, max_queue_size=2)
    policy = offered(Tei(settings), *rows(2))

    refusal = policy.offer(a_row(3), 0.0)

    assert refusal is not None
    assert refusal.reason is Rejection.QUEUE_FULL


def test_who_left_is_not_served() -> None:
    policy = offered(BucketWindow(caps()), *rows(3))

    policy.withdraw(ItemId(2), 0.0)

    assert released(policy.poll(0.0, FREE)) == [1, 3]


# A window for each bucket


def test_a_bucket_waits_for_its_window_from_its_oldest_arrival() -> None:
    policy = offered(BucketWindow(caps(wait=0.01)), a_row(1, at=1.0), a_row(2, at=1.008))

    held = policy.poll(1.009, FREE)
    decision = policy.poll(held.wake_at, FREE)

    assert held.wake_at == pytest.approx(1.01)
    assert released(decision) == [1, 2]
    assert decision.reason is ReleaseReason.DELAY


def test_a_full_bucket_does_not_wait() -> None:
    decision = offered(BucketWindow(caps(rows=2, wait=0.01)), *rows(3)).poll(0.0, FREE)

    assert released(decision) == [1, 2]
    assert decision.reason is ReleaseReason.FULL


def test_buckets_are_not_merged_and_the_oldest_head_goes_first() -> None:
    policy = offered(
        BucketWindow(caps(edges=(10, 20))),
        a_row(1, at=0.1, length=30),
        a_row(2, at=0.2, length=10),
        a_row(3, at=0.3, length=500),
        a_row(4, at=0.4, length=11),
    )

    assert [released(policy.poll(1.0, FREE)) for _ in range(3)] == [[1, 3], [2], [4]]


def test_the_expired_are_served_late_unless_they_are_dropped() -> None:
    late = [*rows(1, patience=0.02), a_row(2, at=0.01, patience=0.02)]

    assert released(offered(BucketWindow(caps()), *late).poll(0.025, FREE)) == [1, 2]
    decision = offered(BucketWindow(caps(), drop_expired=True), *late).poll(0.025, FREE)
    assert (shed(decision), released(decision)) == ([1], [2])
    assert decision.shed[0].outcome is Outcome.EXPIRED


def test_other_edges_sort_what_waits_anew() -> None:
    policy = offered(BucketWindow(caps(edges=(10,))), a_row(1, length=5), a_row(2, length=15))

    policy.configure(caps(), 0.0)

    assert released(policy.poll(0.0, FREE)) == [1, 2]


# Triton


def test_without_a_delay_triton_takes_what_is_there() -> None:
    assert released(offered(Triton(caps()), *rows(3)).poll(0.0, FREE)) == [1, 2, 3]


def test_without_a_delay_triton_takes_the_largest_preferred_size() -> None:
    policy = offered(Triton(caps(rows=8), preferred=(4, 2)), *rows(7))

    assert released(policy.poll(0.0, FREE)) == [1, 2, 3, 4]
    assert released(policy.poll(0.0, FREE)) == [5, 6]
    assert released(policy.poll(0.0, FREE)) == [7]


def test_a_preferred_size_does_not_wait_for_the_delay() -> None:
    policy = offered(Triton(caps(wait=0.01), preferred=(2,)), *rows(3))

    assert released(policy.poll(0.0, FREE)) == [1, 2]
    held = policy.poll(0.0, FREE)
    assert (held.release, held.wake_at) == (None, 0.01)


def test_when_the_delay_is_over_preferred_sizes_count_no_more() -> None:
    policy = offered(Triton(caps(wait=0.01), preferred=(2,)), *rows(3))

    assert released(policy.poll(0.01, FREE)) == [1, 2, 3]


def test_tritons_delay_counts_from_the_oldest_of_the_batch() -> None:
    low = a_row(1, at=1.0, priority=Priority.LOW)
    high = a_row(2, at=1.006, priority=Priority.HIGH)

    assert offered(Triton(caps(wait=0.01)), low, high).poll(1.007, FREE).wake_at == 1.01


def test_a_higher_level_is_served_first_and_filled_up_from_below() -> None:
    policy = offered(
        Triton(caps(rows=2)),
        a_row(1, priority=Priority.LOW),
        a_row(2),
        a_row(3),
        a_row(4, at=1.0, priority=Priority.HIGH),
    )

    assert released(policy.poll(2.0, FREE)) == [2, 4]
    assert released(policy.poll(2.0, FREE)) == [1, 3]


def test_triton_rejects_the_expired_only_if_it_is_told_to() -> None:
    late = [*rows(1, patience=0.02), a_row(2, at=0.01)]

    assert released(offered(Triton(caps()), *late).poll(0.02, FREE)) == [1, 2]
    decision = offered(Triton(caps(), reject_expired=True), *late).poll(0.02, FREE)
    assert (shed(decision), released(decision)) == ([1], [2])


# Nexus


def test_nexus_assigns_the_size_of_which_two_in_a_row_fit() -> None:
    policy = offered(Nexus(caps(rows=64), linear, target=LIMIT), *rows(30))

    assert len(released(policy.poll(0.0, FREE))) == 20


def test_nexus_drops_heads_to_keep_the_batch_large() -> None:
    waiting = [a_row(n, at=0.001 * n, patience=LIMIT) for n in range(1, 31)]
    policy = offered(Nexus(caps(rows=64), linear, target=LIMIT), *waiting)

    decision = policy.poll(0.0305, FREE)

    # A batch of 20 ends at 55.5 ms, after the deadlines of the first five.
    assert shed(decision) == [1, 2, 3, 4, 5]
    assert released(decision) == list(range(6, 26))
    assert {given_up.outcome for given_up in decision.shed} == {Outcome.SHED}


def test_nexus_expects_less_when_too_few_are_left() -> None:
    waiting = [*rows(2, patience=0.007), a_row(3, patience=0.0065)]
    policy = offered(Nexus(caps(rows=64), linear, target=LIMIT), *waiting)

    decision = policy.poll(0.0, FREE)

    # Three need 8 ms and the earliest goes; two need 7 ms, which is just in time.
    assert (shed(decision), released(decision)) == ([3], [1, 2])


# Clockwork


def test_clockwork_takes_a_power_of_two_that_fits_its_head() -> None:
    waiting = rows(7, patience=LIMIT)

    assert len(released(offered(Clockwork(caps(rows=64), linear), *waiting).poll(0.0, FREE))) == 4
    late = offered(Clockwork(caps(rows=64), linear), *waiting).poll(0.043, FREE)
    assert len(released(late)) == 2


def test_clockwork_drops_a_head_that_alone_would_be_late() -> None:
    policy = offered(Clockwork(caps(), linear), a_row(1, patience=LIMIT), a_row(2, at=0.04))

    decision = policy.poll(0.045, FREE)

    assert (shed(decision), released(decision)) == ([1], [2])


@pytest.mark.parametrize(
    "rival", [Nexus(caps(rows=1), linear, target=LIMIT), Clockwork(caps(rows=1), linear)]
)
def test_the_earliest_deadline_is_the_head(rival: Policy) -> None:
    policy = offered(rival, a_row(1, patience=0.03), a_row(2, patience=0.02))

    assert released(policy.poll(0.0, FREE)) == [2]


# text-embeddings-inference


def test_tei_stops_before_its_padded_budget() -> None:
    waiting = [a_row(1, length=10), a_row(2, length=30), a_row(3, length=30), a_row(4, length=1)]
    policy = offered(Tei(caps(rows=8), budget=100), *waiting)

    assert released(policy.poll(0.0, FREE)) == [1, 2, 3]
    assert released(policy.poll(0.0, FREE)) == [4]


def test_tei_without_padding_counts_the_tokens_themselves() -> None:
    waiting = [a_row(1, length=10), a_row(2, length=30), a_row(3, length=60), a_row(4, length=1)]
    policy = offered(Tei(caps(rows=8), budget=100, padded=False), *waiting)

    assert released(policy.poll(0.0, FREE)) == [1, 2, 3]


def test_tei_refuses_what_fits_into_no_batch() -> None:
    refusal = Tei(caps(), budget=100).offer(a_row(1, length=101), 0.0)

    assert refusal is not None
    assert refusal.reason is Rejection.TOO_LARGE


# CORK


def trained_cork(size: int = 64) -> Cork:
    return Cork(caps(rows=size), limit=LIMIT, known=Line(per_row=0.001, fixed=0.005))


def run_of(policy: Policy, seconds: float, count: int, *, at: float = 0.0) -> int:
    """Rows of the batch that leaves when so many wait; it takes so long."""
    offered(policy, *(a_row(int(at * 1000) + n, at=at, patience=LIMIT) for n in range(count)))
    batch = policy.poll(at, FREE).release
    assert batch is not None
    policy.observe(Finished(batch=batch.id, compute_seconds=seconds), at + seconds)
    for item in [*getattr(policy, "waiting", {})]:
        policy.withdraw(item, at)
    return len(batch.items)


def test_a_planner_that_learns_tries_at_most_twice_what_has_run() -> None:
    policy = Learning(caps(rows=64), target=LIMIT)
    assert run_of(policy, 0.020, 1) == 1
    assert run_of(policy, 0.020, 30, at=1.0) == 2
    assert run_of(policy, 0.020, 30, at=2.0) == 5


def test_one_straggler_does_not_end_the_service_of_a_planner_that_learns() -> None:
    policy = Learning(caps(rows=64), target=LIMIT)
    run_of(policy, 5.0, 1)
    assert run_of(policy, 0.010, 3, at=10.0) == 1


def test_cork_drops_heads_that_the_whole_queue_would_make_late() -> None:
    policy = offered(trained_cork(), *rows(10), a_row(11, at=0.04))

    # 11 rows take 16 ms and 10 take 15 ms: the heads go until those left are on time at 50 ms.
    decision = policy.poll(0.0405, FREE)

    assert shed(decision) == [1, 2, 3, 4, 5, 6, 7]
    assert released(decision) == [8, 9, 10, 11]


def test_cork_counts_what_waits_beyond_its_greatest_batch() -> None:
    policy = offered(trained_cork(size=4), *rows(30))

    assert shed(policy.poll(0.0155, FREE)) == [1]


def test_cork_serves_a_lone_request_however_late() -> None:
    assert released(offered(trained_cork(), *rows(1)).poll(1.0, FREE)) == [1]


def test_cork_drops_a_lone_request_that_expires_behind_a_running_batch() -> None:
    policy = offered(trained_cork(), *rows(1))

    held = policy.poll(0.01, BUSY)

    assert held.wake_at == LIMIT
    assert shed(policy.poll(held.wake_at, BUSY)) == [1]
    assert policy.poll(LIMIT, BUSY).reason is HoldReason.EMPTY


def test_cork_waits_by_the_mean_wait_of_past_heads() -> None:
    policy = offered(trained_cork(), a_row(1, at=1.0))
    first = policy.poll(1.02, FREE).release
    assert first is not None
    policy.observe(Finished(batch=first.id, compute_seconds=0.006), 1.026)
    offered(policy, a_row(2, at=2.0))

    # A past head waited 20 ms: 1 * (wait + 1 ms + 1 ms) stays below 19 ms for 17 ms.
    held = policy.poll(2.0, FREE)

    assert held.reason is HoldReason.GATHERING
    assert held.wake_at == pytest.approx(2.017)
    assert released(policy.poll(held.wake_at, FREE)) == [2]


def test_cork_trains_on_small_batches_before_it_takes_what_waits() -> None:
    policy = Cork(caps(rows=64), limit=1.0)
    offered(policy, *rows(40))
    sizes, now = [], 0.0
    while (batch := policy.poll(now, FREE).release) is not None:
        sizes.append(len(batch.items))
        now += linear([1] * len(batch.items))
        policy.observe(Finished(batch=batch.id, compute_seconds=0.001), now)

    assert sizes == [1] * 9 + [2, 3, 26]


def test_a_trained_cork_has_learnt_the_line() -> None:
    policy, now = Cork(caps(rows=64), limit=LIMIT), 0.0
    for number in range(200):
        offered(policy, *(a_row(10 * number + n, at=now) for n in range(1 + number % 5)))
        while (decision := policy.poll(now, FREE)).reason is not HoldReason.EMPTY:
            if decision.release is None:
                now = decision.wake_at
                continue
            now += linear([1] * len(decision.release.items))
            event = Finished(batch=decision.release.id, compute_seconds=0.001)
            policy.observe(event, now)
        now += 0.1

    assert policy.line == pytest.approx((0.001, 0.005))
