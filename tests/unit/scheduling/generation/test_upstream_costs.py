"""Learnt costs of tokens, from what a server with known ones would show."""

import random

import pytest

from batchedmodel_scheduling.generation.requests import AdmissionSettings, AtServer, Load
from batchedmodel_scheduling.generation.upstream_engine import UpstreamEngine
from batchedmodel_scheduling.generation.waiting import FairTurns

STEP = 0.02
PROMPT = 5e-6


def span(at_once: float, prompts: int, *, seconds: float = 0.25) -> Load:
    """What a server shows that reads so many tokens of prompts in this time."""
    steps = (seconds - prompts * PROMPT) / STEP
    return Load(
        seconds=seconds, taken=at_once, streams=at_once, generating=at_once, started=10,
        prompt_tokens=prompts, tokens=round(at_once * steps), whole_seconds=0.0, whole_tokens=0,
        completed=10,
    )  # fmt: skip


def engine(places: int | None = None) -> UpstreamEngine:
    settings = AdmissionSettings(max_concurrent_requests=places)
    return UpstreamEngine(settings, AtServer(), FairTurns())


def learnt(at_once: float = 64, places: int = 64) -> UpstreamEngine:
    costs, chance = engine(places), random.Random(1)
    for number in range(200):
        load = span(at_once, chance.randint(0, 10_000))
        costs.looked(load, 0.25 * number, pressed=at_once >= places)
    return costs


def test_before_anything_is_seen_a_token_of_a_prompt_costs_a_twentieth() -> None:
    costs = engine()
    assert not costs.learnt
    assert costs.prompt_token == pytest.approx(costs.output_token / 20)


def test_a_token_of_output_costs_its_part_of_a_step() -> None:
    assert learnt().output_token == pytest.approx(STEP / 64, rel=0.1)


def test_few_streams_on_a_server_that_runs_many_cost_no_more() -> None:
    assert learnt(at_once=8).output_token == pytest.approx(STEP / 64, rel=0.1)


def test_a_token_of_a_prompt_costs_what_it_slows_steps_by() -> None:
    assert learnt().prompt_token == pytest.approx(PROMPT, rel=0.1)


def test_a_first_token_takes_what_it_took_on_a_server_with_room() -> None:
    costs, chance = learnt(), random.Random(2)
    for _ in range(100):
        prompt = chance.randint(10, 4000)
        took = 1.5 * STEP + prompt * PROMPT
        costs.saw_first_token(prompt, took, room=True)
        costs.saw_first_token(prompt, took + 2.0, room=False)  # it waited there
    for prompt in (10, 1000, 4000):
        assert costs.first_token(prompt) == pytest.approx(1.5 * STEP + prompt * PROMPT, rel=0.15)


def test_one_straggler_changes_little() -> None:
    costs = learnt()
    for _ in range(20):
        costs.saw_first_token(100, 0.03, room=True)
    before = costs.first_token(100)
    costs.saw_first_token(100, 60.0, room=True)
    assert costs.first_token(100) < 1.5 * before


def test_the_slow_first_answer_of_a_server_that_has_just_begun_is_soon_forgotten() -> None:
    costs = learnt()
    costs.saw_first_token(100, 60.0, room=True)
    costs.saw_first_token(100, 0.04, room=False)
    assert costs.first_token(100) < 0.1


def test_caution_grows_with_what_first_tokens_take_at_present() -> None:
    costs = learnt()
    for _ in range(300):
        costs.saw_first_token(100, 0.03, room=True)
    calm = costs.cautious_first_token(100)
    for _ in range(300):
        costs.saw_first_token(100, 0.4, room=False)
    assert calm < 0.1
    assert costs.cautious_first_token(100) == pytest.approx(0.4, rel=0.3)


def test_what_does_not_stream_teaches_by_its_end() -> None:
    costs = engine(32)
    load = span(32, 0)._replace(
        streams=0.0, generating=0.0, tokens=0, whole_seconds=40 * STEP * 5, whole_tokens=200
    )
    for number in range(50):
        costs.looked(load, 0.25 * number, pressed=True)
    assert costs.output_token == pytest.approx(STEP / 32, rel=0.1)


def test_a_span_without_tokens_teaches_nothing() -> None:
    costs = engine()
    costs.looked(span(0, 0), 0.25, pressed=False)
    assert not costs.learnt
