"""Answers that callers do not read: counted, refused when too many, and cut off in time."""

import asyncio
from typing import Final

import pytest

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_http.response import Response
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.body.shared_regions import SharedRegions
from batchedmodel_sidecar.errors import CallError
from batchedmodel_sidecar.http.body_reader import PATIENCE, SMALL, BodyReader, UnreadAnswers

pytestmark = pytest.mark.looptime

LIMIT: Final = 4_000_000
LARGE: Final = 1_000_000


class Written(asyncio.WriteTransport):
    """A connection of which only the unread bytes matter."""

    def __init__(self, unread: int) -> None:
        super().__init__()
        self.unread = unread
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.aborted, self.unread = True, 0


@pytest.fixture
def budget() -> ByteBudget:
    return ByteBudget(LIMIT)


@pytest.fixture
def unread(budget: ByteBudget) -> UnreadAnswers:
    return UnreadAnswers(budget)


def written(unread: UnreadAnswers, size: int = LARGE, holder: str = "") -> Written:
    transport = Written(size)
    unread.watch(transport, holder)
    return transport


def answer(size: int = LARGE) -> Response:
    return Response((bytes(size),))


async def test_what_is_unread_counts_until_it_is_read(
    unread: UnreadAnswers, budget: ByteBudget
) -> None:
    transport = written(unread)
    assert budget.in_use == LARGE
    transport.unread = LARGE // 2
    await asyncio.sleep(1.1)
    assert budget.in_use == LARGE // 2
    transport.unread = 0
    await asyncio.sleep(1.0)
    assert (budget.in_use, unread.size) == (0, 0)


async def test_what_is_unread_counts_until_its_connection_is_gone(
    unread: UnreadAnswers, budget: ByteBudget
) -> None:
    transport = written(unread)
    unread.forget(transport)
    unread.forget(transport)
    assert (budget.in_use, unread.size) == (0, 0)


async def test_one_answer_that_is_larger_than_the_budget_leaves_room_for_bodies(
    unread: UnreadAnswers, budget: ByteBudget
) -> None:
    transport = written(unread, 10 * LIMIT)
    assert unread.size == 10 * LIMIT
    assert budget.in_use == LIMIT // 2
    unread.forget(transport)
    assert budget.in_use == 0


async def test_who_does_not_read_is_cut_off_within_ten_seconds_when_room_is_short(
    unread: UnreadAnswers, budget: ByteBudget
) -> None:
    transports = [written(unread), written(unread)]
    await asyncio.sleep(8.0)
    assert not any(transport.aborted for transport in transports)
    await asyncio.sleep(2.1)
    assert all(transport.aborted for transport in transports)
    assert budget.in_use == 0


async def test_who_reads_byte_by_byte_does_not_read_when_room_is_short(
    unread: UnreadAnswers,
) -> None:
    trickling, reading = written(unread, LIMIT), written(unread, LIMIT)
    for _ in range(20):
        await asyncio.sleep(0.5)
        trickling.unread -= 1
        reading.unread -= SMALL // 4
    await asyncio.sleep(0.1)
    assert trickling.aborted
    assert not reading.aborted


async def test_while_there_is_room_a_slow_reader_has_time(unread: UnreadAnswers) -> None:
    silent, slow = written(unread, 100_000), written(unread, 100_000)
    await asyncio.sleep(100.0)
    assert not silent.aborted
    for _ in range(10):
        slow.unread -= 1
        await asyncio.sleep(100.0)
    assert silent.aborted
    assert not slow.aborted


async def test_when_answers_have_used_their_room_no_large_one_is_added_at_once(
    unread: UnreadAnswers,
) -> None:
    for _ in range(2):
        unread.admitted(answer())
        written(unread)
    with pytest.raises(CallError, match="have not read 2000000 bytes") as refused:
        unread.admitted(answer())
    assert refused.value.status == 503
    small = answer(SMALL)
    assert unread.admitted(small) is small, "small ones always fit"


async def test_what_was_written_since_it_was_measured_counts(unread: UnreadAnswers) -> None:
    """As of an answer that is written in pieces: the first one tells of it."""
    for _ in range(2):
        written(unread, 1).unread = LARGE
    with pytest.raises(CallError, match="have not read 2000000 bytes"):
        unread.admitted(answer())


async def test_who_has_not_read_for_longest_gives_way_to_the_next_answer(
    unread: UnreadAnswers,
) -> None:
    first = written(unread)
    await asyncio.sleep(1.0)
    second = written(unread)
    await asyncio.sleep(1.5)
    unread.admitted(answer())
    assert (first.aborted, second.aborted) == (True, False)
    assert unread.size == LARGE


async def test_what_was_read_since_makes_room_at_once(unread: UnreadAnswers) -> None:
    transports = [written(unread), written(unread)]
    transports[0].unread = 0
    large = answer()
    assert unread.admitted(large) is large
    assert not any(transport.aborted for transport in transports)


async def test_whoever_holds_most_gives_way_to_others_however_well_it_reads(
    unread: UnreadAnswers,
) -> None:
    theirs = [written(unread, holder="many") for _ in range(2)]
    for transport in theirs:  # each reads what a reader at work reads, again and again
        transport.unread -= SMALL
    assert unread.admitted(answer(SMALL + 1), "one") is not None
    assert unread.admitted(answer(), "one") is not None
    written(unread, holder="many")
    unread.admitted(answer(), "one")
    assert sum(transport.aborted for transport in theirs) >= 1


async def test_who_holds_most_is_told_so_instead_of_others(unread: UnreadAnswers) -> None:
    for _ in range(2):
        written(unread, holder="many")
    written(unread, LARGE // 2, holder="one")
    with pytest.raises(CallError):
        unread.admitted(answer(), "many")


async def test_a_reader_is_cut_off_where_bodies_leave_no_room(
    unread: UnreadAnswers, budget: ByteBudget
) -> None:
    transport = written(unread, 2 * SMALL)
    with budget.hold(Share("bodies")) as held:
        assert held.grow(LIMIT * 3 // 4)
        await asyncio.sleep(PATIENCE + 1.5)
    assert transport.aborted


async def test_answers_that_are_being_made_are_within_the_memory_of_all() -> None:
    bodies = BodyReader(max_bytes=LIMIT, budget=ByteBudget(LIMIT), slots=SharedRegions(LIMIT))
    with bodies.hold(Share("one")) as mine, bodies.hold(Share("two")) as theirs:
        bodies.hold_answer(LARGE, mine)
        bodies.hold_answer(LARGE // 2, theirs)
        with pytest.raises(CallError) as refused:
            bodies.hold_answer(LARGE, mine)
        assert refused.value.status == 503
        bodies.hold_answer(SMALL, mine)  # always fits
    with bodies.hold(Share("one")) as mine:
        bodies.hold_answer(LARGE, mine)


async def test_an_answer_alone_is_made_however_large_it_is() -> None:
    bodies = BodyReader(max_bytes=LIMIT, budget=ByteBudget(LIMIT), slots=SharedRegions(LIMIT))
    with bodies.hold(Share("one")) as mine, bodies.hold(Share("two")) as theirs:
        assert mine.grow(LIMIT // 2)
        bodies.hold_answer(2 * LIMIT, mine)
        assert not theirs.grow(1)
    with bodies.hold(Share("two")) as theirs:
        assert theirs.grow(LIMIT // 2)
