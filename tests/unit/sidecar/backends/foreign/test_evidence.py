"""What is known of a server's outputs: never a guess, however a constant size meets a batch."""

from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_sidecar.backends.foreign.batch_result import Evidence

counts = st.lists(st.integers(1, 5), min_size=1, max_size=30)


@given(st.integers(1, 5), counts)
def test_an_output_of_constant_size_is_never_taken_for_one_with_rows(
    constant: int, rows_sent: list[int]
) -> None:
    evidence = Evidence()
    for rows in rows_sent:
        if rows == constant:
            assert evidence.saw("all", ["follows", "labels"], rows) == "labels"
        else:
            evidence.contradicted("all")


@given(counts)
def test_an_output_that_follows_the_rows_is_proven_by_the_second_number_of_them(
    rows_sent: list[int],
) -> None:
    evidence = Evidence()
    for index, rows in enumerate(rows_sent):
        known = len(set(rows_sent[: index + 1])) > 1
        assert evidence.wants_trial("all", rows) == (len({*rows_sent[:index], rows}) < 2)
        assert evidence.saw("all", ["y"], rows) == (None if known else "y")


def test_where_nothing_is_left_to_prove_one_answer_ends_the_trial() -> None:
    evidence = Evidence()
    assert evidence.wants_trial("all", 3)
    assert evidence.saw("all", [], 1) is None
    assert not evidence.wants_trial("all", 3)
    evidence.contradicted("all")
    assert evidence.wants_trial("all", 3)


def test_what_is_asked_otherwise_is_known_apart() -> None:
    evidence = Evidence()
    for rows in (1, 2):
        evidence.saw("version 1", ["y"], rows)
    assert evidence.saw("version 1", ["y"], 3) is None
    assert evidence.saw("version 2", ["y"], 3) == "y"
    assert evidence.saw("version 1", ["y", "z"], 3) == "z"


def test_what_was_proven_is_doubted_after_an_answer_that_contradicts_it() -> None:
    evidence = Evidence()
    for rows in (1, 2):
        evidence.saw("all", ["y"], rows)
    evidence.contradicted("all")
    assert evidence.saw("all", ["y"], 2) == "y"


def test_memory_is_bounded_whatever_callers_ask() -> None:
    evidence = Evidence()
    for number in range(5000):
        evidence.saw(number, ["y"], 1)
    assert len(evidence._seen) <= 1024
