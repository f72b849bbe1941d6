"""An engine that does what a planner says, before callers in simulated time."""

import random
from dataclasses import replace

import pytest

from batchedmodel_cli.simulator.planned_engine import PlannedEngine
from batchedmodel_cli.simulator.token_engine import Call
from batchedmodel_cli.simulator.token_pods import TokenPod
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.engine.step_planner import StepPlanner, StepSettings
from batchedmodel_scheduling.latency.step_times import StepCost

COST = StepCost(base=0.010, prefill_token=60e-6, sequence=0.2e-3)
SETTINGS = StepSettings(max_sequences=16, max_tokens_per_step=2048, block_tokens=16, blocks=600)


class Watched(PlannedEngine):
    """Notes the longest step in which somebody got a token that was not the first."""

    longest = 0.0

    def begin(self, now: float) -> None:
        super().begin(now)
        if any(one.missing == 1 for one in self.running) and self.ends_at < float("inf"):
            self.longest = max(self.longest, self.ends_at - now)


def calls(count: int, rate: float, seed: int) -> list[Call]:
    chance, at, found = random.Random(seed), 0.0, []
    for number in range(count):
        at += chance.expovariate(rate)
        found.append(
            Call(
                number=number,
                share=Share("a"),
                prompt=chance.choice([40, 300, 1500]),
                output=chance.randint(1, 80),
                arrived=at,
                patience=600.0,
            )
        )
    return found


def served(engine: PlannedEngine, seed: int = 1) -> list[Call]:
    pod, all_of_them = TokenPod(engine, None), calls(200, 8.0, seed)
    for call in all_of_them:
        pod.arrive(call)
    pod.advance(600.0)
    return all_of_them


@pytest.mark.parametrize("blocks", [110, 300, 600])
def test_all_are_answered_and_no_block_is_kept_however_small_the_cache(blocks: int) -> None:
    engine = PlannedEngine(StepPlanner(replace(SETTINGS, blocks=blocks), COST), COST)
    found = served(engine)
    assert all(call.given == call.output and call.ended_at is not None for call in found)
    assert engine.cache_usage == 0.0
    assert not engine.running
    assert engine.preempted < 10


def test_no_answer_waits_longer_for_a_token_than_the_target_says() -> None:
    longest = {}
    for target in (None, 0.040):
        engine = Watched(StepPlanner(replace(SETTINGS, token_seconds=target), COST), COST)
        served(engine)
        longest[target] = engine.longest
    assert longest[0.040] <= 0.040 + 1e-9
    assert longest[None] > 0.1


def test_who_leaves_gives_its_blocks_back_at_once() -> None:
    engine = PlannedEngine(StepPlanner(SETTINGS, COST), COST)
    one, other = calls(2, 1.0, 3)
    engine.offer(one, 0.0)
    engine.offer(other, 0.0)
    assert engine.cache_usage > 0
    engine.drop(one)
    engine.drop(other)
    engine.drop(other)
    assert engine.cache_usage == 0.0
    assert engine.end() == []
    engine.begin(1.0)
    assert engine.ends_at == float("inf")
