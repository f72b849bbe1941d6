"""What steps take, learnt from what they took."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_scheduling.engine.step_planner import (
    EngineSequence,
    Part,
    StepPlanner,
    StepSettings,
    load_of,
)
from batchedmodel_scheduling.latency.step_times import StepCost, StepLoad, StepTimes

MEASURED = StepCost(base=0.010, prefill_token=60e-6, sequence=0.2e-3, context_token=0.1e-6)
TYPICAL = StepLoad(400, 32, 30_000)


def loads(count: int, seed: int = 1) -> list[StepLoad]:
    """Of an engine whose sequences come and go."""
    rng = random.Random(seed)
    return [
        StepLoad(rng.choice((0, 0, rng.randrange(800))), n := rng.randrange(1, 64), n * 900)
        for _ in range(count)
    ]


def off(learnt: StepTimes, truth: StepCost, load: StepLoad = TYPICAL) -> float:
    return abs(learnt.predict(load) / truth.predict(load) - 1)


def test_what_was_measured_holds_until_steps_are_seen() -> None:
    assert StepTimes(MEASURED).predict(TYPICAL) == MEASURED.predict(TYPICAL)


@pytest.mark.parametrize("slower", [0.3, 1.0, 3.0])
def test_an_engine_of_another_speed_is_learnt_in_a_few_hundred_steps(slower: float) -> None:
    truth = StepCost(
        base=0.010 * slower,
        prefill_token=60e-6 * slower,
        sequence=0.2e-3 * slower,
        context_token=0.1e-6 * slower,
    )
    learnt = StepTimes(MEASURED)
    for load in loads(300):
        learnt.observe(load, truth.predict(load))
    assert off(learnt, truth) < 0.03


def test_what_prompts_cost_is_told_apart_from_the_rest() -> None:
    truth = StepCost(base=0.007, prefill_token=150e-6, sequence=0.14e-3, context_token=0.07e-6)
    learnt, rng = StepTimes(MEASURED), random.Random(2)
    for load in loads(1500):
        learnt.observe(load, truth.predict(load) * rng.uniform(0.9, 1.1))
    for load in (StepLoad(0, 4, 3600), StepLoad(800, 2, 1800), StepLoad(0, 60, 54_000)):
        assert off(learnt, truth, load) < 0.08
    assert learnt.prefill_token == pytest.approx(150e-6, rel=0.1)


@pytest.mark.parametrize("stall", [1e-9, 60.0])
def test_a_single_step_that_stalled_changes_next_to_nothing(stall: float) -> None:
    learnt = StepTimes(MEASURED)
    for at, load in enumerate(loads(400)):
        learnt.observe(load, stall if at == 350 else MEASURED.predict(load))
    assert off(learnt, MEASURED) < 0.015


def test_the_first_step_of_all_says_little() -> None:
    learnt = StepTimes(MEASURED)
    learnt.observe(TYPICAL, 60.0)
    assert off(learnt, MEASURED) < 0.15


def test_what_was_learnt_is_forgotten_when_it_holds_no_more() -> None:
    learnt = StepTimes(MEASURED)
    slow = StepCost(base=0.030, prefill_token=180e-6, sequence=0.6e-3, context_token=0.3e-6)
    for truth in (slow, MEASURED):
        for load in loads(2500):
            learnt.observe(load, truth.predict(load))
        assert off(learnt, truth) < 0.03


def test_steps_that_are_all_alike_are_learnt() -> None:
    learnt = StepTimes(MEASURED)
    for _ in range(600):
        learnt.observe(TYPICAL, 2.0 * MEASURED.predict(TYPICAL))
    assert learnt.predict(TYPICAL) == pytest.approx(2.0 * MEASURED.predict(TYPICAL), rel=0.05)


@given(
    st.lists(
        st.tuples(
            st.builds(
                StepLoad, st.integers(0, 4096), st.integers(0, 256), st.integers(0, 1_000_000)
            ),
            st.floats(allow_nan=True, allow_infinity=True),
        ),
        max_size=60,
    )
)
def test_no_time_makes_a_cost_absurd(seen: list[tuple[StepLoad, float]]) -> None:
    learnt = StepTimes(MEASURED)
    for load, took in seen:
        learnt.observe(load, took)
        assert 1 / 16.001 <= learnt.predict(load) / MEASURED.predict(load) <= 16.001


def test_a_cost_of_nothing_learns_nothing() -> None:
    learnt = StepTimes(StepCost(base=0.0, prefill_token=0.0, sequence=0.0))
    learnt.observe(TYPICAL, 1.0)
    assert learnt.predict(TYPICAL) == 0.0


def test_the_load_of_a_step_counts_prompts_apart_from_what_goes_on() -> None:
    goes_on = EngineSequence(id=0, length=100, computed=99)
    begins = EngineSequence(id=1, length=300, computed=50)
    assert load_of([Part(goes_on, 1), Part(begins, 80)]) == StepLoad(80, 2, 99)


def test_a_plan_follows_what_was_learnt() -> None:
    settings = StepSettings(
        max_sequences=8, max_tokens_per_step=2048, block_tokens=16, blocks=1000, token_seconds=0.05
    )
    learnt = StepTimes(MEASURED)
    planner = StepPlanner(settings, learnt)
    others = [EngineSequence(id=0, length=100, computed=99, blocks=7)]

    def part() -> int:
        return planner.plan(others, [EngineSequence(id=1, length=2000)], 900).parts[-1].tokens

    before = part()
    for load in loads(400):
        learnt.observe(load, 2.0 * MEASURED.predict(load))
    assert part() < 0.5 * before
