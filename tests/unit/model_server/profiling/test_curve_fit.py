"""The curve through a warm-up's points."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import FittedCurve, ProfilePoint
from batchedmodel_model_server.profiling.warmup import fitted
from support.examples import examples

ROWS = (1, 3, 10, 32)
LENGTHS = (16, 51, 161, 512)


def points_of(
    fixed: float = 0.0,
    per_row: float = 0.0,
    per_token: float = 0.0,
    per_square: float = 0.0,
    lengths: tuple[int, ...] = LENGTHS,
) -> list[ProfilePoint]:
    return [
        ProfilePoint(
            rows=rows,
            length=length,
            seconds=fixed
            + per_row * rows
            + per_token * rows * length
            + per_square * rows * length**2,
        )
        for rows in ROWS
        for length in lengths
    ]


def fit(points: list[ProfilePoint], rule: CostRule = CostRule.PADDED) -> FittedCurve:
    curve = fitted(rule, points)
    assert curve is not None
    return curve


@pytest.mark.parametrize(
    "terms",
    [
        (5e-3, 0.0, 0.0, 0.0),
        (5e-3, 0.0, 2e-5, 0.0),
        (0.0, 0.0, 2e-5, 0.0),
        (5e-3, 1e-4, 2e-5, 3e-8),
        (1e-3, 0.0, 0.0, 3e-8),
    ],
)
def test_the_terms_of_a_device_are_found_again(terms: tuple[float, float, float, float]) -> None:
    curve = fit(points_of(*terms))
    found = (curve.fixed, curve.per_row, curve.per_token, curve.per_square)
    assert found == pytest.approx(terms, rel=1e-6, abs=1e-15)
    assert curve.mean_error == pytest.approx(0, abs=1e-9)
    assert curve.p95_error == pytest.approx(0, abs=1e-9)


def test_where_there_is_one_length_no_term_of_the_length_is_made_up() -> None:
    curve = fit(points_of(fixed=5e-3, per_row=1e-3, lengths=(128,)))
    assert curve.per_row == pytest.approx(1e-3)
    assert (curve.per_token, curve.per_square) == (0, 0)


def test_a_device_that_pays_for_rows_has_no_term_of_the_length() -> None:
    curve = fit(points_of(fixed=5e-3, per_row=1e-4, lengths=(0,)), CostRule.ROWS)
    assert (curve.fixed, curve.per_row) == pytest.approx((5e-3, 1e-4))
    assert (curve.per_token, curve.per_square) == (0, 0)
    assert curve.knee == 50


def test_the_knee_is_where_the_tokens_cost_as_much_as_the_batch_itself() -> None:
    assert fit(points_of(fixed=5e-3, per_token=2e-5)).knee == 250
    assert fit(points_of(per_token=2e-5)).knee == 1


def test_a_device_on_which_nothing_grows_has_no_knee() -> None:
    assert fit(points_of(fixed=5e-3)).knee is None


def test_points_off_the_curve_show_in_its_errors() -> None:
    points = points_of(fixed=5e-3, per_token=2e-5)
    off = points[0]
    points[0] = ProfilePoint(rows=off.rows, length=off.length, seconds=1.5 * off.seconds)
    curve = fit(points)
    assert 0.01 < curve.mean_error < 0.1
    assert curve.mean_error < curve.p95_error < 0.5


def test_a_short_batch_counts_as_much_as_a_long_one() -> None:
    """A tenth more on the longest must not spoil what is said of the shortest."""
    points = points_of(fixed=5e-3, per_token=2e-5)
    last = points[-1]
    points[-1] = ProfilePoint(rows=last.rows, length=last.length, seconds=1.1 * last.seconds)
    curve = fit(points)
    shortest = curve.fixed + curve.per_row + 16 * curve.per_token + 16**2 * curve.per_square
    assert shortest == pytest.approx(points[0].seconds, rel=0.1)


def test_one_point_gives_a_curve_through_it() -> None:
    curve = fit([ProfilePoint(rows=4, length=16, seconds=0.01)])
    assert curve.fixed == pytest.approx(0.01)
    assert curve.knee is None


def test_without_a_time_there_is_no_curve() -> None:
    assert fitted(CostRule.PADDED, []) is None
    assert fitted(CostRule.PADDED, [ProfilePoint(rows=1, length=1, seconds=0.0)]) is None


@settings(max_examples=examples(50))
@given(
    st.lists(
        st.builds(
            ProfilePoint,
            rows=st.integers(1, 4096),
            length=st.integers(0, 2**17),
            seconds=st.floats(1e-9, 1e6),
        ),
        min_size=1,
        max_size=16,
    ),
    st.sampled_from(list(CostRule)),
)
def test_no_term_is_ever_below_zero(points: list[ProfilePoint], rule: CostRule) -> None:
    curve = fit(points, rule)
    assert min(curve.fixed, curve.per_row, curve.per_token, curve.per_square) >= 0
    assert curve.knee is None or 1 <= curve.knee <= 2**40
    assert 0 <= curve.mean_error < float("inf")
