"""A step that fails ends nobody but the text that it fails with."""

from collections.abc import Callable, Sequence

import pytest

from batchedmodel_contract.generation.frames import Finish, Refusal, Refused, Token
from batchedmodel_model_server.api.generator import StepPart
from batchedmodel_model_server.errors import DeviceLost, ForwardFailed, OutOfMemory
from batchedmodel_model_server.generation.engine import Engine
from support.engine_frames import submit
from support.reading_runner import ReadingRunner, drawn, engine_over

BAD = 13
BLOCKS = 32


class Told:
    """What an engine has told since it began, by request."""

    def __init__(self, fails: Callable[[Sequence[StepPart]], None]) -> None:
        self.engine: Engine = engine_over(ReadingRunner(BLOCKS, 4, fails))
        self.tokens: dict[int, list[Token]] = {}
        self.refused: list[Refused] = []

    def submit(self, number: int, *ids: int, max_tokens: int = 4) -> None:
        self.engine.submit(submit(number, ids, max_tokens=max_tokens), 0.0)

    def step(self) -> None:
        self.engine.step(0.0)
        report, refused = self.engine.take(0.0)
        self.refused += refused
        for token in report.tokens:
            self.tokens.setdefault(token.id, []).append(token)

    def finish(self) -> None:
        while self.engine.busy:
            self.step()
        assert self.engine.take(0.0)[0].free_blocks == BLOCKS

    def finishes(self, number: int) -> Finish:
        """How a text ended whose tokens are all right."""
        *tokens, last = self.tokens[number]
        assert [token.finish for token in tokens] == [Finish.NONE] * len(tokens)
        return last.finish


def more_than(texts: int, error: type[ForwardFailed]) -> Callable[[Sequence[StepPart]], None]:
    def fails(parts: Sequence[StepPart]) -> None:
        if len(parts) > texts:
            raise error("too many")

    return fails


def with_bad(error: Exception) -> Callable[[Sequence[StepPart]], None]:
    def fails(parts: Sequence[StepPart]) -> None:
        if any(BAD in draw.ids for part in parts for draw in part.draws):
            raise error

    return fails


def test_what_has_no_room_in_a_step_is_computed_behind_it() -> None:
    told = Told(more_than(3, OutOfMemory))
    for number in range(3):
        told.submit(number, 1, number)
    told.step()
    told.submit(3, 1, 3)
    told.finish()
    assert told.refused == []
    for number in range(4):
        assert told.finishes(number) is Finish.LENGTH
        ids = [1, number]
        for token in told.tokens[number]:
            assert token.token == drawn(ids, 0, 0)
            ids.append(token.token)


def test_a_prompt_without_memory_even_alone_ends_for_good_and_nothing_beside_it_does() -> None:
    # It came again and again, each time for the whole engine, until its caller's time was over.
    told = Told(with_bad(OutOfMemory("full")))
    told.submit(2, 3, BAD)
    told.submit(1, 1, 2)
    told.finish()
    assert [(one.id, one.why) for one in told.refused] == [(2, Refusal.FAILED)]
    assert told.finishes(1) is Finish.LENGTH
    told.submit(3, 1, 2)
    told.step()
    told.submit(4, 3, BAD)
    told.finish()
    assert told.finishes(3) is Finish.LENGTH


def test_a_text_that_outgrows_the_memory_is_told_so_after_its_last_token() -> None:
    asked = 0

    def fails(parts: Sequence[StepPart]) -> None:
        nonlocal asked
        asked += 1
        if asked > 2:
            raise OutOfMemory("full")

    told = Told(fails)
    told.submit(1, 1, 2)
    told.finish()
    assert told.finishes(1) is Finish.FAILED
    assert len(told.tokens[1]) == 3
    assert told.refused == []


def test_a_prompt_that_fails_steps_ends_alone_with_the_reason() -> None:
    told = Told(with_bad(ForwardFailed("13 brings bad luck")))
    told.submit(1, 1, 2)
    told.step()
    told.submit(2, 3, BAD)
    told.submit(3, 4, 5)
    told.finish()
    assert [(one.id, one.why) for one in told.refused] == [(2, Refusal.FAILED)]
    assert "13 brings bad luck" in told.refused[0].message
    assert (told.finishes(1), told.finishes(3)) == (Finish.LENGTH, Finish.LENGTH)


def test_the_newest_prompt_goes_on_where_it_is_not_the_reason() -> None:
    told = Told(with_bad(ForwardFailed("bad")))
    told.submit(1, 3, BAD)
    told.submit(2, 4, 5)
    told.finish()
    assert [one.id for one in told.refused] == [1]
    assert told.finishes(2) is Finish.LENGTH


def test_of_texts_that_go_on_each_is_tried_alone() -> None:
    told = Told(with_bad(ForwardFailed("bad")))
    # Their second tokens are what fails.
    told.submit(1, 1, 2)
    told.submit(2, 4, 5)
    told.step()
    bad = Told(lambda parts: _fail_behind(parts, told.tokens[1][0].token))
    bad.submit(1, 1, 2)
    bad.submit(2, 4, 5)
    bad.finish()
    assert bad.finishes(1) is Finish.FAILED
    assert bad.finishes(2) is Finish.LENGTH


def _fail_behind(parts: Sequence[StepPart], token: int) -> None:
    if any(part.ids.tolist() == [token] and part.start == 2 for part in parts):
        raise ForwardFailed("bad")


def test_a_step_that_fails_only_as_a_whole_ends_nobody() -> None:
    told = Told(more_than(1, ForwardFailed))
    for number in range(3):
        told.submit(number, 1, number)
    told.finish()
    assert told.refused == []
    assert {told.finishes(number) for number in range(3)} == {Finish.LENGTH}


def test_a_lost_device_is_told_to_whoever_steps() -> None:
    told = Told(with_bad(DeviceLost("gone")))
    told.submit(1, BAD)
    with pytest.raises(DeviceLost, match="gone"):
        told.step()
