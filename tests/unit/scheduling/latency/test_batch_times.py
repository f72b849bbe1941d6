"""Predicting how long a batch takes."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile, profile_from_mapping
from batchedmodel_scheduling.latency.batch_times import BatchTimes
from support.examples import examples
from support.scheduling import measured

FIXED, PER_ROW, PER_TOKEN = 0.005, 0.0001, 0.000002
GRID = [(rows, length) for rows in (1, 4, 16, 32) for length in (8, 64, 256)]


def tokens(rule: CostRule, lengths: list[int]) -> int:
    if rule is CostRule.ROWS:
        return 0
    return sum(lengths) if rule is CostRule.PACKED else len(lengths) * max(lengths)


def truth(rule: CostRule, lengths: list[int]) -> float:
    return FIXED + PER_ROW * len(lengths) + PER_TOKEN * tokens(rule, lengths)


def profile(rule: CostRule, points: list[tuple[int, int, float]] | None = None) -> Profile:
    return measured(points or [(r, n, truth(rule, [n] * r)) for r, n in GRID], rule)


@pytest.mark.parametrize("rule", CostRule)
@pytest.mark.parametrize("lengths", [[8], [100, 3], [64] * 20, [1, 300, 2]], ids=len)
def test_an_affine_profile_is_fitted_exactly(rule: CostRule, lengths: list[int]) -> None:
    assert BatchTimes(profile(rule)).predict(lengths) == pytest.approx(truth(rule, lengths))


def test_without_a_profile_nothing_is_predicted() -> None:
    times = BatchTimes(None)
    times.observe([8], 0.1)
    assert times.predict([8]) is None


def test_a_profile_without_points_predicts_nothing() -> None:
    empty = Profile(cost_rule=CostRule.ROWS, device="cpu", points=())
    assert BatchTimes(empty).predict([8]) is None


def test_one_point_predicts_itself() -> None:
    times = BatchTimes(profile(CostRule.ROWS, [(4, 1, 0.02)]))
    assert times.predict([1] * 4) == pytest.approx(0.02)


@pytest.mark.parametrize("factor", [1.4, 0.6])
def test_a_drift_of_40_percent_is_followed_within_30_batches(factor: float) -> None:
    times = BatchTimes(profile(CostRule.PADDED))
    for _ in range(15):
        times.observe([64] * 8, truth(CostRule.PADDED, [64] * 8))
    for _ in range(30):
        times.observe([64] * 8, factor * truth(CostRule.PADDED, [64] * 8))
    # Learnt on one shape, true of all.
    assert times.predict([8]) == pytest.approx(factor * truth(CostRule.PADDED, [8]), rel=0.05)


def test_a_straggler_now_and_then_moves_predictions_by_less_than_3_percent() -> None:
    times = BatchTimes(profile(CostRule.PADDED))
    usual = truth(CostRule.PADDED, [64] * 8)
    for number in range(200):
        times.observe([64] * 8, 5 * usual if number % 50 == 49 else usual)
        assert times.predict([64] * 8) == pytest.approx(usual, rel=0.03)


def test_noise_of_10_percent_costs_less_than_10_percent() -> None:
    times = BatchTimes(profile(CostRule.PADDED))
    noise = random.Random(7)
    for _ in range(100):
        lengths = [noise.randint(8, 256) for _ in range(noise.randint(1, 32))]
        times.observe(lengths, truth(CostRule.PADDED, lengths) * noise.gauss(1.0, 0.1))
    assert times.predict([64] * 8) == pytest.approx(truth(CostRule.PADDED, [64] * 8), rel=0.1)


@pytest.mark.parametrize("seconds", [0.0, -1.0], ids=["zero", "negative"])
def test_a_time_that_cannot_be_teaches_nothing(seconds: float) -> None:
    times = BatchTimes(profile(CostRule.ROWS))
    times.observe([8], seconds)
    assert times.predict([8]) == pytest.approx(truth(CostRule.ROWS, [8]))


@pytest.mark.parametrize(
    "points",
    [
        pytest.param([(1, 1, 0.0), (2, 1, 0.1)], id="no time at all"),
        pytest.param([(1, 1, float("nan")), (2, 1, 0.1)], id="not a number"),
        pytest.param([(1, 1, float("inf")), (2, 1, 0.1)], id="infinite"),
    ],
)
def test_a_wild_profile_predicts_nothing(points: list[tuple[int, int, float]]) -> None:
    assert BatchTimes(profile(CostRule.ROWS, points)).predict([1]) is None


def test_where_a_profile_says_that_more_rows_take_less_time_it_is_noise() -> None:
    times = BatchTimes(profile(CostRule.ROWS, [(1, 1, 0.1), (2, 1, 0.4), (3, 1, 0.2)]))
    assert [times.predict([1] * rows) for rows in (1, 2, 3)] == pytest.approx([0.1, 0.3, 0.3])


def test_a_line_that_passes_below_zero_still_predicts_some_time_there() -> None:
    times = BatchTimes(profile(CostRule.ROWS, [(8, 1, 0.001), (16, 1, 0.010)]))
    assert times.predict([1] * 16) == pytest.approx(0.010)
    assert 0 < (times.predict([1]) or 0.0) <= 0.001


@settings(max_examples=examples(100))
@given(
    st.sampled_from(CostRule),
    st.lists(
        st.tuples(st.integers(1, 64), st.integers(1, 512), st.floats(1e-5, 10.0)),
        min_size=1,
        max_size=8,
    ),
    st.lists(st.integers(1, 512), min_size=1, max_size=64),
)
def test_a_prediction_is_positive_or_none(
    rule: CostRule, points: list[tuple[int, int, float]], lengths: list[int]
) -> None:
    predicted = BatchTimes(profile(rule, points)).predict(lengths)
    assert predicted is None or predicted > 0


@settings(max_examples=examples(50))
@given(
    st.sampled_from(CostRule),
    st.lists(
        st.fixed_dictionaries(
            {
                "rows": st.sampled_from([1, 4096]),
                "length": st.sampled_from([0, 1, 2**31]),
                "seconds": st.sampled_from([0.0, 5e-324, 1e-9, 1.0, 2.0**31]),
            }
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_no_profile_that_can_be_read_leaves_the_range_of_a_float(
    rule: CostRule, points: list[dict[str, float]]
) -> None:
    read = profile_from_mapping({"cost_rule": rule, "device": "host", "points": points})
    predicted = BatchTimes(read).predict([2**20] * 16)
    assert predicted is None or 0 < predicted < math.inf
