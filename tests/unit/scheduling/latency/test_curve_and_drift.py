"""The shape of a device as its profile tells it, and how far it is from that today."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import ProfilePoint
from batchedmodel_scheduling.latency.batch_times import Curve, smoothed
from batchedmodel_scheduling.latency.drift import Drift
from support.examples import examples
from support.scheduling import measured

FIXED, PER_ROW, PER_TOKEN = 0.004, 0.0002, 0.000006
GRID = [(rows, length) for rows in (1, 4, 16) for length in (8, 64, 256)]


def affine(rows: int, tokens: float) -> float:
    return FIXED + PER_ROW * rows + PER_TOKEN * tokens


def plane(rule: CostRule = CostRule.PADDED) -> Curve:
    return Curve(measured([(r, n, affine(r, r * n)) for r, n in GRID], rule))


# The curve


@settings(max_examples=examples(60))
@given(st.lists(st.floats(0.0005, 0.01), min_size=9, max_size=9))
def test_every_measured_point_is_hit_exactly(steps: list[float]) -> None:
    """If more work took more time, as it should."""
    seconds: dict[tuple[int, int], float] = {}
    for (rows, length), step in zip(GRID, steps, strict=True):
        seconds[rows, length] = affine(rows, rows * length) * (1 + step * rows)
    curve = Curve(measured([(r, n, s) for (r, n), s in seconds.items()]))
    for (rows, length), wanted in seconds.items():
        assert curve.rows_table(length, rows)[rows] == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("length", [1, 8, 30, 64, 200, 256, 1000])
def test_an_affine_device_is_known_exactly_in_and_outside_the_grid(length: int) -> None:
    table = plane().rows_table(length, 40)
    wanted = [0.0, *(affine(rows, rows * length) for rows in range(1, 41))]
    assert table == pytest.approx(wanted, rel=1e-6)


def test_between_two_lengths_a_batch_takes_as_long_as_so_many_tokens_of_both() -> None:
    """30 tokens: 3 rows of 10, or one and a half of 20."""
    curve = Curve(measured([(1, 10, 1.0), (4, 10, 4.0), (1, 20, 3.0), (4, 20, 12.0)]))
    assert curve.rows_table(15, 2)[2] == pytest.approx((3.0 + 4.5) / 2, rel=0.05)


def test_behind_the_last_point_the_last_slope_goes_on() -> None:
    """A device that saturates stays saturated."""
    curve = Curve(measured([(1, 8, 0.01), (8, 8, 0.011), (16, 8, 0.019)]))
    assert curve.rows_table(8, 32)[32] == pytest.approx(0.019 + 16 * 0.001)


def test_lengths_may_be_measured_at_different_numbers_of_rows() -> None:
    """Long items fill the memory earlier, so that a grid ends at different rows."""
    points = [(r, 8, affine(r, r * 8)) for r in (1, 4, 64)]
    points += [(r, 512, affine(r, r * 512)) for r in (1, 2, 4)]
    table = Curve(measured(points)).rows_table(260, 32)
    assert table[32] == pytest.approx(affine(32, 32 * 260), rel=1e-6)


def test_a_length_measured_once_follows_the_plane() -> None:
    points = [(r, n, affine(r, r * n)) for r, n in GRID] + [(1, 512, affine(1, 512))]
    assert Curve(measured(points)).rows_table(512, 4)[4] == pytest.approx(affine(4, 4 * 512))


def test_of_several_measurements_of_a_point_the_middle_counts() -> None:
    curve = Curve(measured([(1, 8, 0.010), (1, 8, 0.011), (1, 8, 0.9)]))
    assert curve.rows_table(8, 1)[1] == pytest.approx(0.011)


@settings(max_examples=examples(60))
@given(
    st.sampled_from(CostRule),
    st.lists(
        st.tuples(st.integers(1, 32), st.integers(1, 300), st.floats(1e-4, 1.0)),
        min_size=1,
        max_size=9,
    ),
    st.integers(1, 400),
)
def test_more_rows_never_take_less_time(
    rule: CostRule, points: list[tuple[int, int, float]], length: int
) -> None:
    table = Curve(measured(points, rule)).rows_table(length, 40)
    assert len(table) == 41
    assert table[0] == 0
    assert table[1] > 0
    assert table == sorted(table)


def test_a_packed_device_pays_for_the_sum_of_lengths() -> None:
    curve = plane(CostRule.PACKED)
    wanted = [affine(n, total) for n, total in enumerate((100, 110, 400), 1)]
    assert curve.packed_table([100, 10, 290])[1:] == pytest.approx(wanted, rel=1e-6)
    assert curve.rows_table(50, 3) == pytest.approx(curve.packed_table([50] * 3))


def test_a_packed_device_off_the_plane_is_hit_where_it_was_measured() -> None:
    points = [(n, 64, (1 + 0.02 * n) * affine(n, n * 64)) for n in (1, 2, 8, 32)]
    curve = Curve(measured(points, CostRule.PACKED))
    for rows, length, seconds in points:
        assert curve.packed_table([length] * rows)[-1] == pytest.approx(seconds, rel=1e-6)


def test_a_device_that_pays_for_rows_knows_no_length() -> None:
    curve = Curve(measured([(r, 8, FIXED + r * PER_ROW) for r in (1, 8)], CostRule.ROWS))
    assert curve.rows_table(5000, 8) == curve.rows_table(1, 8)


@pytest.mark.parametrize("points", [[], [(1, 8, 0.0)], [(1, 8, float("inf"))]], ids=str)
def test_a_profile_that_says_nothing_is_no_curve(points: list[tuple[int, int, float]]) -> None:
    with pytest.raises(ValueError, match="no measured times"):
        Curve(measured(points))


def test_scattered_traffic_gives_the_plane_it_came_from() -> None:
    draw = random.Random(3)
    points = []
    for _ in range(64):
        rows, length = draw.randint(1, 16), draw.randint(8, 256)
        seconds = affine(rows, rows * length) * draw.lognormvariate(0, 0.02)
        points.append(ProfilePoint(rows=rows, length=length, seconds=seconds))
    table = Curve(smoothed(CostRule.PADDED, points)).rows_table(64, 8)
    assert table[8] == pytest.approx(affine(8, 8 * 64), rel=0.05)


# Drift


def drifted(ratios: list[float]) -> Drift:
    drift = Drift()
    for ratio in ratios:
        drift.observe(ratio)
    return drift


def noise(spread: float, count: int, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [draw.lognormvariate(0, spread) for _ in range(count)]


@pytest.mark.parametrize("factor", [0.6, 0.8, 1.4, 3.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_sudden_change_is_followed_within_30_batches(factor: float, seed: int) -> None:
    before = noise(0.03, 200, seed)
    after = [factor * ratio for ratio in noise(0.03, 30, seed + 100)]
    assert drifted(before + after).scale == pytest.approx(factor, rel=0.05)


def test_a_slow_change_is_followed() -> None:
    ratios = [(1 + n / 1000) * ratio for n, ratio in enumerate(noise(0.03, 400))]
    assert drifted(ratios).scale == pytest.approx(1.4, rel=0.04)


def test_stragglers_move_the_scale_little() -> None:
    ratios = [ratio * (8 if n % 25 == 0 else 1) for n, ratio in enumerate(noise(0.03, 500))]
    assert drifted(ratios).scale == pytest.approx(1.0, rel=0.05)


def test_a_device_without_noise_needs_no_margin() -> None:
    drift = drifted([1.0] * 40)
    assert drift.margin == 1.0
    assert drift.spread < 0.02
    assert drifted([1.0] * 300).spread == pytest.approx(0.004)


@pytest.mark.parametrize("spread", [0.02, 0.05, 0.1])
def test_nine_of_ten_batches_keep_the_margin(spread: float) -> None:
    drift = drifted(noise(spread, 300))
    kept = [ratio <= drift.scale * drift.margin for ratio in noise(spread, 2000, seed=2)]
    assert 0.83 < sum(kept) / len(kept) < 0.95
    assert drift.spread == pytest.approx(spread, rel=0.4)


def test_no_margin_is_larger_than_three_tenths() -> None:
    assert drifted(noise(1.0, 300)).margin == 1.3


def test_before_enough_is_known_a_little_margin_is_kept() -> None:
    assert 1.0 < drifted([1.0] * 10).margin <= 1.05
