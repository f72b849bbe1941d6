"""Memory that the model server sees: no two slots share a byte, and what is read by none is free.

And room for answers: as much as they took lately.
"""

import gc
import os
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from batchedmodel_contract.inference.batch import (
    AnswerRoom,
    BatchReply,
    ragged,
)
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.body.shared_regions import Region, RegionPair, SharedRegions
from support.examples import examples

MEBIBYTE = 1 << 20
SIZE = 64 * MEBIBYTE
ANSWERS = SIZE // 4
LARGE = 600_000
ONE, OTHER = Share("one"), Share("other")


@pytest.fixture
def region() -> Region:
    return Region.of(SIZE)


@pytest.fixture
def slots(region: Region) -> SharedRegions:
    made = SharedRegions(ByteBudget(SIZE))
    made.use(RegionPair(region, Region.of(ANSWERS)))
    return made


def test_a_part_of_a_slot_is_found_where_it_lies(region: Region) -> None:
    first, second = region.slot(MEBIBYTE, ONE), region.slot(MEBIBYTE, ONE)
    assert first is not None
    assert second is not None
    assert region.place(second) == MEBIBYTE
    assert region.place(first[100 : 100 + MEBIBYTE // 2]) == 100
    os.pwrite(region.descriptor, b"hello", MEBIBYTE)
    assert bytes(second[:5]) == b"hello"


def test_what_is_small_or_lies_elsewhere_is_not_found(region: Region) -> None:
    slot = region.slot(MEBIBYTE, ONE)
    assert slot is not None
    assert region.place(slot[:100]) is None
    assert region.place(bytes(MEBIBYTE)) is None
    assert region.place(bytearray(MEBIBYTE)) is None


def test_a_slot_is_free_when_nothing_refers_to_it(region: Region) -> None:
    slot = region.slot(8 * MEBIBYTE, ONE)
    assert slot is not None
    row = slot[100:200]
    del slot
    other = region.slot(8 * MEBIBYTE, ONE)
    assert region.place(other) == 8 * MEBIBYTE  # type: ignore[arg-type]
    del row
    third = region.slot(8 * MEBIBYTE, ONE)
    assert region.place(third) == 0  # type: ignore[arg-type]


def test_nothing_refers_to_a_region_of_which_all_is_free(slots: SharedRegions) -> None:
    assert slots.place is None
    slot = slots.room(MEBIBYTE, ONE)
    assert slots.place is not None
    del slot
    second = slots.room(2 * SIZE, ONE)
    assert second is None
    assert slots.place is None


def test_one_tenant_leaves_room_for_another(slots: SharedRegions) -> None:
    held = []
    while (slot := slots.room(4 * MEBIBYTE, ONE)) is not None:
        held.append(slot)
    assert len(held) * 4 * MEBIBYTE > SIZE // 2
    assert slots.room(4 * MEBIBYTE, OTHER) is not None


def test_without_a_region_there_is_no_room(slots: SharedRegions) -> None:
    slot = slots.room(MEBIBYTE, ONE)
    assert slot is not None
    slots.retire()
    assert slots.room(MEBIBYTE, ONE) is None
    assert slots.place is None
    slot[:5] = b"still"
    assert bytes(slot[:5]) == b"still"


def test_pages_behind_the_first_are_given_back() -> None:
    region = Region.of(2 * SIZE)
    first, behind = region.slot(SIZE, ONE), region.slot(8 * MEBIBYTE, ONE)
    assert first is not None
    assert behind is not None
    for slot in (first, behind):
        slot[:] = bytes(len(slot))
    assert written(region) == SIZE + 8 * MEBIBYTE
    del first, behind, slot
    assert written(region) == SIZE


def written(region: Region) -> int:
    """Bytes that its pages take."""
    return os.fstat(region.descriptor).st_blocks * 512


def test_a_retired_region_keeps_only_what_is_still_referred_to(
    region: Region, slots: SharedRegions
) -> None:
    held = [slots.room(MEBIBYTE, ONE) for _ in range(3)]
    for slot in held:
        assert slot is not None
        slot[:] = b"1" * MEBIBYTE
    slot = None
    del held[0]
    slots.retire()
    assert written(region) == 2 * MEBIBYTE
    assert bytes(held[0][-1:]) == b"1"  # type: ignore[index]
    del held[0]
    assert written(region) == MEBIBYTE
    held.clear()
    assert written(region) == 0


def test_a_region_closes_its_file() -> None:
    before = len(os.listdir("/proc/self/fd"))
    region = Region.of(SIZE)
    slot = region.slot(MEBIBYTE, ONE)
    del region
    assert slot is not None
    assert len(os.listdir("/proc/self/fd")) > before
    del slot
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_slot_is_free_where_the_system_takes_no_pages_back(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmap.MADV_REMOVE", 10_000)
    for _ in range(3):
        slot = region.slot(SIZE, ONE)
        assert slot is not None
        del slot


class Slots(RuleBasedStateMachine):
    """Slots taken and dropped in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.region = Region.of(SIZE)
        self.held: list[memoryview] = []

    @rule(size=st.integers(1, 8 * MEBIBYTE), tenant=st.sampled_from([ONE, OTHER]))
    def take(self, size: int, tenant: Share) -> None:
        slot = self.region.slot(size, tenant)
        if slot is not None:
            assert len(slot) == size
            self.held.append(slot)

    @rule(index=st.integers(0, 100))
    def drop(self, index: int) -> None:
        if self.held:
            del self.held[index % len(self.held)]

    @invariant()
    def no_two_share_a_byte(self) -> None:
        places = sorted(
            (place, place + len(slot))
            for slot in self.held
            if (place := self.region.place(slot)) is not None
        )
        assert all(end <= start for (_, end), (start, _) in pairwise(places))

    def teardown(self) -> None:
        self.held.clear()
        gc.collect()
        # The first of a tenant may fill all that is free.
        assert self.region.slot(SIZE, ONE) is not None


Slots.TestCase.settings = settings(max_examples=examples(50))
test_any_order = Slots.TestCase


def learn(regions: SharedRegions, *rows: Sequence[int]) -> None:
    """An answer to such rows, with outputs of so many bytes, was sent."""
    count = len(rows)
    answer = BatchReply(
        outputs=tuple(
            ragged(f"y{number}", Datatype.UINT8, [((size,), bytes(size)) for size in column])
            for number, column in enumerate(zip(*rows, strict=True))
        ),
        statuses=(200,) * count,
        errors=("",) * count,
        compute_seconds=0.0,
        queue_seconds=0.0,
        tokens=count,
        padded_tokens=count,
    )
    regions.learn(answer, sum(map(sum, rows)), had_room=False)


class Answering:
    """Regions with room for answers, of a server that answered a row with so many bytes lately."""

    def __init__(self, row: int = MEBIBYTE) -> None:
        self.budget = ByteBudget(SIZE)
        self.regions = SharedRegions(self.budget)
        self.pair = self.regions.create()
        self.regions.use(self.pair)
        self.batches = 0
        learn(self.regions, [row])

    def room(self, rows: int = 1) -> tuple[int, AnswerRoom]:
        """The number of the next batch, and its room."""
        self.batches += 1
        room = self.regions.answer_room(self.batches, rows)
        assert room is not None
        return self.batches, room

    def size(self, rows: int) -> int:
        """Of the room of a batch that is answered at once."""
        number, room = self.room(rows)
        self.regions.answered(number)
        return room.size


def test_a_region_is_as_large_as_what_may_be_held_and_that_for_answers_a_quarter() -> None:
    pair = SharedRegions(ByteBudget(SIZE)).create()
    assert (pair.rows.size, pair.answers.size) == (SIZE, ANSWERS)


def test_before_a_large_answer_there_is_no_room() -> None:
    regions = SharedRegions(ByteBudget(SIZE))
    regions.use(regions.create())
    assert regions.answer_room(1, 4) is None
    learn(regions, [1000], [2000])
    assert regions.answer_room(2, 4) is None


def test_a_batch_has_room_for_rows_as_large_as_the_largest_of_lately() -> None:
    here = Answering(1000)
    learn(here.regions, [LARGE, 10], [1000, 10])
    assert 4 * LARGE <= here.size(4) <= 4 * LARGE + 1000
    learn(here.regions, [100, 10])
    assert here.size(1) >= LARGE * 7 // 8, "one batch of small answers says little of the next"
    for _ in range(30):
        learn(here.regions, [100, 10])
    assert here.regions.answer_room(100, 4) is None


def test_what_is_sent_anyway_has_no_room() -> None:
    here = Answering(1000)
    learn(here.regions, [20_000] * 8)
    assert here.regions.answer_room(1, 1) is None


def test_one_very_large_row_leaves_room_for_the_next_batch() -> None:
    assert Answering(8 << 20).size(64) == ANSWERS // 3


def test_an_answer_has_room_until_nothing_refers_to_it() -> None:
    here = Answering()
    (first, room), (_, second) = here.room(2), here.room()
    assert room.start == 0
    assert second.start >= room.size
    os.pwrite(here.pair.answers.descriptor, b"hello", room.start + 100)
    memory = here.regions.answered(first)
    assert memory is not None
    item = memory[100:200]
    del memory
    assert bytes(item[:5]) == b"hello"
    assert here.room()[1].start > second.start
    del item
    assert here.room()[1].start == 0


def test_room_is_the_servers_until_the_batch_is_answered() -> None:
    here = Answering()
    first, _ = here.room()
    assert here.room()[1].start > 0
    here.regions.answered(first)
    assert here.room()[1].start == 0
    assert here.regions.answered(first) is None


def test_room_counts_in_the_budget_while_the_server_may_write() -> None:
    here = Answering()
    (first, room), (_, second) = here.room(), here.room()
    assert here.budget.held == room.size + second.size
    here.regions.answered(first)
    assert here.budget.held == second.size
    here.regions.retire()
    assert here.budget.held == 0


def test_where_bodies_fill_the_budget_answers_have_no_room() -> None:
    here = Answering()
    with here.budget.hold(ONE) as held:
        assert held.grow(SIZE - MEBIBYTE // 2)
        assert held.is_alone()
        assert here.regions.answer_room(1, 1) is None
    here.room()
    with here.budget.hold(ONE) as held:
        assert held.is_alone(), "room for answers keeps no body out that is alone"


def test_regions_of_before_keep_only_what_somebody_reads() -> None:
    """However often the server goes, unread answers are all that stays."""
    here, unread, files = Answering(), [], []
    for _ in range(4):
        pair = here.regions.create()
        here.regions.use(pair)
        (first, _), (second, _) = here.room(2), here.room()
        for number in (first, second):
            memory = here.regions.answered(number)
            assert memory is not None
            memory[:] = b"1" * len(memory)
        unread.append(memory)
        files.append(os.dup(pair.answers.descriptor))
        del pair, memory
        here.regions.retire()
    gc.collect()
    pages = [os.fstat(file).st_blocks * 512 for file in files]
    assert all(MEBIBYTE <= size <= MEBIBYTE + 2 * 4096 for size in pages), pages
    unread.clear()
    assert [os.fstat(file).st_blocks for file in files] == [0] * 4
    for file in files:
        os.close(file)
