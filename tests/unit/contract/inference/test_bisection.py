"""The search for the rows that spoil a batch, without a server and without time."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.inference.bisection import Bisection, Rows

NEVER = math.inf


@dataclass
class Course:
    """How a search went."""

    search: Bisection
    sent: list[Rows] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)

    def settled(self) -> list[int]:
        return sorted(self.answered + self.refused + self.search.expired)


def course(
    owners: list[int],
    is_bad: Callable[[int], bool],
    *,
    holds: int = 10_000,
    words: Callable[[Rows], object] = lambda rows: rows,
    deadlines: list[float] | None = None,
    idempotent: bool = True,
    callers: Sequence[str] = (),
    known_to_hold: int = 10_000,
    gives_up: bool = True,
) -> Course:
    """A whole search, against a server that holds so many rows; each request takes one second."""
    search = Bisection(
        owners,
        deadlines or [NEVER] * len(owners),
        idempotent=idempotent,
        callers=callers,
        fits=lambda rows: len(rows) <= known_to_hold,
        gives_up=gives_up,
    )
    found = Course(search)
    now = 0.0
    while (rows := search.next(now)) is not None:
        now += 1.0
        found.sent.append(rows)
        if len(rows) > holds:
            found.refused += search.outgrown()
        elif any(is_bad(row) for row in rows):
            found.refused += search.refused(words(rows))
        else:
            found.answered += rows
            search.fine()
    return found


def singles(rows: int) -> list[int]:
    return list(range(rows))


def test_a_batch_that_goes_well_is_one_request() -> None:
    found = course(singles(32), lambda row: False)
    assert found.sent == [tuple(range(32))]
    assert found.answered == list(range(32))


@pytest.mark.parametrize("bad", range(32))
def test_one_bad_call_of_32_costs_at_most_11_requests_and_hurts_nobody(bad: int) -> None:
    found = course(singles(32), lambda row: row == bad, words=lambda rows: "no")
    assert found.refused == [bad]
    assert sorted(found.answered) == [row for row in range(32) if row != bad]
    assert len(found.sent) <= 11


@given(rows=st.integers(1, 200), data=st.data())
def test_every_row_is_settled_once_and_only_the_bad_are_refused(
    rows: int, data: st.DataObject
) -> None:
    bad = data.draw(st.sets(st.integers(0, rows - 1)))
    found = course(singles(rows), bad.__contains__)
    assert found.settled() == list(range(rows))
    assert set(found.refused) == bad
    assert len(found.sent) <= 2 * rows - 1
    assert len(found.sent) <= 1 + 2 * len(bad) * math.ceil(math.log2(max(2, rows)))


@given(bad=st.sets(st.integers(0, 31), max_size=6))
def test_six_bad_calls_of_32_are_found_although_the_server_says_the_same_of_each(
    bad: set[int],
) -> None:
    found = course(singles(32), bad.__contains__, words=lambda rows: "no")
    assert set(found.refused) == bad


@given(rows=st.integers(1, 4096))
def test_a_server_that_refuses_everything_alike_is_left_alone_soon(rows: int) -> None:
    found = course(singles(rows), lambda row: True, words=lambda rows: (500, b"broken"))
    assert found.settled() == list(range(rows))
    assert len(found.sent) <= max(20, 2 * math.ceil(math.log2(max(2, rows))) + 2)
    assert found.search.broken == (rows > 3)


@given(
    callers=st.lists(st.sampled_from(["x", "x", "x", "a", "b"]), min_size=1, max_size=200),
    sizes=st.lists(st.integers(1, 9), min_size=200, max_size=200),
)
def test_many_bad_calls_of_one_caller_hurt_no_other(callers: list[str], sizes: list[int]) -> None:
    """However they are mixed, and although the server says the same of each."""
    owners = [owner for owner, size in enumerate(sizes[: len(callers)]) for _ in range(size)]
    of_rows = [callers[owner] for owner in owners]
    found = course(owners, lambda row: of_rows[row] == "x", words=lambda _: "no", callers=of_rows)
    assert found.settled() == list(range(len(owners)))
    assert {of_rows[row] for row in found.refused} <= {"x"}


@given(callers=st.lists(st.sampled_from("abcdefgh"), min_size=33, max_size=4096))
def test_one_that_refuses_all_callers_alike_is_left_alone_soon(callers: list[str]) -> None:
    found = course(singles(len(callers)), lambda _: True, words=lambda _: "no", callers=callers)
    assert found.settled() == list(range(len(callers)))
    assert len(found.sent) <= 80
    assert found.search.broken


@given(rows=st.integers(1, 10), data=st.data())
def test_up_to_ten_calls_are_told_apart_whatever_the_server_says_of_them(
    rows: int, data: st.DataObject
) -> None:
    bad = data.draw(st.sets(st.integers(0, rows - 1)))
    found = course(singles(rows), bad.__contains__, words=lambda rows: "no")
    assert set(found.refused) == bad
    assert found.search.broken == (len(bad) == rows and rows > 3)


@pytest.mark.slow
@given(owners=st.lists(st.integers(0, 8), min_size=1, max_size=60), data=st.data())
def test_a_call_is_never_cut_by_what_one_of_its_rows_did(
    owners: list[int], data: st.DataObject
) -> None:
    bad = data.draw(st.sets(st.sampled_from(owners)))
    found = course(owners, lambda row: owners[row] in bad)
    assert found.settled() == list(range(len(owners)))
    assert {owners[row] for row in found.refused} == bad
    assert {owners[row] for row in found.answered} == set(owners) - bad
    for sent in found.sent:
        whole = {row for row in range(len(owners)) for part in sent if owners[row] == owners[part]}
        assert set(sent) == whole


@given(rows=st.integers(1, 100), holds=st.integers(1, 100))
def test_what_does_not_fit_is_halved_until_it_does(rows: int, holds: int) -> None:
    found = course([0] * rows, lambda row: False, holds=holds)
    assert sorted(found.answered) == list(range(rows))
    room = found.search.room
    if rows <= holds:
        assert room is None
    else:
        assert room is not None
        assert holds / 2 <= room <= holds


def test_one_giant_row_does_not_make_the_server_look_small() -> None:
    search = Bisection(singles(32), [NEVER] * 32, idempotent=True)
    refused: list[int] = []
    while (rows := search.next(0.0)) is not None:
        if 5 in rows:
            refused += search.outgrown()
        else:
            search.fine()
    assert refused == [5]
    assert search.room is None
    assert search.calls <= 11


def test_a_giant_row_that_was_alone_says_nothing_about_batches() -> None:
    found = course([0], lambda row: False, holds=0)
    assert found.refused == [0]
    assert found.search.room is None


def giant_whose_time_is_over(callers: Sequence[str]) -> Bisection:
    """Of four rows the first is too large for the server; it and the next have a second."""
    search = Bisection(singles(4), [0.5, 0.5, NEVER, NEVER], idempotent=True, callers=callers)
    assert search.next(0.0) == (0, 1, 2, 3)
    search.outgrown()
    while search.next(1.0) is not None:
        search.fine()
    assert search.expired == [0, 1]
    return search


def test_rows_of_one_caller_that_were_not_tried_again_do_not_make_the_server_look_small() -> None:
    assert giant_whose_time_is_over(["x", "x", "a", "b"]).room is None
    assert giant_whose_time_is_over(["x", "y", "a", "b"]).room == 2


def test_rows_whose_time_is_over_are_not_sent_again() -> None:
    found = course(singles(4), lambda row: row == 0, deadlines=[NEVER, NEVER, 1.5, 1.5])
    assert found.answered == [1]
    assert found.refused == [0]
    assert sorted(found.search.expired) == [2, 3]


@pytest.mark.parametrize("holds", [1, 10_000])
def test_without_idempotence_nothing_is_sent_twice(holds: int) -> None:
    found = course(singles(8), lambda row: row == 3, holds=holds, idempotent=False)
    assert len(found.sent) == 1
    assert sorted(found.refused) == list(range(8))


# Searches that tell every row apart


@given(rows=st.integers(1, 200), data=st.data())
def test_a_search_that_does_not_give_up_tells_every_row_apart_whatever_is_said(
    rows: int, data: st.DataObject
) -> None:
    bad = data.draw(st.sets(st.integers(0, rows - 1)))
    found = course(singles(rows), bad.__contains__, words=lambda _: "no", gives_up=False)
    assert found.settled() == list(range(rows))
    assert set(found.refused) == bad


@pytest.mark.parametrize("bad", range(32))
def test_it_also_finds_one_bad_row_of_32_within_11_tries(bad: int) -> None:
    found = course(singles(32), lambda row: row == bad, gives_up=False)
    assert found.refused == [bad]
    assert len(found.sent) <= 11


def test_where_all_are_bad_halving_to_the_end_takes_two_tries_for_each() -> None:
    assert len(course(singles(32), lambda row: True, gives_up=False).sent) == 63


@pytest.mark.slow
@given(owners=st.lists(st.integers(0, 20), min_size=1, max_size=60), data=st.data())
def test_it_never_cuts_a_call_either(owners: list[int], data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.sampled_from(owners)))
    found = course(owners, lambda row: owners[row] in bad, gives_up=False)
    assert {owners[row] for row in found.refused} == bad
    assert {owners[row] for row in found.answered} == set(owners) - bad


@given(rows=st.integers(1, 100), holds=st.integers(1, 100))
def test_what_is_known_not_to_fit_is_cut_without_a_try(rows: int, holds: int) -> None:
    found = course(singles(rows), lambda row: False, holds=holds, known_to_hold=holds)
    assert sorted(found.answered) == list(range(rows))
    assert all(len(sent) <= holds for sent in found.sent)


def test_without_idempotence_what_was_cut_before_its_first_try_is_still_tried() -> None:
    found = course(singles(8), lambda row: row == 3, known_to_hold=4, idempotent=False)
    assert found.sent == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert found.refused == [0, 1, 2, 3]
    assert found.answered == [4, 5, 6, 7]


def by_caller(callers: str, bad: str) -> Course:
    """A bisection by a server that judges callers and not rows."""
    search = Bisection(singles(len(callers)), [NEVER] * 32, idempotent=True, callers=[*callers])
    found = Course(search)
    while (rows := search.next(0.0)) is not None:
        found.sent.append(rows)
        if any(callers[row] in bad for row in rows):
            found.refused += search.refused("no", by_caller=True)
        else:
            search.fine()
            found.answered += rows
    return found


@given(callers=st.text("abcdef", min_size=1, max_size=32), bad=st.text("abcdef", max_size=4))
def test_where_the_caller_is_to_blame_its_calls_are_not_told_apart(callers: str, bad: str) -> None:
    found = by_caller(callers, bad)
    assert found.settled() == list(range(len(callers)))
    assert {callers[row] for row in found.refused} == set(callers) & set(bad)
    assert len(found.sent) <= 2 * len(set(callers)) - 1


def test_rows_of_one_caller_go_together_however_they_came() -> None:
    assert by_caller("abababab", "a").sent == [
        (0, 2, 4, 6, 1, 3, 5, 7),
        (0, 2, 4, 6),
        (1, 3, 5, 7),
    ]
