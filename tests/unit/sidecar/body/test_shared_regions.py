"""Memory that the model server sees: no two slots share a byte, and what none reads is free."""

import gc
import os
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_sidecar.body.shared_regions import Region, SharedRegions
from support.examples import examples

MEBIBYTE = 1 << 20
SIZE = 64 * MEBIBYTE
ONE, OTHER = Share("one"), Share("other")


@pytest.fixture
def region() -> Region:
    return Region.of(SIZE)


@pytest.fixture
def slots(region: Region) -> SharedRegions:
    made = SharedRegions(SIZE)
    made.use(region)
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


def test_a_region_is_as_large_as_what_may_be_held() -> None:
    assert SharedRegions(SIZE).create().size == SIZE


def test_regions_of_before_keep_only_what_somebody_reads() -> None:
    """However often the server goes, rows that wait are all that stays."""
    regions, unread, files = SharedRegions(SIZE), [], []
    for _ in range(4):
        region = regions.create()
        regions.use(region)
        first, second = regions.room(MEBIBYTE, ONE), regions.room(MEBIBYTE, ONE)
        assert first is not None
        assert second is not None
        first[:] = second[:] = b"1" * MEBIBYTE
        unread.append(second)
        files.append(os.dup(region.descriptor))
        del region, first, second
        regions.retire()
    gc.collect()
    pages = [os.fstat(file).st_blocks * 512 for file in files]
    assert all(MEBIBYTE <= size <= MEBIBYTE + 2 * 4096 for size in pages), pages
