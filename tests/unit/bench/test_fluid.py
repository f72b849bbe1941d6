"""The cyclic fluid bound."""

import math

import pytest

from batchedmodel_cli.simulator.workload import Lognormal, stream
from batchedmodel_contract.inference.description import CostRule
from scheduling_bench.affine import Affine
from scheduling_bench.fluid import highest_fluid_rate

EDGES = (32, 64, 96, 128, 192, 256, 384, 512)
LENGTHS = Lognormal(mu=math.log(90), sigma=0.9, lowest=8, highest=512).draw(
    20_000, stream(1, "lengths")
)
PADDED = Affine(fixed=0.004, per_token=6e-6)
PACKED = Affine(fixed=0.004, per_token=6e-6, rule=CostRule.PACKED)


def test_equal_lengths_give_the_rate_of_a_batch_that_takes_half_the_target() -> None:
    curve = Affine(fixed=0.005, per_row=0.001)
    found = highest_fluid_rate(curve, [1], [1], 0.05)
    assert found.rate == pytest.approx(20 / 0.025)
    assert found.seconds == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("curve", "target", "rate"),
    [(PADDED, 0.05, 546), (PADDED, 0.1, 724), (PACKED, 0.05, 1077)],
)
def test_the_published_figures_come_out(curve: Affine, target: float, rate: float) -> None:
    # They were computed for another sample of the same distribution.
    assert highest_fluid_rate(curve, LENGTHS, EDGES, target).rate == pytest.approx(rate, rel=0.03)


def test_a_longer_target_affords_more_groups() -> None:
    groups = [
        len(highest_fluid_rate(PADDED, LENGTHS, EDGES, target).upper_edges)
        for target in (0.02, 0.05, 0.1, 1.0)
    ]
    assert groups == sorted(groups)
    assert groups[0] < groups[-1]


@pytest.mark.parametrize("target", [0.02, 0.05, 0.1])
def test_every_group_is_on_time_and_the_cycle_is_as_long_as_its_batches(target: float) -> None:
    found = highest_fluid_rate(PADDED, LENGTHS, EDGES, target)
    taken, lower = 0.0, 0
    for upper in found.upper_edges:
        share = sum(lower < length <= upper for length in LENGTHS) / len(LENGTHS)
        batch = 0.004 + found.rate * found.seconds * share * upper * 6e-6
        assert found.seconds + batch <= target * (1 + 1e-9)
        taken, lower = taken + batch, upper
    assert taken == pytest.approx(found.seconds)


def test_a_cap_on_rows_lowers_the_rate() -> None:
    found = highest_fluid_rate(Affine(fixed=0.005, per_row=0.001), [1], [1], 0.05, max_rows=10)
    assert found.rate == pytest.approx(10 / 0.015)


def test_nothing_is_possible_below_two_launches() -> None:
    assert highest_fluid_rate(PADDED, LENGTHS, EDGES, 0.008).rate == 0
    assert highest_fluid_rate(PACKED, LENGTHS, EDGES, 0.008).rate == 0


def test_so_many_buckets_would_take_too_long() -> None:
    with pytest.raises(ValueError, match="at most 16 buckets, not 17"):
        highest_fluid_rate(PADDED, [1], range(1, 18), 0.05)
