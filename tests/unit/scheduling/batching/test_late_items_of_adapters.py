"""A batch has no more adapters than there are slots, whether its items are on time or late."""

from collections.abc import Sequence

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.batching.decisions import Finished
from batchedmodel_scheduling.batching.policies import new_policy
from batchedmodel_scheduling.batching.policy import BasePolicy
from batchedmodel_scheduling.queue.items import Item
from support.scheduling import IDLE, row_profile, serve, start
from support.strategies import an_item

SLOTS = 2
SETTINGS = BatchSettings(max_batch_size=32, target_seconds=0.1, max_queue_size=1024)
# 6 ms for one, 15 ms for 32.
DEVICE = row_profile(0.005, 0.0003, (1, 2, 4, 8, 16, 32))


def seconds(lengths: Sequence[int]) -> float:
    return 0.005 + 0.0003 * len(lengths)


def of(tenant: str, number: int, arrived: float, adapter: int, due: float = 0.1) -> Item:
    item = an_item(number, arrived=arrived, due=arrived + due, deadline=arrived + 30.0)
    return item._replace(adapter=adapter, share=Share(tenant))


def adapters(items: Sequence[Item]) -> set[int]:
    return {item.adapter for item in items} - {0}


def running() -> BasePolicy:
    """A policy whose server has just, at time 0, answered a batch."""
    policy = new_policy(SETTINGS, DEVICE, adapter_slots=SLOTS)
    assert policy.offer(of("a", 10_000, -0.006, 0), -0.006) is None
    batch = start(policy, -0.006)
    policy.observe(Finished(batch=batch.id, compute_seconds=0.0053), 0.0)
    return policy


def test_late_items_of_many_adapters_share_no_batch_beyond_the_slots() -> None:
    """They went along unlooked at, in batches of up to 14 passes."""
    flood = [of("a", n, n / 1000, 2 + n % 40) for n in range(800)]
    other = [of("b", 5000 + n, 0.2 + n / 20, 1) for n in range(20)]
    served = serve(running(), [*flood, *other], seconds)
    assert len(served.finished) == 820
    assert len(served.late(flood)) > 100
    assert max(len(adapters(batch.items)) for _, batch in served.batches) <= SLOTS


def test_late_items_by_themselves_share_a_batch_with_those_of_their_adapters() -> None:
    policy = running()
    for number in range(24):
        assert policy.offer(of("a", number, 0.0, 1 + number % 4, due=0.001), 0.0) is None
    batch = policy.poll(0.0, IDLE).release
    assert batch is not None
    assert adapters(batch.items) == {1, 2}
    assert len(batch.items) == 12
    assert len(policy.queue.late) == 12


def test_late_items_go_along_that_need_no_other_adapter() -> None:
    policy = running()
    for number in range(8):
        assert policy.offer(of("a", number, 0.0, number % 4, due=0.001), 0.0) is None
    assert policy.offer(of("a", 10, 0.0, 3, due=0.011), 0.0) is None
    batch = policy.poll(0.0, IDLE).release
    assert batch is not None
    assert batch.items[0].id == 10
    assert adapters(batch.items) == {3}
    assert {item.adapter for item in batch.items[1:]} == {0, 3}
