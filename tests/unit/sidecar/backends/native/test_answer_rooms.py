"""Room for answers: as much as they took lately, and never where the server may still write."""

import gc
import os

import pytest

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_sidecar.backends.native.answer_rooms import AnswerRooms, Room
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.body.shared_slots import Region
from support.large_answers import learned, rooms_of
from support.room_locks import can_be_locked_elsewhere, locked_elsewhere

SIZE = 64 << 20
ANSWERS = SIZE // 4
MEBIBYTE = 1 << 20
LARGE = 600_000
ONE = Share("one")


@pytest.fixture
def region() -> Region:
    return Region.of(ANSWERS, "shared")


@pytest.fixture
def budget() -> ByteBudget:
    return ByteBudget(SIZE)


def rooms_in(region: Region, budget: ByteBudget, row: int = MEBIBYTE) -> AnswerRooms:
    rooms = rooms_of(budget, row)
    rooms.use(region)
    return rooms


def given(rooms: AnswerRooms, rows: int = 1) -> Room:
    room = rooms.room(rows)
    assert room is not None
    return room


def asked(rooms: AnswerRooms, rows: int) -> int:
    room = rooms.room(rows)
    rooms.over(room, answered=True)
    return 0 if room is None else room.told.size


def test_before_a_large_answer_there_is_no_room(region: Region, budget: ByteBudget) -> None:
    rooms = AnswerRooms(budget)
    rooms.use(region)
    assert rooms.room(4) is None
    learned(rooms, [1000], [2000])
    assert rooms.room(4) is None


def test_a_batch_has_room_for_rows_as_large_as_the_largest_of_lately(
    region: Region, budget: ByteBudget
) -> None:
    rooms = learned(rooms_in(region, budget, 1000), [LARGE, 10], [1000, 10])
    assert 4 * LARGE <= asked(rooms, 4) <= 4 * LARGE + 1000
    learned(rooms, [100, 10])
    assert asked(rooms, 1) >= LARGE * 7 // 8, "one batch of small answers says little of the next"
    for _ in range(30):
        learned(rooms, [100, 10])
    assert rooms.room(4) is None


def test_what_is_sent_anyway_has_no_room(region: Region, budget: ByteBudget) -> None:
    rooms = learned(rooms_in(region, budget, 1000), [20_000] * 8)
    assert rooms.room(1) is None


def test_one_very_large_row_leaves_room_for_the_next_batch(
    region: Region, budget: ByteBudget
) -> None:
    assert asked(rooms_in(region, budget, 8 << 20), 64) == ANSWERS // 3


def test_an_answer_has_room_until_nothing_refers_to_it(region: Region, budget: ByteBudget) -> None:
    rooms = rooms_in(region, budget)
    first, second = given(rooms, 2), given(rooms)
    assert first.told.start == 0
    assert second.told.start >= first.told.size
    assert second.told.number != first.told.number
    os.pwrite(region.descriptor, b"hello", second.told.start)
    assert bytes(second.memory[:5]) == b"hello"
    item = first.memory[100:200]
    rooms.over(first, answered=True)
    del first
    assert given(rooms).told.start > second.told.start
    del item
    assert given(rooms).told.start == 0


def test_room_is_lost_as_long_as_the_server_writes_there(
    region: Region, budget: ByteBudget
) -> None:
    rooms = rooms_in(region, budget)
    first = given(rooms)
    number = first.told.number
    with locked_elsewhere(region.descriptor, number):
        rooms.over(first, answered=False)
        del first
        second = given(rooms)
        assert second.told.start > 0
        assert given(rooms).told.start > second.told.start
    assert given(rooms).told.start == 0


def test_a_server_that_comes_late_to_a_room_finds_it_locked(
    region: Region, budget: ByteBudget
) -> None:
    rooms = rooms_in(region, budget)
    first, second = given(rooms), given(rooms)
    rooms.over(first, answered=False)
    number = first.told.number
    del first
    again = given(rooms)
    assert again.told.start == 0
    assert not can_be_locked_elsewhere(region.descriptor, number)
    for room in (second, again):
        assert can_be_locked_elsewhere(region.descriptor, room.told.number)


def test_while_the_first_room_of_all_is_the_servers_a_lost_one_closes_no_other(
    region: Region, budget: ByteBudget
) -> None:
    rooms = rooms_in(region, budget)
    first, second = given(rooms), given(rooms)
    rooms.over(second, answered=False)
    for room in (first, given(rooms)):
        assert can_be_locked_elsewhere(region.descriptor, room.told.number)


def test_any_number_of_lost_rooms_costs_few_locks(region: Region, budget: ByteBudget) -> None:
    rooms = rooms_in(region, budget)
    for number in range(300):
        room, other = given(rooms), given(rooms)
        rooms.over(other, answered=number % 3 > 0)
        rooms.over(room, answered=number % 2 > 0)
        del room, other
    inode = os.fstat(region.descriptor).st_ino
    with open("/proc/locks") as locks:
        assert sum(f":{inode} " in line for line in locks) <= 2


def test_room_counts_in_the_budget_while_the_server_may_write(
    region: Region, budget: ByteBudget
) -> None:
    rooms = rooms_in(region, budget)
    first, second = given(rooms), given(rooms)
    assert budget.held == first.told.size + second.told.size
    rooms.over(first, answered=True)
    with locked_elsewhere(region.descriptor, second.told.number):
        rooms.over(second, answered=False)
        assert budget.held == second.told.size
    third = given(rooms)
    assert budget.held == third.told.size
    rooms.retire()
    assert budget.held == 0
    rooms.over(third, answered=False)
    assert budget.held == 0


def test_where_bodies_fill_the_budget_answers_have_no_room(
    region: Region, budget: ByteBudget
) -> None:
    rooms = rooms_in(region, budget)
    with budget.hold(ONE) as held:
        assert held.grow(SIZE - MEBIBYTE // 2)
        assert held.is_alone()
        assert rooms.room(1) is None
    room = given(rooms)
    with budget.hold(ONE) as held:
        assert held.is_alone(), "room for answers keeps no body out that is alone"
    rooms.over(room, answered=True)


def test_the_room_of_a_region_before_is_not_the_next_ones(
    region: Region, budget: ByteBudget
) -> None:
    rooms = rooms_in(region, budget)
    before = given(rooms)
    rooms.retire()
    assert rooms.room(1) is None
    other = Region.of(ANSWERS, "other")
    rooms.use(other)
    now = given(rooms)
    rooms.over(before, answered=False)
    assert now.told.number == before.told.number
    assert can_be_locked_elsewhere(other.descriptor, now.told.number)


def test_regions_of_before_keep_only_what_somebody_reads(budget: ByteBudget) -> None:
    """However often the server goes, unread answers are all that stays."""
    rooms, unread, files = rooms_of(budget, MEBIBYTE), [], []
    for number in range(4):
        region = Region.of(ANSWERS, str(number))
        rooms.use(region)
        read, kept = given(rooms, 2), given(rooms)
        for room in (read, kept):
            room.memory[:] = b"1" * len(room.memory)
            rooms.over(room, answered=True)
        unread.append(kept.memory)
        files.append(os.dup(region.descriptor))
        del read, kept, room, region
        rooms.retire()
    gc.collect()
    pages = [os.fstat(file).st_blocks * 512 for file in files]
    assert all(MEBIBYTE <= size <= MEBIBYTE + 2 * 4096 for size in pages), pages
    unread.clear()
    assert [os.fstat(file).st_blocks for file in files] == [0] * 4
    for file in files:
        os.close(file)
