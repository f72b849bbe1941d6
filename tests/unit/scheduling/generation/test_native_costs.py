"""What tokens cost an engine of ours, by its reports, and when first tokens come."""

import random
from dataclasses import replace

import pytest

from batchedmodel_scheduling.engine.step_cost import StepCost
from batchedmodel_scheduling.generation.estimates import OutputLengths
from batchedmodel_scheduling.generation.native_engine import NativeEngine
from batchedmodel_scheduling.generation.requests import (
    AtServer,
    EngineLimits,
    EngineStep,
    EngineView,
)
from batchedmodel_scheduling.generation.waiting import FairTurns

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


def engine(limits: EngineLimits = LIMITS) -> NativeEngine:
    return NativeEngine(limits, AtServer(), OutputLengths(), FairTurns())


def test_work_is_by_the_measured_cost_before_anything_ran() -> None:
    costs = engine()
    assert costs.work(100, 50.0) == pytest.approx(100 * 1e-4 + 50 * (0.001 + 0.001))


def test_an_engine_that_became_slower_costs_more() -> None:
    costs, chance = engine(), random.Random(1)
    before = costs.work(100, 50.0)
    for _ in range(500):
        read, tokens = chance.choice([0, 200, 500]), chance.randint(1, 16)
        seconds = 2 * (0.016 + 1e-4 * read + 1e-3 * (tokens + (read > 0)))
        costs.saw(
            EngineView(step=replace(STEP, seconds=seconds, prefill_tokens=read, tokens=tokens)), 0.0
        )
    assert costs.work(100, 50.0) == pytest.approx(2 * before, rel=0.1)


def test_where_the_cache_holds_few_a_token_of_output_costs_more() -> None:
    costs = engine()
    plain = costs.output_token
    for _ in range(300):
        costs.saw(EngineView(step=replace(STEP, running=4, free_blocks=500)), 0.0)
    # 2,000 tokens each: the cache holds eight.
    assert costs.output_token == pytest.approx(0.016 / 8 + 0.001, rel=0.1)
    assert costs.output_token > plain


def test_a_first_token_takes_its_prompt_as_fast_as_full_steps_read() -> None:
    costs = engine()
    for _ in range(300):
        costs.saw(
            EngineView(step=replace(STEP, seconds=0.05, prefill_tokens=250, backlog=500)), 0.0
        )
    assert costs.prompts_in_step == pytest.approx(250, rel=0.01)
    assert costs.first_token(1000) == pytest.approx(1.5 * 0.05 + 1000 * 0.05 / 250, rel=0.05)


def test_nearly_all_first_tokens_come_within_the_cautious_time_whatever_their_prompt() -> None:
    costs, chance = engine(), random.Random(2)
    late = 0
    for number in range(4000):
        prompt = chance.choice([20, 400, 4000])
        took = costs.first_token(prompt) * chance.uniform(0.8, 2.0)
        late += number >= 1000 and took > costs.cautious_first_token(prompt)
        costs.saw_first_token(prompt, took, room=True)
    assert 0.02 <= late / 3000 <= 0.08


def test_an_engine_that_was_measured_as_free_is_learnt_from_its_first_step_on() -> None:
    costs = engine(replace(LIMITS, cost=StepCost(base=0.0, prefill_token=0.0, sequence=0.0)))
    costs.saw_first_token(100, 0.5, room=True)
    assert costs.cautious_first_token(100) == 0.0
    costs.saw(EngineView(step=replace(STEP, prefill_tokens=100)), 0.0)
    assert costs.first_token(100) > 0.0


def test_a_step_that_did_not_run_teaches_nothing() -> None:
    costs = engine()
    before = costs.first_token(100)
    costs.saw(EngineView(step=replace(STEP, seconds=0.0, backlog=10, prefill_tokens=10)), 0.0)
    assert costs.first_token(100) == before
