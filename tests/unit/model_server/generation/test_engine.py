"""The engine over random histories: every token is what its text alone would have got."""

import random
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.generation.frames import Configure, Finish, Sampling, Submit, Token
from batchedmodel_model_server.api.generator import Sampled, StepPart
from support.engine_frames import submit
from support.reading_runner import VOCABULARY, ReadingRunner, drawn, engine_over

_STOP = 7


@given(st.integers(0, 2**32))
def test_each_token_is_what_its_text_alone_would_have_got(seed: int) -> None:
    rng = random.Random(seed)
    block_tokens = rng.choice([1, 2, 4, 16])
    blocks = max(6, rng.randint(64, 160) // block_tokens)
    engine = engine_over(ReadingRunner(blocks, block_tokens), tokens=rng.randint(8, 64))
    coming = [_submit(rng, number) for number in range(12)]
    sent: dict[int, Submit] = {}
    told: dict[tuple[int, int], list[Token]] = {}
    cancelled: set[tuple[int, int | None]] = set()
    while coming or engine.busy:
        while coming and rng.random() < 0.5:
            one = coming.pop()
            engine.submit(one, 0.0)
            sent[one.id] = one
        if sent and rng.random() < 0.05:
            cancelled.add((rng.choice(list(sent)), rng.choice([None, 0, 1])))
            for number, choice in cancelled:
                engine.cancel(number, choice)
        if rng.random() < 0.05:
            engine.configure(
                Configure(
                    max_sequences=rng.randint(3, 8), max_tokens_per_step=32, token_seconds=None
                )
            )
        engine.step(0.0)
        report, refused = engine.take(0.0)
        assert not refused
        for token in report.tokens:
            told.setdefault((token.id, token.choice), []).append(token)
    assert report.free_blocks == blocks
    for one in sent.values():
        for choice in range(one.choices):
            if not {(one.id, None), (one.id, choice)} & cancelled:
                _check(one, choice, told[one.id, choice])


def _submit(rng: random.Random, number: int) -> Submit:
    return Submit(
        id=number,
        ids=array("i", [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 30))]),
        max_tokens=rng.randint(1, 30),
        choices=rng.choice([1, 1, 1, 3]),
        sampling=Sampling(seed=number),
        stop_ids=(_STOP,),
        salt=rng.choice("aab"),
    )


def _check(asked: Submit, choice: int, tokens: list[Token]) -> None:
    ids = list(asked.ids)
    for token in tokens:
        assert token.token == drawn(ids, choice, asked.id)
        ids.append(token.token)
    assert [token.finish for token in tokens[:-1]] == [Finish.NONE] * (len(tokens) - 1)
    last = Finish.STOP if ids[-1] == _STOP else Finish.LENGTH
    assert tokens[-1].finish is last
    assert (last is Finish.STOP) or len(tokens) == asked.max_tokens


def test_a_choice_that_nobody_wants_before_it_begins_goes_with_its_first_token() -> None:
    engine = engine_over(ReadingRunner(16, 4))
    engine.submit(submit(1, [1, 2, 3], choices=3), 0.0)
    engine.cancel(1, 1)
    engine.step(0.0)
    report, _ = engine.take(0.0)
    assert {token.choice for token in report.tokens} >= {0, 2}
    assert report.running == 2


def test_choices_that_an_edit_leaves_no_places_for_run_one_after_the_other() -> None:
    engine = engine_over(ReadingRunner(16, 4))
    engine.submit(submit(1, [1, 2, 3], choices=4, max_tokens=1), 0.0)
    engine.configure(Configure(max_sequences=2, max_tokens_per_step=16, token_seconds=None))
    told = []
    for _ in range(2):
        engine.step(0.0)
        told.append([token.choice for token in engine.take(0.0)[0].tokens])
    assert told == [[0, 1], [2, 3]]
    assert not engine.busy


@pytest.mark.parametrize("blocks", [64, 6])
def test_choices_begin_beside_what_runs_and_wait_for_places_as_others_do(blocks: int) -> None:
    engine = engine_over(ReadingRunner(blocks, 4), sequences=4)
    engine.submit(submit(1, [1], max_tokens=15), 0.0)
    engine.step(0.0)
    engine.submit(submit(2, [1, 2, 3], choices=4, max_tokens=6, deadline=2.0), 0.0)
    engine.submit(submit(3, [5], max_tokens=2), 0.0)
    told: dict[int, list[tuple[int, int]]] = {}
    for now in range(1, 40):
        engine.step(float(now))
        report, refused = engine.take(0.0)
        assert not refused, "choices that wait have begun: their prompt is read"
        assert report.running <= 4
        for token in report.tokens:
            told.setdefault(token.id, []).append((now, token.choice))
    assert not engine.busy
    assert told[2][0] == (1, 0), "the prompt takes one place"
    assert sorted(choice for _, choice in told[2]) == [at for at in range(4) for _ in range(6)]
    if blocks == 64:
        assert [choice for now, choice in told[2] if now == 1] == [0, 1]
        assert told[3][0][0] == 1
        assert told[2][-1][0] < told[1][-1][0], "no step waits for all places"


def test_choices_of_which_the_cache_holds_one_all_come_to_their_end() -> None:
    engine = engine_over(ReadingRunner(8, 4))
    one = submit(0, [1] * 12, choices=4, max_tokens=20, stop_ids=(_STOP,))
    engine.submit(one, 0.0)
    told: dict[int, list[Token]] = {}
    while engine.busy:
        engine.step(0.0)
        for token in engine.take(0.0)[0].tokens:
            told.setdefault(token.choice, []).append(token)
    for choice in range(4):
        _check(one, choice, told[choice])


class _Counting(ReadingRunner):
    most = 0

    def run(self, parts: Sequence[StepPart]) -> list[list[Sampled]]:
        self.most = max(self.most, sum(len(part.draws) for part in parts))
        return super().run(parts)


def test_no_step_draws_more_tokens_than_there_are_places() -> None:
    engine = engine_over(runner := _Counting(64, 4), sequences=4)
    for number in range(4):
        engine.submit(submit(number, [number], choices=4, max_tokens=2), 0.0)
    count = 0
    while engine.busy:
        engine.step(0.0)
        count += len(engine.take(0.0)[0].tokens)
    assert (runner.most, count) == (4, 32)


def test_a_text_whose_first_token_would_be_late_is_refused() -> None:
    engine = engine_over(ReadingRunner(16, 4), sequences=1)
    engine.submit(submit(1, [1, 2, 3], max_tokens=20), 0.0)
    engine.submit(submit(2, [1, 2, 3], deadline=1.0), 0.0)
    engine.step(0.9)
    assert engine.take(0.0)[1] == []
    engine.step(1.0)
    report, refused = engine.take(0.0)
    assert [one.id for one in refused] == [2]
    assert (report.running, report.waiting) == (1, 0)


def test_a_deadline_is_for_the_first_token_and_not_for_the_next_ones() -> None:
    engine = engine_over(ReadingRunner(16, 4))
    engine.submit(submit(1, [1, 2, 3], deadline=1.0, max_tokens=5), 0.0)
    for now in range(5):
        engine.step(float(now))
    report, refused = engine.take(0.0)
    assert (len(report.tokens), refused) == (5, [])
