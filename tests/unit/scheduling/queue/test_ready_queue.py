"""Where items wait under `Deadline`: order, length classes, counts."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_scheduling.queue.items import ItemId, Priority
from batchedmodel_scheduling.queue.ready_queue import Lane, Limits, QueuedItem, ReadyQueue
from support.examples import examples
from support.scheduling import an_entry

ROWS = Limits(rows=3, cost=None, rule=CostRule.PADDED)


def lanes_with(*entries: QueuedItem, edges: tuple[int, ...] = ()) -> ReadyQueue:
    lanes = ReadyQueue(edges)
    for entry in entries:
        lanes.add(entry)
    return lanes


def listed(lanes: ReadyQueue) -> list[list[list[int]]]:
    return [[[int(e.id) for e in lane.entries] for lane in key] for key in lanes.by_key()]


def test_a_lane_is_in_order_of_due_time_and_then_of_number() -> None:
    lanes = lanes_with(an_entry(1, 3.0), an_entry(2, 1.0), an_entry(4, 2.0), an_entry(3, 2.0))
    assert listed(lanes) == [[[2, 3, 4, 1]]]


@pytest.mark.parametrize(
    ("priority", "order"), [(Priority.HIGH, 9.5), (Priority.NORMAL, 10.0), (Priority.LOW, 10.5)]
)
def test_a_priority_is_one_step_ahead_of_the_next(priority: Priority, order: float) -> None:
    assert an_entry(1, 10.0, priority=priority, step=0.5).order == order


def test_whatever_waits_long_enough_comes_first_of_whatever_priority() -> None:
    old, new = an_entry(1, 1.0, priority=Priority.LOW), an_entry(2, 9.0, priority=Priority.HIGH)
    assert listed(lanes_with(new, old)) == [[[1, 2]]]


def test_worth_is_work_by_priority() -> None:
    weights = [an_entry(1, 1.0, work=2.0, priority=priority).weight for priority in Priority]
    assert weights == [8.0, 2.0, 0.5]


def test_keys_stay_apart_and_lanes_of_a_key_are_sorted_by_length() -> None:
    lanes = lanes_with(
        an_entry(1, 1.0, length=64), an_entry(2, 1.0, length=8), an_entry(3, 1.0, key="b")
    )
    assert listed(lanes) == [[[2], [1]], [[3]]]


def test_classes_are_two_per_doubling_if_none_are_given() -> None:
    lanes = lanes_with(*(an_entry(length, 1.0, length=length) for length in range(1, 17)))
    together = [[1], [2], [3], [4], [5, 6], [7, 8], [9, 10, 11, 12], [13, 14, 15, 16]]
    assert listed(lanes) == [together]


def test_given_edges_cut_in_as_well() -> None:
    entries = [an_entry(length, 1.0, length=length) for length in (4, 5, 6, 9, 11, 12)]
    assert listed(lanes_with(*entries)) == [[[4], [5, 6], [9, 11, 12]]]
    assert listed(lanes_with(*entries, edges=(5, 11))) == [[[4], [5], [6], [9, 11], [12]]]


def test_an_identifier_may_not_wait_twice() -> None:
    lanes = lanes_with(an_entry(1, 1.0))
    with pytest.raises(ValueError, match="item 1 waits already"):
        lanes.add(an_entry(1, 2.0))


def test_members_leave_together_from_the_head_or_from_the_middle() -> None:
    entries = [an_entry(n, float(n)) for n in range(6)]
    lanes = lanes_with(*entries)
    lanes.take(entries[:2])
    assert listed(lanes) == [[[2, 3, 4, 5]]]
    lanes.take([entries[5], entries[3]])
    assert listed(lanes) == [[[2, 4]]]
    lanes.take([entries[4], entries[2]])
    assert listed(lanes) == []
    assert len(lanes) == 0


def test_the_oldest_is_found_in_any_lane() -> None:
    lanes = lanes_with(an_entry(1, 1.0, arrived=0.5), an_entry(2, 9.0, key="b", arrived=0.2))
    assert lanes.oldest() == 0.2


def test_those_whose_due_time_has_come_are_found_in_any_place() -> None:
    """A lane of several priorities is not in order of due time."""
    lanes = lanes_with(an_entry(1, 1.5, priority=Priority.HIGH), an_entry(2, 1.0))
    assert listed(lanes) == [[[1, 2]]]
    assert [entry.id for entry in lanes.due_by(1.2)] == [2]


def test_work_counts_for_a_priority_and_all_above() -> None:
    entries = [an_entry(int(p), 1.0, work=10.0 ** int(p), priority=p) for p in Priority]
    lanes = lanes_with(*entries)
    for priority, work in zip(Priority, (10.0, 110.0, 1110.0), strict=True):
        just, hardly = (an_entry(9, work + d, priority=priority, step=1e4) for d in (0.0, -0.1))
        assert lanes.feasible(just, 0.0, 1.0)
        assert not lanes.feasible(hardly, 0.0, 1.0)
    lanes.discard(ItemId(1))
    assert lanes.feasible(an_entry(9, 0.0, priority=Priority.HIGH), 0.0, 1.0)


def test_a_newcomer_in_a_hurry_waits_for_nobody_who_has_time() -> None:
    patient = [an_entry(n, 100.0, work=1.0) for n in range(50)]
    lanes = lanes_with(*patient)
    assert lanes.feasible(an_entry(98, 2.0), 0.0, 1.0)
    assert lanes.feasible(an_entry(98, 2.0), 50.0, 1.0) is False
    assert not lanes.feasible(an_entry(98, 2.0), 0.0, 3.0), "one of the others would be late"
    urgent = [an_entry(n, 3.0, work=1.0) for n in range(60, 64)]
    assert not lanes_with(*patient, *urgent).feasible(an_entry(98, 3.5), 0.0, 1.0)


def test_a_priority_leads_with_its_oldest_and_its_lane_fills_up() -> None:
    lanes = lanes_with(
        *(an_entry(n, 1.0, arrived=1.0) for n in (1, 2, 3)),
        an_entry(4, 9.0, priority=Priority.LOW, arrived=0.5),
        an_entry(5, 8.0, priority=Priority.LOW, arrived=0.7),
    )
    assert [int(entry.id) for entry in lanes.led_by(Priority.LOW, ROWS)] == [4, 1, 2]
    assert lanes.led_by(Priority.HIGH, ROWS) == []


def test_a_led_batch_keeps_the_bound_of_tokens() -> None:
    lanes = lanes_with(
        *(an_entry(n, 1.0, length=8) for n in (1, 2)),
        an_entry(3, 9.0, length=7, priority=Priority.LOW),
    )
    led = lanes.led_by(Priority.LOW, replace(ROWS, cost=16))
    assert [int(entry.id) for entry in led] == [3, 1]


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.sampled_from([1, 3, 4, 9]),
            st.floats(0, 3),
            st.sampled_from(Priority),
            st.sampled_from([0.0, 0.0, 0.0, 1.0]),
        ),
        max_size=20,
    ),
    st.data(),
)
def test_lanes_hold_what_a_sorted_list_holds(
    drawn: list[tuple[str, int, float, Priority, float]], data: st.DataObject
) -> None:
    entries = [
        an_entry(n, due, length=length, key=key, priority=priority, yields=yields)
        for n, (key, length, due, priority, yields) in enumerate(drawn)
    ]
    lanes = lanes_with(*entries)
    taken = data.draw(st.sets(st.sampled_from(entries))) if entries else set()
    if data.draw(st.booleans()):
        lanes.take(list(taken))
    else:
        assert [lanes.discard(entry.id) for entry in taken] == list(taken)
        assert [lanes.discard(entry.id) for entry in taken] == [None] * len(taken)
    left = [entry for entry in entries if entry not in taken]
    assert sorted(item.id for item in lanes) == sorted(entry.id for entry in left)
    for key in lanes.by_key():
        for lane in key:
            wanted = [e for e in left if e.item.key == lane.key and e.length in _lengths(lane)]
            assert lane.entries == sorted(wanted)
            assert lane.longest >= max(entry.length for entry in lane.entries)
    counts = {p: sum(entry.item.priority is p for entry in left) for p in Priority}
    assert lanes.priorities == counts
    one_priority = sum(count > 0 for count in counts.values()) <= 1
    assert lanes.by_due == (one_priority and not any(entry.item.yields for entry in left))


def _lengths(lane: Lane) -> set[int]:
    """Each drawn length has a class of its own."""
    return {entry.length for entry in lane.entries}
