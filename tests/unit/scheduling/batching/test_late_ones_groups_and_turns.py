"""Three small books that `Deadline` keeps: late items, announced groups, starving priorities."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.manifest.tenants import NOBODY
from batchedmodel_scheduling.batching.deadline import (
    CREDIT_SECONDS,
    PATIENCE_SECONDS,
    RequestGroups,
)
from batchedmodel_scheduling.queue.items import Item, ItemId, Priority, RequestGroup
from batchedmodel_scheduling.queue.ready_queue import Limits, QueuedItem, StarvationGuard
from batchedmodel_scheduling.queue.set_aside import LateItems
from support.examples import examples
from support.scheduling import an_entry

ROWS = Limits(rows=4, cost=None, rule=CostRule.PADDED)
HIGH, NORMAL, LOW = Priority


def spare_of(*entries: QueuedItem) -> LateItems:
    spare = LateItems()
    for entry in entries:
        spare.add(entry)
    return spare


def numbers(found: list[QueuedItem] | list[Item]) -> list[int]:
    return [int(one.id) for one in found]


# The late ones


def test_late_ones_are_served_by_priority_and_then_in_order_of_arrival() -> None:
    spare = spare_of(
        an_entry(1, 0.0, arrived=3.0),
        an_entry(2, 0.0, arrived=1.0, priority=LOW),
        an_entry(3, 0.0, arrived=2.0),
        an_entry(4, 0.0, arrived=9.0, priority=HIGH),
    )
    assert numbers(spare.alike(10.0)) == [4, 3, 1, 2]
    assert sorted(numbers(list(spare))) == [1, 2, 3, 4]


def test_the_last_in_turn_is_the_newest_of_the_lowest_priority() -> None:
    spare = spare_of(an_entry(1, 0.0), an_entry(2, 0.0, priority=LOW), an_entry(3, 0.0))
    tenant = NOBODY.tenant
    assert (spare.last(tenant).id, spare.of(tenant), spare.of("another")) == (2, 3, 0)
    spare.discard(ItemId(2))
    assert (spare.last(tenant).id, spare.of(tenant)) == (3, 2)


def test_only_late_ones_of_the_first_ones_key_could_share_its_batch() -> None:
    spare = spare_of(*(an_entry(n, 0.0, key="ab"[n % 2]) for n in range(6)))
    assert numbers(spare.alike(1.0)) == [0, 2, 4]


def test_a_long_queue_of_late_ones_is_not_looked_at_as_a_whole() -> None:
    assert len(spare_of(*(an_entry(n, 0.0) for n in range(1000))).alike(1.0)) == 256


def test_a_late_one_whose_caller_gave_up_is_not_served() -> None:
    spare = spare_of(an_entry(1, 0.0, deadline=2.0), an_entry(2, 0.0), an_entry(3, 0.0))
    assert numbers(spare.company([an_entry(9, 5.0)], ROWS, 3, 2.0)) == [2, 3]
    assert numbers(spare.expired(2.0)) == [1]
    spare.discard(ItemId(1))
    assert numbers(spare.alike(2.0)) == [2, 3]


def test_company_makes_a_batch_neither_longer_nor_larger_than_it_may_be() -> None:
    spare = spare_of(
        an_entry(1, 0.0, length=9),
        an_entry(2, 0.0, length=8),
        an_entry(3, 0.0, key="b"),
        an_entry(4, 0.0, length=1),
        an_entry(5, 0.0, length=1),
    )
    batch = [an_entry(9, 5.0, length=8)]
    assert numbers(spare.company(batch, ROWS, 9, 1.0)) == [2, 4, 5]
    assert numbers(spare.company(batch, ROWS, 2, 1.0)) == [2, 4]
    assert numbers(spare.company(batch, replace(ROWS, rows=2), 9, 1.0)) == [2]
    assert spare.company(batch, replace(ROWS, cost=15), 9, 1.0) == []
    assert spare.company(batch, ROWS, 0, 1.0) == []
    assert len(spare) == 5


def test_a_late_one_that_left_is_forgotten() -> None:
    spare = spare_of(*(an_entry(n, 0.0) for n in range(3)))
    spare.discard(ItemId(1))
    spare.discard(ItemId(1))
    assert numbers(spare.alike(1.0)) == [0, 2]


def test_no_late_ones_make_no_batch() -> None:
    assert LateItems().alike(1.0) == []


# Announced groups


def member(number: int, group: str | None, size: int = 3, key: str = "a") -> QueuedItem:
    item = an_entry(number, 1.0, key=key).item
    request_group = None if group is None else RequestGroup(id=group, size=size)
    item = item._replace(request_group=request_group)
    return QueuedItem(item, order=1.0, work=1.0, weight=1.0)


def announce(groups: RequestGroups, entries: list[QueuedItem], now: float = 0.0) -> None:
    for entry in entries:
        groups.observe(entry.item._replace(arrived=now))


def test_a_member_that_announces_fewer_does_not_complete_the_group() -> None:
    """Or whoever ends each of his groups with such a one could have every batch held."""
    groups = RequestGroups()
    first, last = member(1, "x", 4096), member(2, "x", 1)
    announce(groups, [first])
    assert groups.awaited([first], 0.0) is not None
    announce(groups, [last])
    assert not groups.complete([first, last])
    other = member(3, "y", 4096)
    announce(groups, [other])
    assert groups.awaited([other], 0.0) is None, "its key's short wait is used up"


def awaited(groups: RequestGroups, entries: list[QueuedItem], now: float = 0.0) -> bool:
    return groups.awaited(entries, now) is not None


def test_a_group_is_waited_for_until_its_last_member_is_here() -> None:
    groups, members = RequestGroups(), [member(n, "x") for n in range(3)]
    announce(groups, members[:2])
    assert awaited(groups, members[:2])
    announce(groups, members[2:])
    assert not awaited(groups, members)


def test_groups_are_counted_apart_and_others_wait_for_none() -> None:
    groups, other = RequestGroups(), [member(1, "y", size=1)]
    announce(groups, [member(2, "x")])
    announce(groups, other)
    assert not awaited(groups, [*other, member(3, None)])


def test_a_group_of_which_members_left_is_not_waited_for() -> None:
    groups, members = RequestGroups(), [member(n, "x") for n in range(3)]
    announce(groups, members[:1])
    groups.left([members[0].item])
    announce(groups, members[1:2])
    assert not awaited(groups, members[1:2])


def test_a_name_may_be_used_again_for_a_new_group() -> None:
    groups, members = RequestGroups(), [member(n, "x") for n in range(3)]
    announce(groups, members[:1])
    groups.left([members[0].item])
    announce(groups, members[1:])
    announce(groups, members[:2])
    assert awaited(groups, members[:2])
    announce(groups, members[2:])
    assert not awaited(groups, members)


def test_names_that_never_complete_do_not_pile_up() -> None:
    groups = RequestGroups()
    entries = [member(n, f"group {n}") for n in range(5000)]
    announce(groups, entries)
    assert not awaited(groups, entries[:904])
    assert awaited(groups, entries[904:905])


def test_a_group_is_waited_for_while_its_members_follow_each_other() -> None:
    groups, members = RequestGroups(), [member(n, "x", size=9) for n in range(9)]
    for number in range(8):
        announce(groups, [members[number]], now=number * 0.004)
        assert groups.awaited(members[:1], number * 0.004) == number * 0.004 + PATIENCE_SECONDS
    assert not awaited(groups, members[:8], 7 * 0.004 + PATIENCE_SECONDS)


def test_while_a_group_lacks_members_no_other_of_its_key_is_believed_for_a_second() -> None:
    groups, first, second = RequestGroups(), member(1, "x"), member(2, "y")
    announce(groups, [first, second])
    assert awaited(groups, [first])
    assert awaited(groups, [first])
    assert not awaited(groups, [second])
    later = 0.001 + CREDIT_SECONDS
    announce(groups, [second], now=later)
    assert awaited(groups, [second], later)


def test_a_group_that_is_complete_leaves_others_their_credit() -> None:
    groups, members, other = RequestGroups(), [member(n, "x") for n in range(3)], member(9, "y")
    announce(groups, members[:2])
    assert awaited(groups, members[:2])
    announce(groups, [*members[2:], other])
    assert groups.complete(members)
    assert awaited(groups, [other])


def test_a_promise_of_one_key_costs_no_other_its_credit() -> None:
    groups, first, second = RequestGroups(), member(1, "x"), member(2, "y", key="other")
    announce(groups, [first, second])
    assert awaited(groups, [first])
    assert awaited(groups, [second])


# The floor


def test_a_priority_that_others_keep_waiting_is_due_after_twenty_batches() -> None:
    floor = StarvationGuard()
    for _ in range(19):
        floor.released({HIGH}, {HIGH: 9, NORMAL: 0, LOW: 1})
        assert floor.overdue() is None
    floor.released({HIGH}, {HIGH: 9, NORMAL: 0, LOW: 1})
    assert floor.overdue() is LOW
    floor.released({LOW}, {HIGH: 9, NORMAL: 0, LOW: 1})
    assert floor.overdue() is None


@pytest.mark.parametrize(
    ("served", "waiting"), [({HIGH, LOW}, 5), ({HIGH}, 0)], ids=["served too", "nobody waits"]
)
def test_a_priority_that_is_served_or_does_not_wait_is_owed_nothing(
    served: set[Priority], waiting: int
) -> None:
    floor = StarvationGuard()
    for _ in range(19):
        floor.released({HIGH}, {LOW: 1})
    floor.released(served, {LOW: waiting})
    floor.released({HIGH}, {LOW: 1})
    assert floor.overdue() is None


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(st.lists(st.sets(st.sampled_from(Priority), min_size=1), min_size=100, max_size=200))
def test_all_priorities_lead_or_go_along_in_every_22_batches(wanted: list[set[Priority]]) -> None:
    """Two may be overdue at once; the second waits for the turn of the first."""
    floor, since = StarvationGuard(), dict.fromkeys(Priority, 0)
    for served in wanted:
        overdue = floor.overdue()
        leaves = served if overdue is None else {overdue}
        floor.released(leaves, dict.fromkeys(Priority, 1))
        for priority in Priority:
            since[priority] = 0 if priority in leaves else since[priority] + 1
        assert max(since.values()) <= 22
