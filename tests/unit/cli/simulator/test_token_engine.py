"""An engine that batches continuously: steps, places, chunks and the cache."""

from dataclasses import replace

import pytest

from batchedmodel_cli.simulator.token_engine import Call, EngineFigures, TokenEngine
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.queue.items import NEVER

FIGURES = EngineFigures(
    sequences=2,
    step_seconds=0.020,
    sequence_seconds=0.001,
    prefill_seconds_per_token=1e-4,
    chunk_tokens=100,
)


def call(prompt: int = 10, output: int = 3, number: int = 0) -> Call:
    return Call(number=number, share=Share("a"), prompt=prompt, output=output, arrived=0.0)


def run(engine: TokenEngine, until: float = NEVER) -> dict[int, list[float]]:
    """When each call got its tokens."""
    times: dict[int, list[float]] = {}
    while engine.ends_at != NEVER and engine.ends_at <= until:
        now = engine.ends_at
        for told in engine.end():
            times.setdefault(told.number, []).append(now)
        engine.begin(now)
    return times


def test_a_step_takes_its_time_and_that_of_prompts_and_sequences() -> None:
    engine = TokenEngine(FIGURES)
    engine.offer(call(), 1.0)
    assert run(engine)[0] == pytest.approx([1.022, 1.043, 1.064])
    assert (engine.given_tokens, engine.read_tokens, engine.steps) == (3, 10, 3)
    assert engine.sequence_seconds == pytest.approx(0.064)


def test_a_long_prompt_is_read_in_chunks_while_others_get_their_tokens() -> None:
    engine = TokenEngine(FIGURES)
    engine.offer(call(output=9), 0.0)
    engine.offer(call(prompt=250, number=1), 0.0)
    times = run(engine)
    assert times[1][0] == times[0][3]
    whole = TokenEngine(replace(FIGURES, chunk_tokens=None))
    whole.offer(call(output=9), 0.0)
    whole.offer(call(prompt=250, number=1), 0.0)
    assert run(whole)[1][0] == pytest.approx(0.021 + 0.001 + 0.022 + 0.025)


def test_who_comes_first_runs_first_and_the_rest_waits_for_a_place() -> None:
    engine = TokenEngine(FIGURES)
    for number in range(3):
        engine.offer(call(number=number), 0.0)
    times = run(engine)
    assert times[0][-1] < times[2][0]
    assert engine.cache_usage == 0.0


def test_a_call_whose_caller_left_frees_its_place() -> None:
    engine = TokenEngine(FIGURES)
    calls = [call(output=50, number=number) for number in range(4)]
    for one in calls:
        engine.offer(one, 0.0)
    run(engine, until=0.1)
    assert engine.cache_usage == 1.0
    engine.drop(calls[0])
    engine.drop(calls[3])
    engine.drop(calls[3])
    run(engine, until=0.2)
    assert list(engine.running) == [calls[1], calls[2]]
    assert not engine.waiting


def test_answers_that_outgrow_the_cache_let_the_newest_begin_anew() -> None:
    engine = TokenEngine(replace(FIGURES, cache_tokens=60))
    for number in range(2):
        engine.offer(call(prompt=20, output=20, number=number), 0.0)
    usage = []
    times: dict[int, list[float]] = {}
    while engine.ends_at != NEVER:
        now = engine.ends_at
        for told in engine.end():
            times.setdefault(told.number, []).append(now)
        engine.begin(now)
        usage.append(engine.cache_usage)
    assert engine.preempted == 1
    assert engine.read_tokens > 40
    assert [len(times[number]) for number in (0, 1)] == [20, 20]
    assert 0.9 < max(usage) <= 1.0
    assert usage[-1] == 0.0


def test_a_prompt_waits_until_it_fits_into_the_cache_unless_it_is_alone() -> None:
    engine = TokenEngine(replace(FIGURES, cache_tokens=60))
    engine.offer(call(prompt=100, output=2), 0.0)
    engine.offer(call(prompt=10, number=1), 0.0)
    times = run(engine)
    assert times[0][-1] < times[1][0]


def test_work_is_what_a_full_engine_takes() -> None:
    assert FIGURES.work(100, 10) == pytest.approx(0.01 + 10 * 0.011)
    engine = TokenEngine(FIGURES)
    for number in range(200):
        engine.offer(call(prompt=100, output=10, number=number), 0.0)
    last = max(times[-1] for times in run(engine).values())
    assert last == pytest.approx(200 * FIGURES.work(100, 10), rel=0.05)


@pytest.mark.parametrize(
    "wrong", [{"sequences": 0}, {"chunk_tokens": -1}, {"step_seconds": 0.0, "sequence_seconds": 0}]
)
def test_impossible_engines_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="has a place at least"):
        replace(FIGURES, **wrong)
