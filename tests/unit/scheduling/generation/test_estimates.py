"""Learnt lengths of answers: by key and by what was allowed, bounded, and not for ever."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_scheduling.generation.estimates import Estimates
from batchedmodel_scheduling.generation.requests import EngineLimits
from batchedmodel_scheduling.generation.token_costs import ReportedCosts
from batchedmodel_scheduling.latency.step_times import StepCost
from support.generation_requests import request

LIMITS = EngineLimits(
    max_sequences=8,
    max_tokens_per_step=64,
    blocks=100,
    block_tokens=16,
    cost=StepCost(base=0.1, prefill_token=0.0, sequence=0.0),
)


class OutputLengths:
    """What an `Estimates` says of lengths."""

    def __init__(self) -> None:
        self.estimates = Estimates(ReportedCosts(LIMITS))

    def observe(self, key: object, max_tokens: int | None, tokens: int) -> None:
        asked = request(key=str(key))._replace(max_tokens=max_tokens)
        self.estimates.learn_length(asked, tokens)

    def mean(self, key: object, max_tokens: int | None) -> float:
        return self.estimates.tokens(request(key=str(key))._replace(max_tokens=max_tokens))


@pytest.mark.parametrize(("allowed", "expected"), [(None, 256), (4096, 256), (256, 256), (7, 7)])
def test_of_an_unknown_model_at_most_256_tokens_are_expected(
    allowed: int | None, expected: float
) -> None:
    lengths = OutputLengths()
    assert lengths.mean("new", allowed) == expected


def test_the_mean_is_that_of_what_ended() -> None:
    lengths, chance = OutputLengths(), random.Random(1)
    for _ in range(2000):
        lengths.observe("chat", 1000, chance.randint(1, 400))
    assert lengths.mean("chat", 1000) == pytest.approx(200, rel=0.15)


def test_a_change_shows_within_some_hundred_answers() -> None:
    lengths = OutputLengths()
    for tokens in (20, 300):
        for _ in range(600):
            lengths.observe("chat", None, tokens)
        assert lengths.mean("chat", None) == pytest.approx(tokens, rel=0.1)


def test_callers_that_allow_much_are_apart_from_those_that_allow_little() -> None:
    lengths = OutputLengths()
    for _ in range(100):
        lengths.observe("chat", 32, 30)
        lengths.observe("chat", 4000, 900)
    assert lengths.mean("chat", 40) < 40 < 700 < lengths.mean("chat", 3000)


def test_of_many_models_those_that_taught_nothing_for_longest_are_forgotten() -> None:
    lengths = OutputLengths()
    for number in range(2000):
        lengths.observe("kept", None, 10)
        lengths.observe(number, None, 10)
    assert len(lengths.estimates._kinds) <= 1024
    assert lengths.mean("kept", None) < 100
    assert lengths.mean(0, None) == 256


def test_asking_for_a_model_makes_it_no_known_one() -> None:
    lengths = OutputLengths()
    for number in range(200):
        lengths.mean(number, None)
    assert not lengths.estimates._kinds


@given(
    st.lists(st.integers(0, 10**6), max_size=50),
    st.none() | st.integers(0, 10**6),
)
def test_nothing_expected_is_over_what_is_allowed(ended: list[int], allowed: int | None) -> None:
    lengths = OutputLengths()
    for tokens in ended:
        lengths.observe("chat", allowed, tokens)
    told = lengths.mean("chat", allowed)
    assert told >= 0
    assert allowed is None or told <= max(allowed, 0)


def test_weights_stay_right_after_very_many_answers() -> None:
    lengths = OutputLengths()
    for _ in range(6000):
        lengths.observe("chat", None, 50)
    assert lengths.mean("chat", None) == pytest.approx(50, rel=0.1)
