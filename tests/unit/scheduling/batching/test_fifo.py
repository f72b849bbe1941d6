"""What leaves in order of arrival: the oldest of a lane, within the bounds, and nothing expired."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.outcomes import Outcome
from batchedmodel_scheduling.batching.decisions import MemoryCap
from batchedmodel_scheduling.batching.policy import BasePolicy
from batchedmodel_scheduling.queue.items import ItemId
from support.examples import examples
from support.scheduling import IDLE, policy_with, released
from support.strategies import an_item

SETTINGS = BatchSettings(policy=PolicyName.GREEDY, max_batch_size=3)


def batches(policy: BasePolicy) -> list[list[int]]:
    found = []
    while numbers := released(policy.poll(1.0, IDLE)):
        found.append(numbers)
    return found


def test_lanes_leave_by_their_oldest_items() -> None:
    items = [an_item(1), an_item(2, key="b"), an_item(3), an_item(4, key="b")]
    assert batches(policy_with(SETTINGS, items)) == [[1, 3], [2, 4]]


@pytest.mark.parametrize(
    ("length", "alike"), [(1, 8), (8, 1), (9, 32), (32, 9), (33, 10**6), (10**6, 33)]
)
def test_an_edge_is_the_largest_length_of_its_class(length: int, alike: int) -> None:
    others = [an_item(n, length=of) for n, of in enumerate((8, 32, 33), 3)]
    items = [an_item(1, length=length), an_item(2, length=alike), *others]
    policy = policy_with(replace(SETTINGS, length_buckets=(8, 32)), items)
    assert batches(policy)[0][:2] == [1, 2]


def test_a_batch_takes_the_oldest_and_leaves_the_rest() -> None:
    assert batches(policy_with(SETTINGS, [an_item(n) for n in range(5)])) == [[0, 1, 2], [3, 4]]


def test_what_has_expired_ends_before_a_batch_is_made_of_others() -> None:
    items = [an_item(1), an_item(2, deadline=1.0), an_item(3), an_item(4)]
    decision = policy_with(SETTINGS, items).poll(1.0, IDLE)
    assert [(shed.item.id, shed.outcome) for shed in decision.shed] == [(2, Outcome.EXPIRED)]
    assert released(decision) == [1, 3, 4]


def test_a_batch_stops_before_the_item_that_costs_too_much() -> None:
    policy = policy_with(SETTINGS, [an_item(n, length=of) for n, of in enumerate((4, 9, 4), 1)])
    policy.observe(MemoryCap(cost=18), 0.0)
    assert batches(policy) == [[1, 2], [3]]


def test_an_item_cannot_be_added_twice() -> None:
    with pytest.raises(ValueError, match="item 1 waits already"):
        policy_with(SETTINGS, [an_item(1), an_item(1, key="b")])


def test_withdrawing_what_does_not_wait_changes_nothing() -> None:
    policy = policy_with(SETTINGS, [an_item(1)])
    policy.withdraw(ItemId(2), 0.0)
    assert batches(policy) == [[1]]


edges = st.sets(st.integers(1, 20), max_size=4).map(lambda found: tuple(sorted(found)))


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 25)), max_size=20),
    st.lists(edges, min_size=1, max_size=3),
)
def test_other_edges_equal_edges_from_the_start(
    rows: list[tuple[str, int]], changes: list[tuple[int, ...]]
) -> None:
    items = [
        an_item(n, key=k, length=length, arrived=n / 100) for n, (k, length) in enumerate(rows)
    ]
    moved = policy_with(SETTINGS, items)
    for change in changes:
        moved.configure(replace(SETTINGS, length_buckets=change), 0.5)
    fresh = policy_with(replace(SETTINGS, length_buckets=changes[-1]), items)
    assert batches(moved) == batches(fresh)
