"""What plans make of devices that jump, of large batches, and of the user's objective."""

from dataclasses import replace

import pytest

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness, Objective
from batchedmodel_scheduling.batching.next_batch import Situation, plan
from batchedmodel_scheduling.batching.policies import new_policy
from batchedmodel_scheduling.latency.batch_times import BatchTimes
from batchedmodel_scheduling.queue.items import Priority
from batchedmodel_scheduling.queue.ready_queue import Limits, QueuedItem, ReadyQueue
from support.scheduling import an_entry, measured, queue_of, serve
from support.strategies import an_item


def plateaus(rows: int) -> float:
    return 0.004 if rows <= 32 else 0.008


def situation(rows: int = 64, rule: CostRule = CostRule.ROWS, rate: float = 100.0) -> Situation:
    points = [(n, 1, plateaus(n)) for n in range(1, rows + 1)]
    if rule is CostRule.PADDED:
        points = [(n, length, 0.0001 * n * length) for n in (1, 4, 16) for length in (1, 10, 100)]
    return Situation(
        free=[0.0],
        start_spread=0.0,
        rate=rate,
        target=None,
        times=BatchTimes(measured(points, rule)),
        limits=Limits(rows=rows, cost=None, rule=rule),
        by_due=True,
        hurried=True,
    )


def alike(count: int, due: float = 1.0) -> ReadyQueue:
    return queue_of([an_entry(n, due) for n in range(1, count + 1)])


def test_a_size_that_nobody_has_timed_is_tried_where_all_are_in_time() -> None:
    """The device has one plateau up to 48; the profile knows 32 and 49, and jumps above 32."""
    points = [(n, 1, 0.004 if n <= 48 else 0.008) for n in (1, 2, 32, 49, 50, 64)]
    now = replace(situation(rate=10_000.0), times=BatchTimes(measured(points, CostRule.ROWS)))
    for _ in range(20):
        now.times.observe([1] * 32, 0.004)
    for _ in range(5):
        assert len(plan(alike(40), now).batch) == 40
        now.times.observe([1] * 40, 0.004)
    assert now.times.table(1, 64)[40] == pytest.approx(0.004, rel=0.05)
    assert len(plan(alike(41), now).batch) == 41


@pytest.mark.parametrize("cap", [100, 200])
def test_large_batches_are_as_large_under_pressure(cap: int) -> None:
    """Twice as many as a batch holds: the first of them are late behind the others."""
    points = [(rows, 1, 0.010 + 0.0001 * rows) for rows in (1, 50, 100, 200)]
    now = replace(
        situation(rows=cap),
        times=BatchTimes(measured(points, CostRule.ROWS)),
        rate=100_000.0,
    )
    seconds = now.times.upper_table(1, cap)[cap]
    entries = [an_entry(n, 1.1 * seconds) for n in range(1, 2 * cap + 1)]
    chosen = plan(queue_of(entries), now)
    assert chosen.pressed
    assert len(chosen.batch) > 0.9 * cap


def unlike(objective: Objective) -> list[QueuedItem]:
    """One long item that takes as long as many short ones, due together with them."""
    long = an_entry(1, 0.0115, length=100, work=0.01, objective=objective)
    short = [an_entry(n, 0.0116, length=1, work=0.0001, objective=objective) for n in range(2, 18)]
    return [long, *short]


def test_by_rows_the_long_one_is_given_up_and_by_work_it_is_not() -> None:
    now = situation(rows=16, rule=CostRule.PADDED)
    by_rows = plan(queue_of(unlike(Objective.ROWS)), now)
    by_work = plan(queue_of(unlike(Objective.WORK)), now)
    assert {entry.length for entry in by_rows.batch} == {1}
    assert {entry.length for entry in by_work.batch} == {100}


def test_by_rows_a_priority_still_counts() -> None:
    high = an_entry(1, 1.0, work=0.5, priority=Priority.HIGH, objective=Objective.ROWS)
    low = an_entry(2, 1.0, work=0.5, priority=Priority.LOW, objective=Objective.ROWS)
    assert high.weight == 16 * low.weight == 4.0


def test_one_slow_batch_does_not_keep_all_later_ones_small() -> None:
    settings = BatchSettings(max_batch_size=32, target_seconds=0.03, lateness=Lateness.REFUSE)
    slow: list[int] = []

    def seconds(lengths: list[int]) -> float:
        usual = 0.005 + 0.0004 * len(lengths)
        if len(lengths) < 4 or slow:
            return usual
        slow.append(len(lengths))
        return 50 * usual

    points = [(n, 1, 0.005 + 0.0004 * n) for n in (1, 2, 4, 8, 16, 32)]
    policy = new_policy(settings, measured(points, CostRule.ROWS))
    times = [n / 150 for n in range(300)] + [2 + n / 1400 for n in range(7000)]
    items = [an_item(n, arrived=t, due=t + 0.03, deadline=t + 0.03) for n, t in enumerate(times, 1)]
    served = serve(policy, items, seconds)
    assert slow
    assert slow[0] < 10
    last = [item for item in items if item.arrived >= 4.0]
    assert len(served.late(last)) < 0.02 * len(last)
