"""The set of waiting items."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_scheduling.core.limits import Limits
from batchedmodel_scheduling.core.policy import Item, ItemId
from batchedmodel_scheduling.fifo.queueing import Group, WaitingSet
from support.examples import examples
from support.strategies import an_item

THREE = Limits(rows=3, cost=None, rule=CostRule.PADDED)
ALL = Limits(rows=20, cost=None, rule=CostRule.PADDED)


def waiting(*items: Item, edges: tuple[int, ...] = ()) -> WaitingSet:
    found = WaitingSet(edges)
    for item in items:
        found.add(item)
    return found


def numbers(items: list[Item]) -> list[int]:
    return [int(item.id) for item in items]


def test_groups_tell_their_oldest_member_and_their_size() -> None:
    held = waiting(an_item(1), an_item(2, key="b"), an_item(3))
    assert [(group, head.id, size) for group, head, size in held.groups()] == [
        (Group("a", 0), 1, 2),
        (Group("b", 0), 2, 1),
    ]


@pytest.mark.parametrize(
    ("length", "length_class"), [(1, 0), (8, 0), (9, 1), (32, 1), (33, 2), (10**6, 2)]
)
def test_an_edge_is_the_largest_length_of_its_class(length: int, length_class: int) -> None:
    held = waiting(an_item(1, length=length), edges=(8, 32))
    assert [group.length_class for group, _, _ in held.groups()] == [length_class]


def test_a_cut_takes_the_oldest_and_leaves_the_rest() -> None:
    held = waiting(*(an_item(n) for n in range(5)))
    chosen, late = held.cut(Group("a", 0), THREE, 1.0)
    assert (numbers(chosen), late) == ([0, 1, 2], [])
    assert len(held) == 2


def test_a_cut_that_meets_late_items_removes_only_those() -> None:
    held = waiting(an_item(1), an_item(2, deadline=1.0), an_item(3))
    chosen, late = held.cut(Group("a", 0), THREE, 1.0)
    assert (chosen, numbers(late)) == ([], [2])
    chosen, late = held.cut(Group("a", 0), THREE, 1.0)
    assert (numbers(chosen), late) == ([1, 3], [])
    assert len(held) == 0
    assert list(held.groups()) == []


def test_a_cut_stops_before_the_member_that_costs_too_much() -> None:
    held = waiting(an_item(1, length=4), an_item(2, length=9), an_item(3, length=4))
    chosen, late = held.cut(Group("a", 0), Limits(rows=3, cost=18, rule=CostRule.PADDED), 1.0)
    assert (numbers(chosen), late) == ([1, 2], [])


def test_an_item_cannot_be_added_twice() -> None:
    with pytest.raises(ValueError, match="item 1 waits already"):
        waiting(an_item(1), an_item(1, key="b"))


def test_discarding_what_is_not_here_changes_nothing() -> None:
    held = waiting(an_item(1))
    held.discard(ItemId(2))
    assert len(held) == 1


edges = st.sets(st.integers(1, 20), max_size=4).map(lambda found: tuple(sorted(found)))


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 25)), max_size=20),
    st.lists(edges, min_size=1, max_size=3),
)
def test_regrouping_equals_grouping_from_the_start(
    rows: list[tuple[str, int]], changes: list[tuple[int, ...]]
) -> None:
    items = [an_item(n, key=k, length=length, arrived=n / 10) for n, (k, length) in enumerate(rows)]
    moved, fresh = waiting(*items), waiting(*items, edges=changes[-1])
    for change in changes:
        moved.regroup(change)
    assert {group: (head.id, size) for group, head, size in moved.groups()} == {
        group: (head.id, size) for group, head, size in fresh.groups()
    }
    for group, _, _ in list(fresh.groups()):
        assert moved.cut(group, ALL, 0.0) == fresh.cut(group, ALL, 0.0)
    assert len(moved) == len(fresh) == 0
