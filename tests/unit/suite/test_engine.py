"""The simulated engine gives each sequence a token a step, first come first served."""

import pytest

from support.engine import Engine, EngineSettings, Sequence, tokens_of


def of(prompt: int = 100, output: int = 3, **other: object) -> Sequence:
    return Sequence(prompt_tokens=prompt, output_tokens=output, **other)  # type: ignore[arg-type]


def offered(engine: Engine, *sequences: Sequence) -> None:
    for one in sequences:
        engine.offer(one)


def stepped(engine: Engine) -> list[Sequence]:
    assert engine.begin() is not None
    return engine.end()


def test_a_step_takes_its_time_and_that_of_the_prompts_that_begin_in_it() -> None:
    engine = Engine()
    offered(engine, of(prompt=100), of(prompt=400, prefill_seconds=1.0))
    assert engine.begin() == pytest.approx(0.02 + 500 * 20e-6 + 1.0)
    engine.end()
    assert engine.begin() == pytest.approx(0.02)


def test_each_step_gives_each_sequence_a_token_until_it_has_all() -> None:
    engine = Engine()
    short, long = of(output=2), of(output=4)
    offered(engine, short, long)
    assert [stepped(engine) for _ in range(4)] == [[short, long], [short, long], [long], [long]]
    assert engine.begin() is None
    assert (engine.steps, engine.generated_tokens, engine.finished) == (4, 6, 2)


def test_those_beyond_its_places_wait_and_come_in_their_order() -> None:
    engine = Engine(settings=EngineSettings(max_num_seqs=64))
    many = [of(output=1 + number % 2) for number in range(70)]
    offered(engine, *many)
    assert stepped(engine) == many[:64]
    assert len(engine.waiting) == 6
    # Those with a second token go on; the rest of the places is free.
    assert stepped(engine) == [*many[1:64:2], *many[64:]]
    assert engine.most_running == 64


def test_who_leaves_frees_the_place_at_the_next_step() -> None:
    engine = Engine(settings=EngineSettings(max_num_seqs=1))
    first, second, third = of(), of(), of()
    offered(engine, first, second, third)
    assert stepped(engine) == [first]
    engine.cancel(second)
    assert list(engine.waiting) == [third]
    assert engine.begin() is not None
    engine.cancel(first)
    engine.cancel(first)
    assert engine.end() == []
    assert stepped(engine) == [third]
    assert engine.cancelled == 2


def test_who_has_finished_is_not_counted_as_gone() -> None:
    engine = Engine()
    only = of(output=1)
    offered(engine, only)
    stepped(engine)
    engine.cancel(only)
    assert engine.cancelled == 0


def test_one_that_hangs_keeps_its_place_and_gets_nothing() -> None:
    engine = Engine()
    hanging, other = of(hangs_after=1), of()
    offered(engine, hanging, other)
    assert [stepped(engine) for _ in range(3)] == [[hanging, other], [other], [other]]
    assert stepped(engine) == []
    assert engine.running == [hanging]


def test_a_prompt_waits_until_the_cache_has_room() -> None:
    engine = Engine(settings=EngineSettings(kv_cache_tokens=250))
    first, second, small = of(prompt=200, output=1), of(prompt=100), of(prompt=10)
    offered(engine, first, second, small)
    assert stepped(engine) == [first]
    assert stepped(engine) == [second, small]
    assert engine.cache_usage() == pytest.approx((100 + 10 + 2) / 250)


@pytest.mark.parametrize(("size", "tokens"), [(0, 1), (1, 1), (4, 1), (5, 2), (400, 100)])
def test_four_bytes_are_a_token(size: int, tokens: int) -> None:
    assert tokens_of(size) == tokens
