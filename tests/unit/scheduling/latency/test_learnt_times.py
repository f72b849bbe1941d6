"""What running batches teach of sizes that the profile had wrong or had not measured."""

import math
import random
from dataclasses import replace

import pytest

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_scheduling.latency.batch_times import BatchTimes, LearntSizes
from support.scheduling import measured


def stepped(rows: int) -> float:
    """What the device does; 20 and 40 rows are on the plateau of 10."""
    return 0.010 if rows <= 40 else 0.030


def times() -> BatchTimes:
    """Told of 10 and 64 rows only, so that what is between may jump anywhere."""
    points = [(rows, 1, stepped(rows)) for rows in (1, 2, 10, 64, 65)]
    return BatchTimes(measured(points, CostRule.ROWS))


def run(known: BatchTimes, rows: int, count: int = 1, factor: float = 1.0) -> None:
    for _ in range(count):
        known.observe([1] * rows, factor * stepped(rows))


def seconds(known: BatchTimes, rows: int) -> float:
    return known.predict([1] * rows) or 0.0


def test_a_size_that_may_be_behind_a_jump_is_expected_to_be() -> None:
    assert seconds(times(), 40) == pytest.approx(0.030)


def test_a_size_that_has_run_takes_what_it_took() -> None:
    known = times()
    run(known, 40, 12)
    assert seconds(known, 40) == pytest.approx(0.010, rel=0.05)


def test_sizes_between_one_that_has_run_and_a_measured_one_deviate_by_parts() -> None:
    known = times()
    run(known, 40, 12)
    assert seconds(known, 40) < seconds(known, 48) < seconds(known, 56) < seconds(known, 64)


def test_a_smaller_size_takes_no_longer_than_a_larger_that_has_run() -> None:
    known = times()
    run(known, 40, 12)
    assert seconds(known, 20) <= seconds(known, 40)


def test_one_straggler_on_a_size_that_never_ran_is_not_believed() -> None:
    known = times()
    run(known, 10, 30)
    before = seconds(known, 5), seconds(known, 12)
    run(known, 5, 1, factor=50.0)
    assert (seconds(known, 5), seconds(known, 12)) == pytest.approx(before, rel=0.001)
    run(known, 5, 1)
    assert seconds(known, 5) == pytest.approx(0.010, rel=0.02)


def test_one_fast_batch_makes_no_smaller_size_fast() -> None:
    known = times()
    run(known, 10, 30)
    before = seconds(known, 10)
    run(known, 40, 1, factor=0.1)
    assert seconds(known, 10) == pytest.approx(before, rel=0.001)


def test_stragglers_do_not_move_a_size_that_runs_often() -> None:
    known = times()
    for number in range(100):
        run(known, 10, 1, factor=5.0 if number % 20 == 7 else 1.0)
    assert known.predict([1] * 10) == pytest.approx(0.010, rel=0.03)


def test_noise_is_not_taken_for_knowledge() -> None:
    noise = random.Random(3)
    known = times()
    for _ in range(300):
        rows = noise.randint(1, 10)
        run(known, rows, 1, factor=noise.lognormvariate(0, 0.05))
    assert seconds(known, 5) == pytest.approx(0.010, rel=0.04)


def test_a_device_that_becomes_slower_is_slower_at_sizes_that_have_not_run_since() -> None:
    known = times()
    for rows in (5, 10, 40):
        run(known, rows, 20)
    for rows in [10, 40] * 10:
        run(known, rows, 1, factor=1.4)
    for rows in (5, 10, 40):
        assert known.predict([1] * rows) == pytest.approx(0.014, rel=0.06)


def test_sizes_that_have_not_run_share_what_the_measured_ones_are_off_by() -> None:
    """A device that is faster than its profile at one row is no reason to divide three."""
    known = times()
    run(known, 1, 30, factor=0.1)
    assert seconds(known, 10) == pytest.approx(0.001, rel=0.05)
    assert seconds(known, 64) == pytest.approx(0.003, rel=0.05)


def test_they_share_nothing_where_the_measured_sizes_disagree() -> None:
    known = times()
    for _ in range(30):
        run(known, 1, 1, factor=0.5)
        run(known, 2, 1)
    assert seconds(known, 64) == pytest.approx(0.030, rel=0.05)


def test_what_a_size_between_the_measured_ones_taught_is_its_own() -> None:
    known = times()
    run(known, 40, 30)
    assert seconds(known, 64) > 0.020


def test_what_other_lengths_taught_of_a_size_stands_in_until_it_has_run() -> None:
    points = [(rows, length, 0.01) for rows in (1, 8) for length in (16, 128)]
    known = BatchTimes(measured(points))
    for _ in range(10):
        known.observe([100] * 4, 0.02)
    run_apart = BatchTimes(measured(points))
    assert known.predict([50] * 8) == pytest.approx(0.02, rel=0.1)
    assert run_apart.predict([50] * 8) == pytest.approx(0.01)


@pytest.mark.parametrize("rule", CostRule)
@pytest.mark.parametrize("told", ["nothing", "one size"])
def test_without_a_whole_profile_plateaus_are_learnt_from_traffic(
    rule: CostRule, told: str
) -> None:
    one_size = replace(measured([(1, 1, stepped(1))], rule), partial=True)
    known = BatchTimes(one_size if told == "one size" else None)
    draw = random.Random(5)
    for _ in range(300):
        rows = draw.choice((1, 8, 40, 48, 64))
        run(known, rows, factor=draw.lognormvariate(0, 0.05) * (5 if draw.random() < 0.01 else 1))
    for rows in (1, 8, 40, 48, 64):
        assert seconds(known, rows) == pytest.approx(stepped(rows), rel=0.15)


def test_traffic_of_packed_batches_is_learnt_by_the_sum_of_their_lengths() -> None:
    partial = replace(measured([(1, 8, 0.00108)], CostRule.PACKED), partial=True)
    known, draw = BatchTimes(partial), random.Random(5)
    for _ in range(200):
        lengths = [draw.choice((8, 400)) for _ in range(draw.randrange(1, 16))]
        known.observe(lengths, 0.001 + 1e-5 * sum(lengths))
    assert known.predict([8] * 4 + [400] * 4) == pytest.approx(0.001 + 1e-5 * 1632, rel=0.1)


@pytest.mark.parametrize("rule", CostRule)
@pytest.mark.parametrize("wild", [0.0, math.nan, math.inf])
def test_traffic_takes_the_place_of_a_wild_profile(rule: CostRule, wild: float) -> None:
    known = BatchTimes(measured([(1, 1, wild), (2, 0, 0.1)], rule))
    for number in range(130):
        known.observe([0] * (1 + number % 3), 0.01)
    assert known.predict([0]) == pytest.approx(0.01, rel=0.1)


def test_memory_is_bounded_whatever_sizes_come() -> None:
    known = LearntSizes([])
    for paid in range(1, 5000):
        known.observe(paid * paid, 0.5, 0.05)
    assert len(known._times) <= 1024


@pytest.mark.parametrize("rule", CostRule)
def test_what_batches_of_no_length_taught_counts_for_them_and_not_for_the_device(
    rule: CostRule,
) -> None:
    known = BatchTimes(measured([(r, n, 0.01) for r in (1, 4) for n in (1, 8)], rule))
    for _ in range(60):
        known.observe([0] * 3, 0.005)
        known.observe([8] * 4, 0.01)
    assert known.predict([0] * 3) == pytest.approx(0.005, rel=0.1)
    assert known.drift.scale == pytest.approx(1.0, rel=0.1)
