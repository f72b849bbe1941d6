"""Slots for adapters, passes over them, and who shares a batch or may begin to run."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_scheduling.batching.companions import Turn, companions
from batchedmodel_scheduling.lora.passes import passes
from batchedmodel_scheduling.lora.slots import AdapterSlots
from batchedmodel_scheduling.lora.text_turns import (
    PATIENCE_SECONDS,
    WaitingText,
    may_begin,
)
from batchedmodel_scheduling.queue.items import Item, ItemId
from support.examples import examples

NUMBERS = st.integers(0, 9)


def item(at: int, adapter: int, *, due: float = 100.0, arrived: float = 0.0) -> Item:
    return Item(
        id=ItemId(at),
        key="k",
        length=1,
        arrived=arrived,
        due=due,
        deadline=1000.0,
        adapter=adapter,
    )


def test_the_least_recently_used_adapter_makes_room() -> None:
    slots = AdapterSlots(2)
    slots.place([1, 2])
    slots.place([1])
    placed = slots.place([3])
    assert set(slots.resident) == {1, 3}
    assert placed.copies == [(placed.slots[3], 3)]


def test_one_that_a_text_needs_stays_until_the_text_has_ended() -> None:
    slots = AdapterSlots(2)
    slots.place([1])
    slots.pin(1)
    for number in (2, 3, 4):
        slots.place([number])
    assert set(slots.resident) == {1, 4}
    assert not slots.fits([2, 3])
    slots.unpin(1)
    assert slots.fits([2, 3])
    for number in (1, 4, 4):
        slots.pin(number)
    assert not slots.fits([2])
    slots.unpin_all()
    assert slots.fits([2, 3])


@settings(max_examples=examples(200))
@given(st.integers(1, 4), st.lists(st.lists(st.integers(1, 9), max_size=6), max_size=12))
def test_what_was_copied_last_into_a_slot_is_what_is_said_to_be_there(
    count: int, batches: list[list[int]]
) -> None:
    slots = AdapterSlots(count)
    device: dict[int, int] = {}
    for batch in batches:
        for rows in passes(batch, count, slots.resident):
            placed = slots.place([batch[row] for row in rows])
            device.update(placed.copies)
            assert {number: device[slot] for number, slot in placed.slots.items()} == {
                batch[row]: batch[row] for row in rows
            }
            assert len(slots.resident) <= count


@settings(max_examples=examples(200))
@given(st.lists(NUMBERS, min_size=1, max_size=30), st.integers(1, 4), st.sets(NUMBERS))
def test_each_row_is_in_one_pass_and_no_pass_has_more_adapters_than_slots(
    numbers: list[int], slots: int, resident: set[int]
) -> None:
    groups = passes(numbers, slots, resident)
    assert sorted(row for rows in groups for row in rows) == list(range(len(numbers)))
    assert all(len({numbers[row] for row in rows} - {0}) <= slots for rows in groups)


@settings(max_examples=examples(300))
@given(
    st.lists(st.tuples(NUMBERS, st.floats(0, 2)), min_size=1, max_size=40),
    st.integers(1, 4),
    st.lists(st.integers(1, 9), max_size=4, unique=True),
    st.integers(1, 8),
)
def test_a_batch_has_no_more_adapters_than_slots_and_never_nobody(
    waiting: list[tuple[int, float]], count: int, before: list[int], rows: int
) -> None:
    slots = AdapterSlots(count)
    slots.place(before[:count])
    items = [item(at, adapter, due=due) for at, (adapter, due) in enumerate(waiting)]
    chosen = companions(items, slots, Turn(rows=rows, now=0.0, seconds=0.1))
    assert 0 < len(chosen) <= rows
    assert chosen == sorted(set(chosen))
    assert len({items[at].adapter for at in chosen} - {0}) <= count


def test_rows_whose_adapters_are_there_go_before_those_that_can_wait() -> None:
    slots = AdapterSlots(1)
    slots.place([1])
    items = [item(0, 2), item(1, 1), item(2, 0), item(3, 1)]
    turn = Turn(rows=3, now=1.0, seconds=1.0)
    assert companions(items, slots, turn) == [1, 2, 3]


@pytest.mark.parametrize("pressing", [item(9, 2, due=2.0), item(9, 2, arrived=-10.0)])
def test_one_that_presses_goes_first_whatever_is_there(pressing: Item) -> None:
    slots = AdapterSlots(1)
    slots.place([1])
    items = [item(0, 1), item(1, 1), pressing, item(3, 0)]
    assert companions(items, slots, Turn(rows=2, now=0.0, seconds=1.0)) == [2, 3]


def test_no_adapter_waits_for_ever_though_others_fill_all_batches() -> None:
    slots = AdapterSlots(2)
    arrived = {3: 0.0, 4: 0.0, 5: 0.0}
    now, served = 0.0, set[int]()
    while served < set(arrived) and now < 20:
        stream = [item(at, 1 + at % 2, arrived=now, due=now + 100) for at in range(20)]
        rare = [item(100 + one, one, arrived=since) for one, since in arrived.items()]
        waiting = [*stream, *[one for one in rare if one.adapter not in served]]
        chosen = companions(waiting, slots, Turn(rows=4, now=now, seconds=0.1))
        numbers = {waiting[at].adapter for at in chosen} - {0}
        slots.place(numbers)
        served |= numbers & set(arrived)
        now += 0.1
    assert served == set(arrived)
    assert now < 2.0


@settings(max_examples=examples(300))
@given(
    st.lists(st.tuples(NUMBERS, st.floats(0, 5)), max_size=20),
    st.lists(st.integers(1, 9), max_size=8),
    st.integers(1, 4),
)
def test_all_texts_that_may_begin_find_slots_beside_those_that_run(
    texts: list[tuple[int, float]], numbers: list[int], slots: int
) -> None:
    running = Counter(one for one in numbers if one in sorted(set(numbers))[:slots])
    waiting = [WaitingText(*one) for one in texts]
    may = may_begin(waiting, running, slots, 5.0)
    begun = {text.adapter for text, one in zip(waiting, may, strict=True) if one} - {0}
    assert len(begun | set(running)) <= slots
    assert all(one for text, one in zip(waiting, may, strict=True) if not text.adapter)
    if waiting and not running:
        assert may[0]


def test_an_adapter_with_a_stream_of_texts_gives_its_slot_up_in_the_end() -> None:
    waiting = [WaitingText(2, 0.0), WaitingText(1, 0.5)]
    assert may_begin(waiting, {1: 1}, 1, PATIENCE_SECONDS / 2) == [False, True]
    assert may_begin(waiting, {1: 2}, 1, PATIENCE_SECONDS) == [False, False]
    assert may_begin(waiting, {}, 1, PATIENCE_SECONDS) == [True, False]
