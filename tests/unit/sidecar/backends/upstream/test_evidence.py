"""What is known of a server's outputs: never a guess, however a constant size meets a batch."""

from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_sidecar.backends.upstream.batch_result import Evidence
from batchedmodel_sidecar.backends.upstream.protocol import Subject

ALL = Subject(asked="all", form="usual")

counts = st.lists(st.integers(1, 5), min_size=1, max_size=30)


@given(st.integers(1, 5), counts)
def test_an_output_of_constant_size_is_never_taken_for_one_with_rows(
    constant: int, rows_sent: list[int]
) -> None:
    evidence = Evidence()
    for rows in rows_sent:
        if rows == constant:
            assert evidence.saw(ALL, ["follows", "labels"], rows) == "labels"
        else:
            evidence.contradicted(ALL)


@given(counts)
def test_an_output_that_follows_the_rows_is_proven_by_the_second_number_of_them(
    rows_sent: list[int],
) -> None:
    evidence = Evidence()
    for index, rows in enumerate(rows_sent):
        known = len(set(rows_sent[: index + 1])) > 1
        assert evidence.wants_trial(ALL, rows) == (len({*rows_sent[:index], rows}) < 2)
        assert evidence.saw(ALL, ["y"], rows) == (None if known else "y")


def test_where_nothing_is_left_to_prove_one_answer_ends_the_trial() -> None:
    evidence = Evidence()
    assert evidence.wants_trial(ALL, 3)
    assert evidence.saw(ALL, [], 1) is None
    assert not evidence.wants_trial(ALL, 3)
    evidence.contradicted(ALL)
    assert evidence.wants_trial(ALL, 3)


FIRST, SECOND = (Subject(asked=f"version {number}", form="usual") for number in (1, 2))


def test_what_is_asked_otherwise_is_known_apart() -> None:
    evidence = Evidence()
    for rows in (1, 2):
        evidence.saw(FIRST, ["y"], rows)
    assert evidence.saw(FIRST, ["y"], 3) is None
    assert evidence.saw(SECOND, ["y"], 3) == "y"
    assert evidence.saw(FIRST, ["y", "z"], 3) == "z"


def test_what_was_proven_is_doubted_after_an_answer_that_contradicts_it() -> None:
    evidence = Evidence()
    for rows in (1, 2):
        evidence.saw(ALL, ["y"], rows)
    evidence.contradicted(ALL)
    assert evidence.saw(ALL, ["y"], 2) == "y"


def test_memory_is_bounded_whatever_callers_ask() -> None:
    evidence = Evidence()
    for number in range(5000):
        evidence.saw(Subject(asked=number, form=number), ["y"], 1)
    assert len(evidence._seen) <= 1024
    assert len(evidence._proven) <= 1024


def square(size: int) -> Subject:
    return Subject(asked="all", form=f"rows of {size} columns")


def test_a_caller_cannot_choose_how_long_an_output_is_and_have_it_taken_for_rows() -> None:
    """It has a value for each column."""
    evidence = Evidence()
    for size in (2, 3, 4):
        assert evidence.saw(square(size), ["means"], size) == "means"
    assert evidence.wants_trial(square(4), 4)


def test_what_follows_rows_of_one_form_does_so_for_all() -> None:
    evidence = Evidence()
    for rows in (1, 2):
        evidence.saw(square(4), ["y"], rows)
    assert not evidence.wants_trial(square(5), 3)
    assert evidence.saw(square(5), ["y"], 3) is None
    evidence.contradicted(square(6))
    assert evidence.wants_trial(square(5), 3), "nothing is known of any form"
    assert evidence.saw(square(5), ["y"], 3) == "y"


def test_questions_of_others_take_no_proof_away() -> None:
    evidence = Evidence()
    for rows in (1, 2):
        evidence.saw(ALL, ["y"], rows)
    for number in range(5000):
        evidence.saw(Subject(asked=number, form="usual"), ["y"], 1)
    assert evidence.saw(ALL, ["y"], 3) is None
