"""Texts of several salts in one engine that is full, and what a step leaves that failed in it."""

import pytest

from batchedmodel_contract.generation.frames import Finish
from batchedmodel_model_server.errors import ForwardFailed
from batchedmodel_model_server.generation.engine import Engine
from support.engine_frames import submit
from support.reading_runner import ReadingRunner, drawn, engine_over


def texts(engine: Engine) -> dict[tuple[int, int], list[int]]:
    """All tokens that the engine makes until nothing is left."""
    told: dict[tuple[int, int], list[int]] = {}
    while engine.busy:
        engine.step(0.0)
        report, refused = engine.take(0.0)
        assert not refused
        for token in report.tokens:
            assert token.finish is not Finish.FAILED
            told.setdefault((token.id, token.choice), []).append(token.token)
    return told


def alone(ids: list[int], choice: int, count: int) -> list[int]:
    """Tokens that a text has without company."""
    known = list(ids)
    for _ in range(count):
        known.append(drawn(known, choice, 0))
    return known[len(ids) :]


def test_a_choice_of_who_holds_all_places_gives_way_and_no_token_is_lost_or_told_twice() -> None:
    engine = engine_over(ReadingRunner(64, 4), sequences=4)
    engine.submit(submit(1, [1, 2, 3], choices=4, max_tokens=30, salt="hog"), 0.0)
    for _ in range(3):
        engine.step(0.0)
    before = engine.take(0.0)[0].tokens
    engine.submit(submit(2, [4], max_tokens=3, salt="other"), 0.0)
    engine.step(0.0)
    report = engine.take(0.0)[0]
    assert 2 in {token.id for token in report.tokens}
    assert (report.running, report.waiting, report.preemptions) == (4, 1, 1)
    told = texts(engine)
    assert len(told[2, 0]) == 2
    for choice in range(4):
        first = [
            one.token for one in (*before, *report.tokens) if (one.id, one.choice) == (1, choice)
        ]
        assert [*first, *told[1, choice]] == alone([1, 2, 3], choice, 30)


def test_as_many_choices_as_there_are_places_keep_no_other_salt_waiting() -> None:
    engine = engine_over(ReadingRunner(64, 4), sequences=8)
    engine.submit(submit(1, [1], max_tokens=50, salt="long"), 0.0)
    engine.step(0.0)
    engine.submit(submit(2, [1, 2, 3], choices=8, max_tokens=9, salt="many"), 0.0)
    for number in (3, 4, 5):
        engine.submit(submit(number, [number], max_tokens=2, salt=str(number)), 0.0)
    for _ in range(3):
        engine.step(0.0)
    ended = {one.id for one in engine.take(0.0)[0].tokens if one.finish is not Finish.NONE}
    assert ended == {3, 4, 5}
    assert {(2, choice) for choice in range(8)} <= set(texts(engine))


def test_texts_of_one_salt_do_not_give_way_to_one_another() -> None:
    engine = engine_over(ReadingRunner(64, 4), sequences=2)
    for number in range(5):
        engine.submit(submit(number, [number], max_tokens=9, salt="one"), 0.0)
    told = texts(engine)
    assert engine.take(0.0)[0].preemptions == 0
    assert list(told) == [(number, 0) for number in range(5)]


def test_of_those_that_wait_whose_salt_has_least_goes_first() -> None:
    engine = engine_over(ReadingRunner(64, 4), sequences=2)
    for number, salt in enumerate("aaaab"):
        engine.submit(submit(number, [number], max_tokens=4, salt=salt), 0.0)
    for _ in range(2):
        engine.step(0.0)
    assert 4 in {token.id for token in engine.take(0.0)[0].tokens}


class _CannotCopy(ReadingRunner):
    error: Exception = ForwardFailed("no copy")

    def copy_block(self, source: int, target: int) -> None:
        raise self.error


def test_choices_whose_block_cannot_be_copied_are_computed_anew() -> None:
    engine = engine_over(_CannotCopy(64, 4))
    engine.submit(submit(1, [1, 2, 3], choices=3, max_tokens=6), 0.0)
    told = texts(engine)
    for choice in range(3):
        assert told[1, choice] == alone([1, 2, 3], choice, 6)
    assert engine.take(0.0)[0].free_blocks == 64


def test_choices_that_an_error_stops_half_way_all_begin_once() -> None:
    runner = _CannotCopy(64, 4)
    runner.error = ZeroDivisionError("a bug")
    engine = engine_over(runner)
    engine.submit(submit(1, [1, 2, 3], choices=3, max_tokens=6), 0.0)
    engine.submit(submit(2, [1], max_tokens=1), 0.0)
    with pytest.raises(ZeroDivisionError):
        engine.step(0.0)
    engine.begin_anew()
    assert [one.id for one in engine.take(0.0)[1]] == [2]
    runner.error = ForwardFailed("no copy")
    told = texts(engine)
    for choice in range(3):
        assert told[1, choice] == alone([1, 2, 3], choice, 6)
    assert engine.take(0.0)[0].free_blocks == 64
