"""How large packed batches are, which items they begin with, and how many are looked at."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness, Objective
from batchedmodel_scheduling.batching import next_batch
from batchedmodel_scheduling.batching.next_batch import Situation
from batchedmodel_scheduling.batching.policies import new_policy
from batchedmodel_scheduling.latency.batch_times import BatchTimes
from batchedmodel_scheduling.queue.items import Item
from batchedmodel_scheduling.queue.ready_queue import Limits
from support.scheduling import an_entry, measured, queue_of, serve
from support.strategies import an_item

LENGTH = 100


def a_step(tokens: float) -> float:
    """Much more at a time in a little more than half of 20 ms."""
    return 0.006 if tokens <= 800 else 0.011


def a_launch(tokens: float) -> float:
    """Half of the time of ten rows is for the launch."""
    return 0.005 + tokens * 5e-6


def on_a_step(lengths: Sequence[int]) -> float:
    return a_step(sum(lengths))


def situation(*, rate: float = 100.0, rows: int = 32, cost: int | None = None) -> Situation:
    points = [(n, LENGTH, a_launch(n * LENGTH)) for n in (1, 4, 16, 32)]
    return Situation(
        free=[0.0],
        start_spread=0.0,
        rate=rate,
        target=0.05,
        times=BatchTimes(measured(points, CostRule.PACKED)),
        limits=Limits(rows=rows, cost=cost, rule=CostRule.PACKED),
        by_due=True,
        hurried=True,
    )


def batches_of(count: int, now: Situation) -> list[list[int]]:
    """Numbers of the items of each batch, of a queue in which one more is due each millisecond."""
    entries = [an_entry(n, 0.001 * n, length=LENGTH) for n in range(1, count + 1)]
    (found,) = next_batch.packed(list(queue_of(entries).by_key()), now)
    return [[int(entry.id) for entry in one.entries] for one in found]


@pytest.mark.parametrize("objective", Objective)
def test_under_load_a_batch_takes_more_than_half_of_the_target_where_it_does_much_more(
    objective: Objective,
) -> None:
    settings = BatchSettings(
        max_batch_size=32,
        max_queue_size=4096,
        target_seconds=0.02,
        lateness=Lateness.REFUSE,
        objective=objective,
    )
    points = [(n, LENGTH, a_step(n * LENGTH)) for n in (1, 2, 4, 8, 9, 16, 32)]
    items = [
        an_item(n, length=LENGTH, arrived=n / 4000, due=n / 4000 + 0.02, deadline=n / 4000 + 0.02)
        for n in range(1, 8001)
    ]
    served = serve(new_policy(settings, measured(points, CostRule.PACKED)), items, on_a_step)
    usual = [len(batch.items) for _, batch in served.batches[20:]]
    assert sum(usual) / len(usual) > 24  # 8 within half of the target


def test_without_load_it_takes_no_more_than_half_of_the_target() -> None:
    (first, *_) = batches_of(32, situation(rate=1.0, rows=64))
    assert len(first) == 32
    slow = replace(situation(rate=1.0, rows=64), target=0.03)
    (first, *_) = batches_of(32, slow)
    assert a_launch(LENGTH * len(first)) <= 0.015 < a_launch(LENGTH * 32)


def test_few_batches_are_looked_at_however_many_could_be_made() -> None:
    assert len(batches_of(1000, situation(rows=512, cost=4 * LENGTH))) == 8


def seconds(lengths: Sequence[int]) -> float:
    return 0.005 + 1e-5 * sum(lengths)


def test_some_long_rows_turn_nobody_elses_due_times_off() -> None:
    target = 0.1
    points = [(n, k, seconds([k] * n)) for n in (1, 8, 32) for k in (16, 512, 8000)]
    settings = BatchSettings(max_batch_size=32, max_queue_size=100_000, target_seconds=target)
    items: list[Item] = []
    for n in range(1, 2001):
        at = n / 67
        length = 8000 if n % 5 == 0 else 16
        items.append(an_item(n, length=length, arrived=at, due=at + target, deadline=at + 60.0))
    served = serve(new_policy(settings, measured(points, CostRule.PACKED)), items, seconds)
    short = [item for item in items if item.length == 16]
    assert len(served.late(short)) < 0.2 * len(short)
