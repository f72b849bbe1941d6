"""What texts have in common at their beginning is computed once, and changes no answer."""

import random
from array import array
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.generation.frames import Finish, Sampling, StepReport, Submit
from batchedmodel_model_server.api.generator import StepPart
from batchedmodel_model_server.generation.engine import Engine
from support.engine_frames import submit
from support.reading_runner import VOCABULARY, ReadingRunner, drawn, engine_over

BLOCK_TOKENS = 4
PROMPT = list(range(1, 15))
"""Three blocks, and two tokens."""


class Told:
    """An engine, what each of its steps computes, and what it told."""

    def __init__(self, blocks: int = 32, *, sequences: int = 8) -> None:
        self.steps: list[list[tuple[int, int]]] = []
        """Of each part: the place of its first token, and how many they are."""
        runner = ReadingRunner(blocks, BLOCK_TOKENS, self._before)
        self.engine: Engine = engine_over(runner, sequences=sequences)
        self.reports: list[StepReport] = []

    def _before(self, parts: Sequence[StepPart]) -> None:
        self.steps.append([(part.start, len(part.ids)) for part in parts])

    def submit(self, number: int, ids: Sequence[int], **others: object) -> None:
        self.engine.submit(submit(number, ids, **others), 0.0)  # type: ignore[arg-type]

    def step(self) -> None:
        self.engine.step(0.0)
        report, refused = self.engine.take(0.0)
        assert not refused
        self.reports.append(report)

    def finish(self) -> None:
        while self.engine.busy:
            self.step()

    @property
    def cached(self) -> list[tuple[int, int]]:
        return [one for report in self.reports for one in report.cached]


def test_a_beginning_that_was_computed_is_not_computed_again() -> None:
    told = Told()
    told.submit(1, PROMPT, max_tokens=1)
    told.finish()
    told.submit(2, [*PROMPT[:12], 40, 41, 42], max_tokens=1)
    told.finish()
    assert told.steps == [[(0, 14)], [(12, 3)]]
    assert told.cached == [(2, 12)]
    assert told.reports[-1].prefill_tokens == 14 + 3
    assert told.reports[-1].free_blocks == 32


def test_a_beginning_is_shared_while_its_first_text_still_runs() -> None:
    told = Told()
    told.submit(1, PROMPT, max_tokens=5)
    told.step()
    told.submit(2, PROMPT, max_tokens=5)
    told.step()
    assert sorted(told.steps[-1]) == [(12, 2), (14, 1)]
    # One more for each: the last block of neither is shared.
    assert told.reports[-1].free_blocks == 32 - 3 - 2


def test_a_prompt_that_is_there_as_a_whole_is_computed_from_its_last_block_on() -> None:
    told = Told()
    for number in range(2):
        told.submit(number, PROMPT[:12], max_tokens=1)
        told.finish()
    assert told.steps == [[(0, 12)], [(8, 4)]]
    assert told.cached == [(1, 8)]


def test_the_next_turn_of_a_chat_finds_what_was_written_in_the_last_one() -> None:
    told = Told()
    told.submit(1, PROMPT, max_tokens=8)
    told.finish()
    written = [token.token for report in told.reports for token in report.tokens]
    told.submit(2, [*PROMPT, *written, 40], max_tokens=1)
    told.finish()
    # The last token that was written was never in the cache: 21 tokens were, which are five blocks.
    assert told.cached == [(2, 20)]


def test_texts_of_different_salts_share_nothing() -> None:
    told = Told()
    for number, salt in enumerate(["", "a", "b", "a"]):
        told.submit(number, PROMPT, max_tokens=1, salt=salt)
        told.finish()
    assert told.cached == [(3, 12)]


def test_choices_of_one_prompt_are_told_once_what_it_found() -> None:
    told = Told()
    told.submit(1, PROMPT, max_tokens=2)
    told.finish()
    told.submit(2, PROMPT, max_tokens=3, choices=3)
    told.finish()
    assert told.cached == [(2, 12)]


def test_a_text_that_goes_on_here_finds_its_beginning_and_is_not_told_so_again() -> None:
    told = Told()
    told.submit(1, PROMPT, max_tokens=1)
    told.finish()
    told.submit(2, [*PROMPT, 5], max_tokens=4, given=1)
    told.finish()
    assert told.steps[1] == [(12, 3)]
    assert told.cached == []


def test_a_text_that_gave_way_finds_its_own_blocks_again() -> None:
    told = Told(blocks=8)
    told.submit(1, range(1, 13), max_tokens=8)
    told.submit(2, range(21, 33), max_tokens=8)
    told.finish()
    assert told.reports[-1].preemptions > 0
    restarts = [start for step in told.steps[1:] for start, tokens in step if tokens > 1]
    assert restarts
    assert all(start > 0 for start in restarts)
    assert told.cached == []


def test_blocks_that_are_found_are_not_promised_to_others() -> None:
    told = Told(blocks=8)
    told.submit(1, range(1, 25), max_tokens=1)
    told.finish()
    # Six blocks are kept and two are empty: the second of these must wait for the first.
    told.submit(2, [*range(1, 25), 40], max_tokens=2)
    told.submit(3, [41, 42, 43, 44, 45], max_tokens=1)
    told.step()
    assert (told.reports[-1].running, told.reports[-1].waiting) == (1, 1)
    assert told.cached == [(2, 24)]
    told.finish()
    assert told.reports[-1].free_blocks == 8


@given(st.integers(0, 2**32))
def test_what_is_shared_changes_no_token_whatever_comes_and_goes(seed: int) -> None:
    rng = random.Random(seed)
    block_tokens = rng.choice([1, 2, 4, 8])
    blocks = max(7, rng.randint(52, 128) // block_tokens)
    runner = ReadingRunner(blocks, block_tokens)
    engine = engine_over(runner, sequences=rng.randint(3, 8), tokens=rng.randint(8, 64))
    # Of few different tokens: blocks that are the same behind beginnings that are not.
    few = rng.choice([2, VOCABULARY])
    trees = [[rng.randrange(few) for _ in range(24)] for _ in range(rng.randint(1, 3))]
    coming = [_submit(rng, number, trees) for number in range(20)]
    sent: dict[int, Submit] = {}
    told: dict[tuple[int, int], list[int]] = {}
    ended: set[tuple[int, int]] = set()
    cached: dict[int, int] = {}
    cancelled: set[int] = set()
    while coming or engine.busy:
        while coming and rng.random() < 0.4:
            one = coming.pop()
            engine.submit(one, 0.0)
            sent[one.id] = one
        if sent and rng.random() < 0.05:
            number = rng.choice(list(sent))
            cancelled.add(number)
            engine.cancel(number)
        engine.step(0.0)
        report, refused = engine.take(0.0)
        assert not refused
        for token in report.tokens:
            told.setdefault((token.id, token.choice), []).append(token.token)
            if token.finish is not Finish.NONE:
                ended.add((token.id, token.choice))
        for number, count in report.cached:
            assert number not in cached
            assert any(token.id == number for token in report.tokens)
            cached[number] = count
    assert report.free_blocks == blocks
    for (number, choice), written in told.items():
        ids = list(sent[number].ids)
        for one_token in written:
            assert one_token == drawn(ids, choice, number)
            ids.append(one_token)
    for one in sent.values():
        assert 0 <= cached.get(one.id, 0) < len(one.ids)
        if one.id not in cancelled:
            assert all((one.id, choice) in ended for choice in range(one.choices))


def _submit(rng: random.Random, number: int, trees: Sequence[Sequence[int]]) -> Submit:
    """A prompt that begins as others do, up to where it leaves them."""
    shared = rng.choice(trees)
    own = [rng.randrange(VOCABULARY) for _ in range(rng.randint(0, 6))]
    ids = [*shared[: rng.randint(0, len(shared))], *own]
    return Submit(
        id=number,
        ids=array("i", ids or [0]),
        max_tokens=rng.randint(1, 20),
        choices=rng.choice([1, 1, 1, 3]),
        sampling=Sampling(seed=number),
        priority=rng.randint(1, 3),
        salt=rng.choice(["", "", "a"]),
    )
