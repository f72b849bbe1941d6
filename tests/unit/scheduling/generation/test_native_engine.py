"""What goes to an engine of ours that tells after each step what room it has."""

from dataclasses import replace

import pytest

from batchedmodel_contract.outcomes import Rejection
from batchedmodel_scheduling.generation.admission import (
    Admission,
    AdmissionSettings,
    EngineLimits,
    EngineStep,
    EngineView,
)
from batchedmodel_scheduling.generation.requests import AtOnce
from batchedmodel_scheduling.latency.step_times import StepCost
from support.generation_requests import offered, request

LIMITS = EngineLimits(
    max_sequences=4,
    max_tokens_per_step=512,
    blocks=100,
    block_tokens=16,
    cost=StepCost(base=0.010, prefill_token=1e-4, sequence=1e-3),
)
IDLE = EngineStep(
    seconds=0.0, running=0, waiting=0, free_blocks=100, backlog=0,
    prefill_tokens=0, tokens=0, ended=0,
)  # fmt: skip


def told(limits: EngineLimits = LIMITS) -> Admission:
    """An admission before an engine that has told of itself."""
    admission = Admission(AdmissionSettings(engine=limits))
    admission.engine(EngineView(step=replace(IDLE, free_blocks=limits.blocks)), 0.0)
    return admission


def first_tokens(admission: Admission, *numbers: int, now: float = 0.0) -> None:
    for number in numbers:
        admission.first_token(number, now)


def tells(admission: Admission, now: float = 0.0, **figures: object) -> None:
    admission.engine(EngineView(step=replace(IDLE, seconds=0.02, **figures)), now)  # type: ignore[arg-type]


def test_nothing_goes_before_the_engine_has_told_what_it_has() -> None:
    admission = Admission(AdmissionSettings(engine=LIMITS))
    one = request()
    offered(admission, one)
    assert admission.poll(0.0).release == ()
    tells(admission)
    assert admission.poll(0.0).release == (one.id,)


def test_as_many_go_as_run_at_once_and_one_more_for_the_place_that_is_free_next() -> None:
    admission = told()
    requests = [request(prompt=20) for _ in range(8)]
    offered(admission, *requests)
    assert admission.poll(0.0).release == tuple(one.id for one in requests[:4])
    tells(admission, running=4, free_blocks=92)
    assert admission.poll(0.1).release == (requests[4].id,)
    assert admission.poll(0.1).release == ()
    tells(admission, running=4, waiting=1, free_blocks=92)
    assert admission.poll(0.2).release == ()


def test_what_ended_together_in_a_larger_engine_lets_no_more_wait_in_a_smaller_one() -> None:
    admission = told(replace(LIMITS, max_sequences=48, blocks=1000))
    offered(admission, *(request(prompt=20) for _ in range(48)))
    for step in range(20):
        tells(admission, running=48, free_blocks=900, now=0.02 * step)
    for number in admission.poll(0.4).release:
        admission.ended(number, 0.4, output_tokens=20)
    tells(admission, free_blocks=1000, ended=48, now=0.42)

    smaller = AdmissionSettings(engine=replace(LIMITS, max_sequences=2))
    admission.configure(smaller, 0.5)
    offered(admission, *(request(prompt=20) for _ in range(8)), now=0.5)
    assert len(admission.poll(0.5).release) <= 4


def test_where_many_end_with_a_step_as_many_wait_there() -> None:
    admission = told(replace(LIMITS, max_sequences=8))
    requests = [request(prompt=20) for _ in range(20)]
    offered(admission, *requests)
    gone = list(admission.poll(0.0).release)
    for step in range(1, 200):
        gone.remove(first := gone[0])
        admission.ended(first, 0.02 * step, output_tokens=10)
        gone.remove(second := gone[0])
        admission.ended(second, 0.02 * step, output_tokens=10)
        tells(admission, running=min(8, len(gone)), waiting=max(0, len(gone) - 8), ended=2)
        offered(admission, request(prompt=20), request(prompt=20), now=0.02 * step)
        gone += admission.poll(0.02 * step).release
    assert len(gone) - 8 == 4


def test_a_request_for_many_texts_goes_where_one_of_them_has_a_place() -> None:
    """Catches many texts of one prompt draining the engine: all others waited for their places."""
    admission = told()
    offered(admission, *(request("b", prompt=20) for _ in range(2)))
    assert len(admission.poll(0.0).release) == 2
    many, other = request("a", prompt=20, choices=4), request("b", prompt=20)
    offered(admission, many, other)
    assert admission.poll(0.0).release == (many.id,)
    assert admission.poll(0.0).release == (), "its other texts have the places that come next"


def test_blocks_that_were_granted_count_before_the_engine_has_seen_it() -> None:
    admission = told()
    requests = [request(prompt=500) for _ in range(4)]
    offered(admission, requests[0])
    assert admission.poll(0.0).release == (requests[0].id,)
    tells(admission, running=1, free_blocks=66)
    offered(admission, *requests[1:])
    assert admission.poll(0.1).release == (requests[1].id,)
    tells(admission, running=1, free_blocks=66)
    assert admission.poll(0.2).release == (), "of 100 blocks both take 64 and grow"
    tells(admission, running=2, free_blocks=34)
    assert admission.poll(0.3).release == ()
    admission.ended(requests[0].id, 0.4, output_tokens=50)
    tells(admission, running=1, free_blocks=66, ended=1)
    assert admission.poll(0.4).release == (requests[2].id,)


def test_a_part_of_the_blocks_stays_free_for_texts_to_grow() -> None:
    admission = told()
    requests = [request(prompt=360) for _ in range(4)]
    offered(admission, *requests)
    assert len(admission.poll(0.0).release) == 4, "of 100 blocks they take 92"
    for one in requests:
        admission.ended(one.id, 0.0, output_tokens=None)
    tells(admission)
    offered(admission, *(request(prompt=390) for _ in range(4)))
    assert len(admission.poll(0.0).release) == 3, "four take 100 of 97"


def test_blocks_that_prompts_share_are_free_for_others() -> None:
    granted = {}
    for free in (34, 68):
        admission = told()
        requests = [request(prompt=500) for _ in range(3)]
        offered(admission, *requests[:2])
        admission.poll(0.0)
        tells(admission, running=2, free_blocks=free)
        offered(admission, requests[2])
        granted[free] = len(admission.poll(0.1).release)
    assert granted == {34: 0, 68: 1}


def test_prompts_of_about_three_steps_are_unread_in_the_engine() -> None:
    admission = told(replace(LIMITS, max_sequences=64, blocks=10_000))
    requests = [request(prompt=400) for _ in range(9)]
    offered(admission, *requests)
    assert len(admission.poll(0.0).release) == 4, "the fourth is the first beyond 1,536 tokens"
    admission.first_token(requests[0].id, 0.1)
    tells(admission, running=4, backlog=1088, prefill_tokens=512, free_blocks=9900)
    assert admission.poll(0.1).release == (requests[4].id,)
    assert admission.poll(0.1).release == ()


def test_a_long_prompt_that_is_read_keeps_no_short_one_waiting() -> None:
    admission = told(replace(LIMITS, max_sequences=64, blocks=10_000))
    offered(admission, request("a", prompt=100_000))
    assert len(admission.poll(0.0).release) == 1
    tells(admission, running=1, backlog=99_000, prefill_tokens=512, free_blocks=3000)
    short = request("b", prompt=100)
    offered(admission, short)
    assert admission.poll(0.1).release == (short.id,)


def test_nothing_more_goes_while_one_had_to_give_way() -> None:
    admission = told()
    offered(admission, *(request(prompt=300) for _ in range(2)))
    admission.poll(0.0)
    tells(admission, running=2, free_blocks=60)
    offered(admission, request(prompt=10))
    tells(admission, running=1, waiting=1, free_blocks=2)
    assert admission.poll(0.1).release == ()


def test_nobody_who_has_much_passes_a_prompt_that_waits_for_blocks() -> None:
    admission = told()
    offered(admission, first := request("a", prompt=1000))
    assert admission.poll(0.0).release == (first.id,)
    tells(admission, running=1, free_blocks=37)
    long, small = request("b", prompt=900), request("a", prompt=16)
    offered(admission, long, small)
    assert admission.poll(0.1).release == ()
    admission.ended(first.id, 0.2, output_tokens=50)
    tells(admission, ended=1)
    assert admission.poll(0.2).release == (long.id, small.id)


def test_what_the_engine_can_never_hold_is_refused_at_once() -> None:
    admission = told()
    refusal = admission.offer(request(prompt=1551), 0.0)
    assert refusal is not None
    assert refusal.reason is Rejection.TOO_LARGE
    # More choices than run at once wait there for one another.
    for one in (request(prompt=1550), request(prompt=1550, choices=5)):
        offered(admission, one)
        assert admission.poll(0.0).release == (one.id,)
        admission.ended(one.id, 0.0, output_tokens=None)


def test_a_list_of_prompts_takes_room_by_what_runs_at_once_and_counts_as_a_whole() -> None:
    admission = told()
    # Of a hundred prompts four are there at a time.
    listed = request("list", prompt=40_000, choices=100, at_once=AtOnce(1200, 4))
    plain = [request("list", prompt=400) for _ in range(100)]
    assert admission.work(listed) == pytest.approx(sum(map(admission.work, plain)))
    offered(admission, listed)
    assert admission.poll(0.0).release == (listed.id,)
    tells(admission, running=4, free_blocks=25)
    admission.first_token(listed.id, 0.1)
    before = admission.backlog_work
    admission.cached_prefix(listed.id, 30_000)
    assert before - admission.backlog_work == pytest.approx(30_000 * LIMITS.cost.prefill_token)
    admission.tokens(listed.id, 50 * 60 - 1, 0.2)
    other = request("other", prompt=20)
    offered(admission, other)
    assert admission.poll(0.2).release == (other.id,)


def test_of_a_list_of_prompts_the_length_of_one_answer_is_learnt() -> None:
    admissions = [told(), told()]
    for _ in range(50):
        listed = request(prompt=400, choices=20, at_once=AtOnce(80, 4))
        for admission, one, tokens in zip(
            admissions, (listed, request(prompt=20)), (20 * 10, 10), strict=True
        ):
            offered(admission, one)
            admission.poll(0.0)
            admission.ended(one.id, 0.0, output_tokens=tokens)
    by_lists, by_texts = (admission.work(request()) for admission in admissions)
    assert by_lists == pytest.approx(by_texts)


def test_other_bounds_hold_from_the_next_grant_on() -> None:
    admission = told()
    requests = [request(prompt=20) for _ in range(8)]
    offered(admission, *requests)
    admission.poll(0.0)
    more = replace(LIMITS, max_sequences=6)
    admission.configure(AdmissionSettings(engine=more), 0.0)
    assert admission.limit == 6
    tells(admission, running=4, free_blocks=92)
    assert len(admission.poll(0.1).release) == 2


def test_work_is_told_before_anything_ran_and_the_cache_is_part_of_it() -> None:
    admission = told()
    one = request(prompt=100)
    plain = admission.work(one)
    assert plain == 100 * 1e-4 + 50 * (0.010 / 4 + 1e-3)
    for step in range(200):
        tells(admission, running=2, tokens=2, free_blocks=2, now=0.02 * step)
    assert admission.work(one) > 1.2 * plain, "the cache holds two of such as run"


def test_who_has_little_goes_though_another_has_all_places() -> None:
    admission = told()
    hog = [request("hog", prompt=20) for _ in range(9)]
    offered(admission, *hog)
    first_tokens(admission, *admission.poll(0.0).release)
    tells(admission, running=4, free_blocks=92)
    first_tokens(admission, *admission.poll(0.1).release)
    tells(admission, running=4, waiting=1, free_blocks=92)
    assert admission.poll(0.2).release == ()
    others = [request("other", prompt=20) for _ in range(4)]
    offered(admission, *others)
    # Five of the hog are there: two are less than a half, three are not.
    assert admission.poll(0.3).release == (others[0].id, others[1].id)
    assert admission.poll(0.3).release == ()


def test_whoever_is_passed_over_keeps_the_next_place_that_is_free() -> None:
    admission = told()
    hog = [request("hog", prompt=20) for _ in range(9)]
    offered(admission, *hog)
    first_tokens(admission, *admission.poll(0.0).release)
    tells(admission, running=4, free_blocks=92)
    first_tokens(admission, *admission.poll(0.1).release)
    tells(admission, running=4, waiting=1, free_blocks=92)
    large = request("large", prompt=20, choices=3)
    small = request("small", prompt=20)
    offered(admission, large, small)
    assert admission.poll(0.2).release == (small.id,)


def test_prompts_of_one_tenant_that_are_not_read_keep_no_other_waiting() -> None:
    admission = told(replace(LIMITS, blocks=10_000))
    long = [request("long", prompt=30_000) for _ in range(4)]
    offered(admission, *long)
    assert len(admission.poll(0.0).release) == 3
    other = [request("other", prompt=20), request("other", prompt=30_000)]
    offered(admission, *other)
    assert admission.poll(0.0).release == (other[0].id,)


def test_a_prompt_that_was_found_in_the_cache_costs_its_tenant_nothing() -> None:
    admission = told(replace(LIMITS, blocks=10_000))
    one = request(prompt=4000)
    offered(admission, one)
    admission.poll(0.0)
    before = admission.backlog_work
    admission.cached_prefix(one.id, 3000)
    assert before - admission.backlog_work == pytest.approx(3000 * LIMITS.cost.prefill_token)
    admission.cached_prefix(one.id, 3000)
    assert before - admission.backlog_work == pytest.approx(4000 * LIMITS.cost.prefill_token)
    admission.cached_prefix(one.id + 1000, 5)
    admission.first_token(one.id, 0.1)
    admission.ended(one.id, 0.2, output_tokens=50)
    assert admission.backlog_work == 0.0


@pytest.mark.parametrize("cached", [0, 1900])
def test_whose_prompts_are_cached_has_more_turns(cached: int) -> None:
    admission = told(replace(LIMITS, max_sequences=1, blocks=10_000))
    tenants = {}
    for tenant in ("cached", "plain"):
        for _ in range(60):
            one = request(tenant, prompt=2000)
            tenants[one.id] = tenant
            offered(admission, one)
    here: list[int] = []
    turns = {"cached": 0, "plain": 0}
    for step in range(50):
        now = 0.02 * step
        here += admission.poll(now).release
        number = here.pop(0)
        turns[tenants[number]] += 1
        if tenants[number] == "cached":
            admission.cached_prefix(number, cached)
        admission.first_token(number, now)
        admission.ended(number, now, output_tokens=5)
        tells(admission, now, running=1, free_blocks=9000, ended=1)
    if cached:
        assert turns["cached"] > 1.8 * turns["plain"]
    else:
        assert abs(turns["cached"] - turns["plain"]) <= 2
