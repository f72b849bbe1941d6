"""Whether company is about to arrive."""

import random
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_scheduling.batching.deadline import ArrivalRate, Gaps, UsualTarget
from support.examples import examples

LAUNCH = 0.004  # seconds that a shared batch saves
CLUMP = 8


def gaps_of(arrivals: list[float]) -> Gaps:
    gaps = Gaps()
    for arrival in arrivals:
        gaps.observe(arrival)
    return gaps


def clumps(count: int) -> list[float]:
    """Eight within 0.7 ms, every 50 ms."""
    return [0.05 * clump + 0.0001 * n for clump in range(count) for n in range(CLUMP)]


def wait(gaps: Gaps, now: float, items: int = 1, until: float = 1e9) -> float | None:
    return gaps.worth_waiting(now, items, saved=LAUNCH, load=0.1, until=until)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rate", [5.0, 30.0, 100.0])
def test_under_smooth_light_load_nobody_waits(seed: int, rate: float) -> None:
    """Each arrival decides at once, alone on an idle model."""
    noise = random.Random(seed)
    gaps, now, waited = Gaps(), 0.0, 0
    for _ in range(1000):
        now += noise.expovariate(rate)
        gaps.observe(now)
        waited += wait(gaps, now) is not None
    assert waited == 0


def test_within_a_clump_the_rest_of_it_is_waited_for() -> None:
    """Each member but the last sees the next one come."""
    arrivals = clumps(20)
    gaps = gaps_of(arrivals)
    for number in range(1, CLUMP):
        now = 1.0 + 0.0001 * (number - 1)
        gaps.observe(now)
        until = wait(gaps, now, items=number)
        assert until is not None
        assert now + 0.0001 <= until <= now + 0.004


def test_when_the_clump_is_over_nobody_waits() -> None:
    gaps = gaps_of(clumps(20))
    last = 0.95 + 0.0007
    assert wait(gaps, last + 0.0005, items=CLUMP) is None


def test_the_first_arrivals_teach_before_anybody_waits() -> None:
    """Sixteen gaps are too few to judge by until the sixteenth has been seen."""
    gaps = gaps_of([0.0001 * n for n in range(16)])
    assert wait(gaps, 0.0015) is None
    gaps.observe(0.0016)
    assert wait(gaps, 0.0016) is not None


def test_many_items_are_not_held_for_one() -> None:
    gaps = gaps_of(list(accumulate(random.Random(1).expovariate(400.0) for _ in range(200))))
    assert gaps._last is not None
    found = [wait(gaps, gaps._last, items=items) is not None for items in range(1, 100)]
    assert found == sorted(found, reverse=True)
    assert not found[-1]


def test_what_saves_nothing_is_not_waited_for() -> None:
    gaps = gaps_of(clumps(20))
    now = 0.95 + 0.0007
    assert gaps.worth_waiting(now, 1, saved=0.0, load=1.0, until=1e9) is None


@settings(max_examples=examples(100))
@given(
    st.lists(st.floats(0, 0.01), min_size=20, max_size=60),
    st.floats(0, 0.01),
    st.integers(1, 8),
    st.floats(-0.002, 0.006),
    st.floats(0, 1.5),
)
def test_no_wait_passes_its_bound_or_ends_before_it_begins(
    gaps: list[float], since: float, items: int, left: float, load: float
) -> None:
    arrivals = list(accumulate(gaps))
    now = arrivals[-1] + since
    until = gaps_of(arrivals).worth_waiting(now, items, saved=LAUNCH, load=load, until=now + left)
    assert until is None or now < until <= now + left


def test_what_is_long_past_is_forgotten() -> None:
    gaps = gaps_of([*clumps(20), *(2.0 + n for n in range(300))])
    assert wait(gaps, 301.0) is None


def test_the_rate_of_steady_arrivals_is_found_and_dies_away() -> None:
    rate = ArrivalRate()
    for n in range(1000):
        rate.observe(n / 500)
    assert rate.at(2.0) == pytest.approx(500, rel=0.02)
    assert rate.at(2.0) > rate.at(2.1) > rate.at(3.0)
    assert rate.at(4.0) == pytest.approx(0.0, abs=0.1)


def usual(targets: list[float]) -> float | None:
    target = UsualTarget()
    for seconds in targets:
        target.observe(seconds)
    return target.seconds


def test_the_usual_target_is_that_of_all_where_all_have_the_same() -> None:
    assert usual([]) is None
    assert usual([0.05] * 1000) == pytest.approx(0.05)


def test_few_callers_with_another_target_change_the_usual_one_little() -> None:
    few_patient = [1.0 if n % 50 == 0 else 0.05 for n in range(1000)]
    assert usual(few_patient) == pytest.approx(0.05, rel=0.05)
    few_urgent = [0.05 if n % 50 == 0 else 1.0 for n in range(1000)]
    assert 0.5 < (usual(few_urgent) or 0.0) < 1.0


def test_a_caller_who_allows_no_time_counts_as_one_of_the_shortest_target() -> None:
    assert usual([-1.0]) == pytest.approx(0.001)
