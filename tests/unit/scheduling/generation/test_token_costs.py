"""What tokens cost: an engine of ours, by its reports, and another, by what it would show."""

import random
from dataclasses import replace

import pytest

from batchedmodel_scheduling.generation.at_server import Load
from batchedmodel_scheduling.generation.requests import EngineLimits, EngineStep
from batchedmodel_scheduling.generation.token_costs import ReportedCosts, SeenCosts
from batchedmodel_scheduling.latency.step_times import StepCost

LIMITS = EngineLimits(
    max_sequences=16,
    max_tokens_per_step=512,
    blocks=1000,
    block_tokens=16,
    cost=StepCost(base=0.016, prefill_token=1e-4, sequence=1e-3),
)
STEP = EngineStep(
    seconds=0.02, running=4, waiting=0, free_blocks=900, backlog=0,
    prefill_tokens=0, tokens=4, ended=0,
)  # fmt: skip


def reported(limits: EngineLimits = LIMITS) -> ReportedCosts:
    return ReportedCosts(limits)


def test_work_is_by_the_measured_cost_before_anything_ran() -> None:
    costs = reported()
    assert costs.work(100, 50.0) == pytest.approx(100 * 1e-4 + 50 * (0.001 + 0.001))


def test_an_engine_that_became_slower_costs_more() -> None:
    costs, chance = reported(), random.Random(1)
    before = costs.work(100, 50.0)
    for _ in range(500):
        read, tokens = chance.choice([0, 200, 500]), chance.randint(1, 16)
        seconds = 2 * (0.016 + 1e-4 * read + 1e-3 * (tokens + (read > 0)))
        costs.saw(replace(STEP, seconds=seconds, prefill_tokens=read, tokens=tokens))
    assert costs.work(100, 50.0) == pytest.approx(2 * before, rel=0.1)


def test_where_the_cache_holds_few_a_token_of_output_costs_more() -> None:
    costs = reported()
    plain = costs.output_token
    for _ in range(300):
        costs.saw(replace(STEP, running=4, free_blocks=500))
    # 2,000 tokens each: the cache holds eight.
    assert costs.output_token == pytest.approx(0.016 / 8 + 0.001, rel=0.1)
    assert costs.output_token > plain


def test_a_first_token_takes_a_step_and_a_half_and_its_prompt() -> None:
    costs = reported()
    for _ in range(300):
        costs.saw(replace(STEP, seconds=0.05, prefill_tokens=250, backlog=500))
    assert costs.prompts_in_step == pytest.approx(250, rel=0.01)
    usual = 1.5 * 0.05 + 1000 * costs.prompt_token
    assert costs.first_token(1000) == pytest.approx(usual, rel=0.01)


def test_an_engine_that_was_measured_as_free_is_learnt_from_its_first_step_on() -> None:
    costs = reported(replace(LIMITS, cost=StepCost(base=0.0, prefill_token=0.0, sequence=0.0)))
    assert costs.first_token(100) == 0.0
    costs.saw(replace(STEP, prefill_tokens=100))
    assert costs.first_token(100) > 0.0


STEP_SECONDS = 0.02
PROMPT_SECONDS = 5e-6


def span(at_once: float, prompts: int, *, seconds: float = 0.25) -> Load:
    """What a server shows that reads so many tokens of prompts in this time."""
    steps = (seconds - prompts * PROMPT_SECONDS) / STEP_SECONDS
    return Load(
        seconds=seconds, taken=at_once, streams=at_once, generating=at_once, started=10,
        prompt_tokens=prompts, tokens=round(at_once * steps), whole_seconds=0.0, whole_tokens=0,
        completed=10,
    )  # fmt: skip


def seen(places: int = 16) -> SeenCosts:
    return SeenCosts(lambda: places)


def learnt(at_once: float = 64, places: int = 64) -> SeenCosts:
    costs, chance = seen(places), random.Random(1)
    for _ in range(200):
        costs.saw(span(at_once, chance.randint(0, 10_000)))
    return costs


def test_before_anything_is_seen_a_token_of_a_prompt_costs_a_twentieth() -> None:
    costs = seen()
    assert not costs.learnt
    assert costs.prompt_token == pytest.approx(costs.output_token / 20)


def test_a_token_of_output_costs_its_part_of_a_step() -> None:
    assert learnt().output_token == pytest.approx(STEP_SECONDS / 64, rel=0.1)


def test_few_streams_on_a_server_that_runs_many_cost_no_more() -> None:
    assert learnt(at_once=8).output_token == pytest.approx(STEP_SECONDS / 64, rel=0.1)


def test_a_token_of_a_prompt_costs_what_it_slows_steps_by() -> None:
    assert learnt().prompt_token == pytest.approx(PROMPT_SECONDS, rel=0.1)


def test_a_first_token_takes_two_steps_and_its_prompt() -> None:
    costs = learnt()
    for prompt in (10, 1000, 4000):
        usual = 2 * costs.between_tokens + prompt * PROMPT_SECONDS
        assert costs.first_token(prompt) == pytest.approx(usual, rel=0.1)


def test_what_does_not_stream_teaches_by_its_end() -> None:
    costs = seen(32)
    load = span(32, 0)._replace(
        streams=0.0, generating=0.0, tokens=0, whole_seconds=40 * STEP_SECONDS * 5, whole_tokens=200
    )
    for _ in range(50):
        costs.saw(load)
    assert costs.output_token == pytest.approx(STEP_SECONDS / 32, rel=0.1)


def test_a_span_without_tokens_teaches_nothing() -> None:
    costs = seen()
    costs.saw(span(0, 0))
    assert not costs.learnt
