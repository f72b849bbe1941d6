"""Tenants who share an engine of ours: nobody waits long for one who holds all of it."""

import random
import statistics
from dataclasses import replace

import pytest

from batchedmodel_cli.simulator.planned_engine import PlannedEngine
from batchedmodel_cli.simulator.token_engine import Call
from batchedmodel_cli.simulator.token_pods import TokenPod
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.engine.giving_way import GivingWay
from batchedmodel_scheduling.engine.step_planner import StepPlanner, StepSettings
from batchedmodel_scheduling.generation.admission import (
    Admission,
    AdmissionSettings,
    EngineLimits,
)
from batchedmodel_scheduling.latency.step_times import StepCost

COST = StepCost(base=0.010, prefill_token=60e-6, sequence=0.2e-3, context_token=0.05e-6)
STEPS = StepSettings(
    max_sequences=64, max_tokens_per_step=2048, block_tokens=16, blocks=8000, token_seconds=0.05
)
SEEDS = range(3)


def pod(
    steps: StepSettings = STEPS, *, gives_way: bool = True, cost: StepCost = COST
) -> tuple[TokenPod[PlannedEngine], PlannedEngine]:
    limits = EngineLimits(
        max_sequences=steps.max_sequences,
        max_tokens_per_step=steps.max_tokens_per_step,
        blocks=steps.blocks,
        block_tokens=steps.block_tokens,
        cost=cost,
    )
    way = GivingWay() if gives_way else None
    engine = PlannedEngine(StepPlanner(steps, cost), cost, giving_way=way)
    return TokenPod(engine, Admission(AdmissionSettings(engine=limits))), engine


class Calls:
    """What comes, in the order of its numbers."""

    def __init__(self, one: TokenPod[PlannedEngine]) -> None:
        self._pod = one
        self.all: list[Call] = []

    def add(self, tenant: str, at: float, prompt: int, output: int, weight: float = 1.0) -> Call:
        call = Call(
            number=len(self.all), share=Share(tenant, weight, 1.0), prompt=prompt,
            output=output, arrived=at, patience=1e6,
        )  # fmt: skip
        self.all.append(call)
        self._pod.arrive(call)
        return call


@pytest.mark.parametrize("seed", SEEDS)
def test_who_comes_to_an_engine_that_another_has_filled_has_a_first_token_soon(seed: int) -> None:
    chance = random.Random(seed)
    one, engine = pod()
    calls = Calls(one)
    for _ in range(200):
        calls.add("hog", 0.0, chance.randint(20, 300), 800)
    others = [
        calls.add(chance.choice("abc"), chance.uniform(2.0, 12.0), chance.randint(10, 200), 40)
        for _ in range(20)
    ]
    one.advance(1e5)
    assert one.idle
    assert max(call.first_token for call in others) < 2.0
    assert engine.moved <= len(others)


def test_who_holds_all_blocks_with_few_texts_gives_way_as_well() -> None:
    one, engine = pod(replace(STEPS, blocks=500))
    calls = Calls(one)
    for _ in range(6):
        calls.add("hog", 0.0, 1200, 700)
    other = calls.add("other", 4.0, 400, 20)
    one.advance(1e5)
    assert other.first_token < 1.0
    assert engine.moved == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_part_of_the_time_at_most_goes_to_what_is_computed_anew(seed: int) -> None:
    chance, moved = random.Random(seed), {}
    for gives_way in (False, True):
        one, engine = pod(replace(STEPS, max_sequences=16), gives_way=gives_way)
        calls = Calls(one)
        for _ in range(30):
            calls.add("hog", 0.0, 2000, 1500)
        at = 1.0
        while (at := at + chance.expovariate(20.0)) < 20.0:
            calls.add("other", at, 20, 5)
        one.advance(20.0)
        moved[gives_way] = engine.moved_tokens * COST.prefill_token
    assert moved[False] == 0.0
    assert 1.0 < moved[True] <= 1.0 + 20.0 / 8 + 0.3


def test_no_text_is_moved_again_before_all_others_of_its_tenant_were() -> None:
    one, engine = pod(replace(STEPS, max_sequences=8))
    calls = Calls(one)
    for _ in range(8):
        calls.add("hog", 0.0, 20, 3000)
    for second in range(1, 30):
        calls.add("other", float(second), 20, 5)
    one.advance(29.0)
    moved = [sequence.moved for sequence in (*engine.running, *engine.waiting)]
    assert engine.moved >= 20
    assert max(moved) - min(moved) <= 1


def test_a_tenant_alone_has_the_whole_engine_as_it_would_without_giving_way() -> None:
    ends = []
    for gives_way in (False, True):
        chance = random.Random(1)
        one, engine = pod(gives_way=gives_way)
        calls = Calls(one)
        for _ in range(400):
            calls.add("alone", chance.uniform(0, 10), chance.randint(20, 900), 100)
        one.advance(1e5)
        ends.append([call.ended_at for call in calls.all])
        assert engine.moved == 0
    assert ends[0] == ends[1]


def test_whoever_has_half_as_much_as_another_makes_nobody_give_way() -> None:
    one, engine = pod()
    calls = Calls(one)
    for tenant in ("a", "b"):
        for _ in range(60):
            calls.add(tenant, 0.0, 50, 400)
    one.advance(1e5)
    assert engine.moved <= 64 / 3


@pytest.mark.parametrize("seed", SEEDS)
def test_long_prompts_of_one_tenant_keep_no_other_waiting(seed: int) -> None:
    chance = random.Random(seed)
    one, _ = pod(replace(STEPS, blocks=80_000))
    calls = Calls(one)
    for number in range(30):
        calls.add("long", 0.01 * number, 30_000, 50)
    at, others = 0.5, []
    while (at := at + chance.expovariate(4.0)) < 30.0:
        others.append(calls.add(chance.choice("abc"), at, chance.randint(10, 200), 20))
    one.advance(1e5)
    assert max(call.first_token for call in others) < 0.4


SLOW_TO_READ = StepCost(base=0.02, prefill_token=0.4e-3, sequence=0.2e-3, context_token=0.05e-6)


def first_tokens(*, beside_flood: bool) -> list[float]:
    """Of a tenant that sends a short prompt every 0.3 s; the flood sends long ones, without end."""
    steps = replace(STEPS, max_tokens_per_step=512, token_seconds=None)
    one, _ = pod(steps, cost=SLOW_TO_READ)
    calls = Calls(one)
    if beside_flood:
        for _ in range(64):
            calls.add("flood", 0.0, 4000, 8)
    few = [calls.add("few", 5.0 + 0.31 * number, 40, 4) for number in range(40)]
    one.advance(1e5)
    return [call.first_token for call in few]


def test_beside_a_flood_of_long_prompts_a_short_one_takes_twice_the_time_at_most() -> None:
    """Where nobody got a token, prompts of the flood were read by 512 tokens, for 0.2 s."""
    alone, beside = (first_tokens(beside_flood=flood) for flood in (False, True))
    assert statistics.median(beside) <= 2 * statistics.median(alone)
