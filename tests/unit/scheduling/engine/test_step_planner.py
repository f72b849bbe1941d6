"""What a step has in it, whatever runs and waits."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_scheduling.engine.device_shares import DEFAULT_TOKEN_SECONDS
from batchedmodel_scheduling.engine.step_planner import (
    EngineSequence,
    Part,
    StepPlan,
    StepPlanner,
    StepSettings,
)
from batchedmodel_scheduling.latency.step_times import StepCost, StepLoad
from batchedmodel_scheduling.queue.items import Priority

COST = StepCost(base=0.010, prefill_token=0.0001, sequence=0.0001, context_token=1e-7)


def settings(
    *, blocks: int = 1000, sequences: int = 8, tokens: int = 512, target: float | None = None
) -> StepSettings:
    return StepSettings(
        max_sequences=sequences,
        max_tokens_per_step=tokens,
        block_tokens=16,
        blocks=blocks,
        token_seconds=target,
    )


def running(length: int, *, priority: Priority = Priority.NORMAL) -> EngineSequence:
    """One whose next token is to be computed."""
    return EngineSequence(
        id=0, length=length, computed=length - 1, blocks=-(-(length - 1) // 16), priority=priority
    )


def waits(length: int, *, tenant: str = "", weight: float = 1.0) -> EngineSequence:
    return EngineSequence(id=0, length=length, tenant=tenant, weight=weight)


def begun(length: int, computed: int, *, tenant: str = "") -> EngineSequence:
    blocks = -(-length // 16)
    return EngineSequence(id=0, length=length, computed=computed, blocks=blocks, tenant=tenant)


def test_a_step_gives_each_that_runs_a_token_and_reads_prompts_beside() -> None:
    old, new, later = running(100), begun(300, 100), waits(400)
    plan = StepPlanner(settings(), COST).plan([old, new], [later], 500)
    assert plan == StepPlan((), (later,), (Part(old, 1), Part(new, 200), Part(later, 311)))


def test_a_prompt_is_read_in_parts_that_keep_the_target_between_tokens() -> None:
    planner = StepPlanner(settings(target=0.030), COST)
    others = [running(100) for _ in range(4)]
    plan = planner.plan(others, [waits(2000)], 500)
    tokens = plan.parts[-1].tokens
    for more, holds in ((0, True), (2, False)):
        seconds = COST.predict(StepLoad(tokens + more, 5, 4 * 99))
        assert (seconds <= 0.9 * 0.030) is holds, "a tenth is left for what is not foretold"


def prompt_tokens(cost: StepCost, *, target: float | None = None, batch_waits: bool = False) -> int:
    """That a step reads of a long prompt beside four texts."""
    planner = StepPlanner(settings(tokens=4096, target=target), cost)
    others = [running(100) for _ in range(4)]
    return planner.plan(others, [waits(8000)], 1000, batch_waits=batch_waits).parts[-1].tokens


def seconds_of(cost: StepCost, prefill_tokens: int) -> float:
    return cost.predict(StepLoad(prefill_tokens, 5, 4 * 99))


def test_without_a_target_a_prompt_is_read_in_parts_that_keep_a_usual_one() -> None:
    """Prompts were read by 512 tokens whatever that took."""
    slow = replace(COST, prefill_token=0.0007)
    assert seconds_of(slow, 512) > 0.35
    assert 0.15 < seconds_of(slow, prompt_tokens(slow)) <= 0.9 * DEFAULT_TOKEN_SECONDS
    quick = replace(COST, prefill_token=0.00003)
    assert prompt_tokens(quick) == 4096 - 4, "where steps are quick it costs nothing"


def test_without_a_target_prompts_have_half_of_slow_steps_nearly() -> None:
    slow = replace(COST, base=0.5, prefill_token=0.002)
    for batch_waits in (False, True):
        tokens = prompt_tokens(slow, batch_waits=batch_waits)
        assert seconds_of(slow, tokens) == pytest.approx(1.8 * seconds_of(slow, 0), rel=0.01)


@pytest.mark.parametrize("target", [None, 0.05])
def test_a_step_leaves_a_part_of_the_time_to_batches_that_wait(target: float | None) -> None:
    slow = replace(COST, prefill_token=0.0007)
    alone = seconds_of(slow, prompt_tokens(slow, target=target))
    beside = seconds_of(slow, prompt_tokens(slow, target=target, batch_waits=True))
    assert beside == pytest.approx(0.6 * alone, rel=0.05)


def test_nobody_waits_for_ever_where_the_target_cannot_be_met() -> None:
    planner = StepPlanner(settings(target=0.001), COST)
    assert planner.plan([running(100)], [waits(100)], 500).parts[-1].tokens == 16
    assert planner.plan([], [waits(100)], 500).parts[-1].tokens == 100, "nobody gets a token"


def test_no_prompt_takes_the_block_that_the_next_tokens_need() -> None:
    planner = StepPlanner(settings(), COST)
    others = [running(100), running(100)]
    assert planner.plan(others, [waits(64)], 5).admitted == ()
    assert len(planner.plan(others, [waits(64)], 6).admitted) == 1


def test_blocks_that_a_prompt_finds_are_not_counted_twice() -> None:
    planner = StepPlanner(settings(), COST)
    # Four blocks, of which three are found; two of these are free until they are used.
    finds = EngineSequence(id=0, length=64, computed=48, blocks=3, unused=2)
    assert planner.plan([], [finds], 2).admitted == ()
    plan = planner.plan([], [finds], 3)
    assert (plan.admitted, plan.parts) == ((finds,), (Part(finds, 16),))


def test_where_blocks_run_out_the_newest_of_least_priority_gives_way() -> None:
    oldest, low, middle, newest = (
        running(17, priority=priority)
        for priority in (Priority.LOW, Priority.LOW, Priority.NORMAL, Priority.NORMAL)
    )
    for one in (oldest, low, middle, newest):
        assert one.blocks == 1
    everybody = [oldest, low, middle, newest]
    planner = StepPlanner(settings(), COST)
    assert planner.plan(everybody, [], 2).preempted == (low,)
    assert planner.plan(everybody, [], 1).preempted == (low, newest)
    assert planner.plan(everybody, [waits(16)], 0).preempted == (low, newest)
    assert planner.plan(everybody, [waits(16)], 2).admitted == ()


def test_what_can_never_fit_is_known() -> None:
    assert settings(blocks=4).holds(64)
    assert not settings(blocks=4).holds(65)


@pytest.mark.parametrize(
    "wrong", [{"sequences": 0}, {"blocks": 0}, {"tokens": 7}, {"tokens": 0, "sequences": 0}]
)
def test_an_engine_that_can_do_nothing_is_none(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least"):
        settings(**wrong)


@given(st.integers(0, 2**32), st.sampled_from([None, 0.001, 0.02, 0.05]))
def test_everything_ends_and_no_block_is_lost_whatever_comes(
    seed: int, target: float | None
) -> None:
    chance = random.Random(seed)
    bounds = settings(
        blocks=chance.randint(4, 40),
        sequences=chance.randint(1, 6),
        tokens=chance.choice([6, 32, 512]),
        target=target,
    )
    planner, free = StepPlanner(bounds, COST), bounds.blocks
    most = bounds.blocks * bounds.block_tokens
    left = {}
    waiting: list[EngineSequence] = []
    for number in range(chance.randint(1, 12)):
        prompt = chance.randint(1, most)
        one = EngineSequence(id=number, length=prompt, priority=chance.choice(list(Priority)))
        left[one] = chance.randint(1, max(1, min(20, most - prompt + 1)))
        waiting.append(one)
    runs: list[EngineSequence] = []
    for _ in range(20_000):
        if not left:
            break
        plan = planner.plan(runs, waiting, free)
        for one in plan.preempted:
            runs.remove(one)
            free, one.blocks, one.computed = free + one.blocks, 0, 0
            waiting.insert(0, one)
        for one in plan.admitted:
            waiting.remove(one)
            runs.append(one)
        assert len(runs) <= bounds.max_sequences
        assert plan.parts, "something is always done"
        assert sum(tokens for _, tokens in plan.parts) <= bounds.max_tokens_per_step
        assert len({part.sequence for part in plan.parts}) == len(plan.parts)
        for one, tokens in plan.parts:
            assert one in runs
            assert 1 <= tokens <= one.missing
            whole = one.length if one in plan.admitted else one.computed + tokens
            more = max(0, bounds.blocks_of(whole) - one.blocks)
            free, one.blocks = free - more, one.blocks + more
            one.computed += tokens
            if not one.missing:
                left[one] -= 1
                one.length += 1
            if not left[one]:
                del left[one]
                runs.remove(one)
                free += one.blocks
        assert free >= 0
    assert not left
    assert free == bounds.blocks


def test_of_prompts_the_one_with_least_left_is_read_first_beside_a_part_of_the_oldest() -> None:
    long, short, middle = begun(5000, 1000), waits(100), waits(300)
    plan = StepPlanner(settings(tokens=400), COST).plan([long], [middle, short], 900)
    assert plan.parts == (Part(long, 100), Part(middle, 200), Part(short, 100))
    assert plan.admitted == (middle, short)


def test_no_long_prompt_waits_for_ever_behind_short_ones() -> None:
    planner = StepPlanner(settings(tokens=400), COST)
    long = begun(4000, 0)
    for _ in range(40):
        plan = planner.plan([long], [waits(100) for _ in range(9)], 900)
        long.computed += plan.parts[0].tokens
    assert long.missing == 0


def test_who_would_be_read_in_a_later_step_is_not_let_in_yet() -> None:
    first, others = begun(1000, 0), [waits(500) for _ in range(3)]
    plan = StepPlanner(settings(tokens=512), COST).plan([first], others, 900)
    assert plan.admitted == (others[0],)


def test_a_step_reads_the_prompt_of_a_light_tenant_alone_but_not_two_in_a_row() -> None:
    planner = StepPlanner(settings(), COST)
    flood = begun(9000, 1000, tenant="flood")
    alone, beside, again = (
        planner.plan([flood], [waits(40, tenant="light")], 900) for _ in range(3)
    )
    assert [part.tokens for part in alone.parts] == [40]
    assert {part.sequence for part in beside.parts} == {flood, *beside.admitted}
    assert [part.tokens for part in again.parts] == [40]


def read(planner: StepPlanner, prompts: list[EngineSequence]) -> int:
    """Tokens of these that the next step reads."""
    return sum(part.tokens for part in planner.plan(prompts, [], 900).parts)


def test_steps_are_short_for_some_time_after_a_light_tenant_and_whole_again_then() -> None:
    planner = StepPlanner(settings(), COST)
    flood = [begun(90_000, 0, tenant="flood") for _ in range(3)]
    planner.plan(flood, [waits(40, tenant="light")], 900)
    alone = COST.predict(StepLoad(40, 1, 0))
    sizes = [read(planner, flood) for _ in range(200)]
    short = sizes[0]
    seconds = COST.predict(StepLoad(short, 1, 0))
    assert 1.3 * alone < seconds < 1.6 * alone
    count = sizes.count(short)
    assert sizes == [short] * count + [512] * (200 - count)
    assert 32 <= count <= 128


def test_beside_few_prompts_of_another_tenant_steps_stay_whole() -> None:
    planner = StepPlanner(settings(), COST)
    others = [begun(90_000, 0, tenant="other") for _ in range(2)]
    planner.plan(others, [waits(40, tenant="light")], 900)
    assert read(planner, others) == 512


@pytest.mark.parametrize("weight", [1.0, 0.4])
def test_tenants_who_both_have_much_to_read_share_whole_steps(weight: float) -> None:
    planner = StepPlanner(settings(), COST)
    one, other = begun(9000, 1000, tenant="one"), waits(4500, tenant="other", weight=weight)
    plan = planner.plan([one], [other], 900)
    assert sum(part.tokens for part in plan.parts) == 512
    assert {part.sequence for part in plan.parts} == {one, other}


def test_a_step_beside_streams_keeps_their_target_after_a_light_tenant() -> None:
    planner = StepPlanner(settings(target=0.015), COST)
    flood, light = begun(9000, 1000, tenant="flood"), waits(400, tenant="light")
    planner.plan([flood], [light], 900)
    plan = planner.plan([running(100), flood], [], 900)
    tokens = plan.parts[-1].tokens
    assert COST.predict(StepLoad(tokens, 2, 99)) <= 0.015
