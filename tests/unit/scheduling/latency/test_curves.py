"""Latency curves, to and from profiles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile, ProfilePoint
from batchedmodel_scheduling.latency.batch_times import Curve
from scheduling_bench.affine import Affine, profile_of

rules = st.sampled_from(CostRule)
batches = st.lists(st.integers(1, 600), min_size=1, max_size=100)


def profile(*points: tuple[int, int, float], rule: CostRule = CostRule.PADDED) -> Profile:
    listed = tuple(ProfilePoint(rows=r, length=n, seconds=s) for r, n, s in points)
    return Profile(cost_rule=rule, device="", points=listed)


@pytest.mark.parametrize(
    ("rule", "paid"), [(CostRule.PADDED, 27), (CostRule.PACKED, 15), (CostRule.ROWS, 3)]
)
def test_a_batch_costs_what_its_rule_says(rule: CostRule, paid: int) -> None:
    assert Affine(fixed=0.0, per_token=1.0, rule=rule).seconds([2, 9, 4]) == paid
    assert Affine(fixed=1, per_row=10, per_token=100, rule=rule).seconds([2, 9, 4]) == (
        1 + 3 * 10 + paid * 100
    )


def test_a_profile_sweeps_powers_of_two_up_to_the_most_rows() -> None:
    found = profile_of(
        Affine(fixed=0.004, per_row=0.001), max_rows=48, lengths=(9, 3), cost_rule=CostRule.PADDED
    )
    assert [(point.rows, point.length) for point in found.points] == [
        (rows, length) for rows in (1, 2, 4, 8, 16, 32, 48) for length in (3, 9)
    ]
    assert found.points[-1].seconds == pytest.approx(0.052)


@pytest.mark.slow
@given(rules, batches, st.sampled_from([(1, 64, 512), (30,), (1,)]), st.integers(2, 64))
def test_a_grid_through_an_affine_curve_is_that_curve(
    rule: CostRule, batch: list[int], lengths: tuple[int, ...], max_rows: int
) -> None:
    curve = Affine(fixed=0.004, per_row=2e-4, per_token=6e-6, rule=rule)
    if len(lengths) == 1:
        batch = [lengths[0]] * len(batch)
    grid = Curve(profile_of(curve, max_rows=max_rows, lengths=lengths, cost_rule=rule))
    assert grid.seconds(batch) == pytest.approx(curve.seconds(batch), rel=1e-6)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(1, 64), st.integers(1, 512), st.floats(1e-6, 1)), min_size=1),
    rules,
    st.integers(1, 128),
    st.integers(1, 1024),
)
def test_a_curve_through_any_points_falls_neither_with_rows_nor_below_measured_lengths(
    points: list[tuple[int, int, float]], rule: CostRule, rows: int, length: int
) -> None:
    curve = Curve(profile(*points, rule=rule))
    seconds = curve.seconds([length] * rows)
    assert 0 <= seconds <= curve.seconds([length] * (rows + 1)) + 1e-9
    shorter = [measured for _, measured, _ in points if measured < length]
    assert all(curve.seconds([one] * rows) <= seconds + 1e-9 for one in shorter)


def test_a_jump_that_was_seen_is_not_bridged_by_a_line() -> None:
    curve = Curve(profile((1, 8, 1.0), (2, 8, 1.0), (4, 8, 3.0), (8, 8, 3.0)))
    assert [curve.seconds([8] * rows) for rows in (1, 2, 3, 4, 6)] == [1, 1, 3, 3, 3]


def test_a_batch_of_few_rows_takes_no_longer_than_the_fewest_measured() -> None:
    curve = Curve(profile((2, 8, 1.0), (4, 8, 3.0), (2, 16, 2.0), (4, 16, 6.0)))
    assert 0 < curve.seconds([3]) <= 1.0


def test_a_shape_that_was_not_measured_follows_the_others() -> None:
    exact = Affine(fixed=0.004, per_token=6e-6)
    full = profile_of(exact, max_rows=16, lengths=(8, 64), cost_rule=CostRule.PADDED)
    partial = Profile(cost_rule=full.cost_rule, device="", points=full.points[:-1])
    assert Curve(partial).seconds([64] * 16) == pytest.approx(exact.seconds([64] * 16))


def test_a_curve_needs_a_point() -> None:
    with pytest.raises(ValueError, match="no measured times"):
        Curve(profile())
