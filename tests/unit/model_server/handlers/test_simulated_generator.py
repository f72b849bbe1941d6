"""Texts of the simulated device: their time, and that they are always the same."""

from __future__ import annotations  # array.array takes no type argument at run time

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from tokenizers import Tokenizer

from batchedmodel_contract.generation.frames import Sampling
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_model_server.api.generator import CacheSettings, Draw, Generator, StepPart
from batchedmodel_model_server.handlers.simulated import VOCABULARY, Simulated, drawn

GREEDY = Sampling(temperature=0.0)


@dataclass
class Clock:
    """Virtual time; sleeping ends `late` after it should."""

    now: float = 100.0
    late: float = 0.0

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.late


def generator(clock: Clock | None = None, /, **parameters: str) -> Generator:
    return loaded(clock or Clock(), CacheSettings(), parameters)


def loaded(clock: Clock, cache: CacheSettings, parameters: Mapping[str, str]) -> Generator:
    handler = Simulated(clock.read, clock.sleep)
    handler.parameters = {"generates": "true", **parameters}
    handler.cache = cache
    handler.load(None, "simulated")
    assert handler.generator is not None
    return handler.generator


def part(ids: Sequence[int], start: int = 0, sampling: Sampling = GREEDY) -> StepPart:
    """The rest of a text behind `start`, which gets a token."""
    known = array("i", ids)
    return StepPart(known[start:], start, [0], [Draw(sampling, 0, known, len(known))])


def text(made: Generator, ids: Sequence[int], count: int, sampling: Sampling = GREEDY) -> list[int]:
    known = list(ids)
    for _ in range(count):
        ((sampled,),) = made.runner.run([part(known, len(known) - 1, sampling)])
        known.append(sampled.token)
    return known[len(ids) :]


def test_a_step_takes_what_the_formula_says() -> None:
    clock = Clock()
    made = generator(clock, stepSeconds="1", sequenceSeconds="0.1", prefillTokenSeconds="0.01")
    made.runner.run([part([65] * 20), part([65] * 9, 8), part([65] * 7, 6)])
    assert clock.now - 100 == pytest.approx(1 + 3 * 0.1 + 20 * 0.01)


def test_late_wake_ups_do_not_make_the_next_step_late() -> None:
    clock = Clock(late=0.002)
    made = generator(clock, stepSeconds="0.01", prefillTokenSeconds="0")
    for _ in range(50):
        made.runner.run([part([65] * 9, 8)])
    assert clock.now == pytest.approx(100 + 50 * 0.01 + 0.002)


def test_what_passes_between_steps_is_lost() -> None:
    clock = Clock()
    made = generator(clock, stepSeconds="0.01", prefillTokenSeconds="0")
    for _ in range(50):
        made.runner.run([part([65] * 9, 8)])
        clock.now += 0.001
    assert clock.now == pytest.approx(100 + 50 * 0.011)


def test_a_text_goes_on_the_same_wherever_it_was_interrupted() -> None:
    made, sampling = generator(), Sampling(seed=3)
    whole = text(made, [65, 66], 40, sampling)
    for begun in (1, 13, 39):
        assert text(generator(), [65, 66, *whole[:begun]], 40 - begun, sampling) == whole[begun:]


def test_seeds_and_choices_make_other_texts_unless_the_temperature_is_nothing() -> None:
    ids = array("i", [1, 2, 3])
    warm = {drawn(ids, Sampling(seed=seed), choice) for seed in range(8) for choice in range(8)}
    assert len(warm) > 20
    cold = {drawn(ids, Sampling(temperature=0.0, seed=seed), seed) for seed in range(8)}
    assert len(cold) == 1


def test_each_token_that_is_drawn_is_a_visible_character() -> None:
    made = generator()
    tokens = text(made, [65], 300)
    tokenizer = Tokenizer.from_buffer(made.tokenizer)
    decoded = [tokenizer.decode([token]) for token in tokens]
    assert all(len(one) == 1 and one.isprintable() and not one.isspace() for one in decoded)
    assert len(set(decoded)) > 60


def test_every_text_is_its_bytes_and_special_words_are_tokens_of_their_own() -> None:
    made = generator()
    tokenizer = Tokenizer.from_buffer(made.tokenizer)
    said = "Gr\u00f6\u00dfe 10 \u6587\n\t\x00"
    assert tokenizer.encode(said).ids == list(said.encode())
    assert tokenizer.decode(list(said.encode())) == said
    assert tokenizer.encode("<|user|>a<|end|>").ids == [258, 97, 256]
    assert made.stop_ids == (256,)
    assert tokenizer.get_vocab_size() == VOCABULARY == made.vocabulary


def test_probabilities_are_told_to_whoever_asks() -> None:
    made = generator()
    ((silent,),) = made.runner.run([part([65])])
    assert math.isnan(silent.logprob)
    ((told,),) = made.runner.run([part([65], sampling=Sampling(temperature=0.0, logprobs=3))])
    assert told.token == silent.token
    assert told.top[0] == (told.token, told.logprob)
    assert [probability for _, probability in told.top] == sorted(
        [probability for _, probability in told.top], reverse=True
    )


def test_a_part_of_a_prompt_gets_no_token() -> None:
    made = generator()
    assert made.runner.run([StepPart(array("i", [65, 66]), 0, [0], [])]) == [[]]


def test_the_manifest_bounds_the_context_and_the_cache_does() -> None:
    made = generator(blocks="100", blockTokens="4")
    assert (made.runner.blocks, made.runner.block_tokens) == (100, 4)
    assert made.max_context_tokens == 400
    assert generator().max_context_tokens == 32_768
    assert loaded(Clock(), CacheSettings(max_context_tokens=99), {}).max_context_tokens == 99
    assert generator(vocabulary="1000").vocabulary == 1000


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("stepSeconds", "soon", "is not a number of seconds, 0 or more"),
        ("sequenceSeconds", "-1", "is not a number of seconds, 0 or more"),
        ("prefillTokenSeconds", "nan", "is not a number of seconds, 0 or more"),
        ("blocks", "0", "is not a whole number from 1 to 1048576"),
        ("blockTokens", "many", "is not a whole number from 1 to 1048576"),
        ("vocabulary", "100", "is below the tokenizer's 260"),
    ],
)
def test_a_wrong_parameter_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"^spec.model.parameters.{name}: .*{message}"):
        loaded(Clock(), CacheSettings(), {name: value})
