"""The benchmark of the simulator's fidelity: that it finds the constants of ways whose constants
are known, and compares the same requests.
"""

from dataclasses import replace

import numpy as np
import pytest

from fidelity_model import (
    DEVICES,
    Constants,
    Measured,
    arrivals,
    constants_of,
    foretold,
    foretold_seconds,
    gap_percent,
)

A, B, _ = DEVICES
NOTHING = Constants(hand_off=0.0, rest=0.0, per_row=0.0)


def test_equal_seeds_give_equal_arrivals_in_whole_microseconds() -> None:
    times = arrivals(A, 0.5, 1, 2.0)

    assert times == arrivals(A, 0.5, 1, 2.0) == sorted(times)
    assert times != arrivals(A, 0.5, 2, 2.0)
    assert len(times) == 730
    assert not any(at % 1000 for at in times)


@pytest.mark.slow
def test_ways_that_cost_nothing_have_no_constants() -> None:
    times = arrivals(A, 0.2, 1, 2.0)
    real = foretold_seconds(A, times, NOTHING)

    found = constants_of(A, times, Measured(outside=list(real), inside=float(real.mean())))

    assert (found.hand_off, found.rest, found.per_row) == pytest.approx((0, 0, 0), abs=1e-9)


@pytest.mark.slow
def test_known_constants_are_found_again() -> None:
    times = arrivals(B, 0.2, 1, 4.0)
    known = Constants(hand_off=0.0005, rest=0.0012, per_row=0.0001)
    to_the_end_of_the_device = foretold_seconds(B, times, replace(NOTHING, hand_off=0.0005)).mean()
    real = foretold_seconds(B, times, known)

    inside = float(to_the_end_of_the_device) + known.hand_off
    found = constants_of(B, times, Measured(outside=list(real), inside=inside))

    assert found.hand_off == pytest.approx(known.hand_off, rel=0.05)
    assert found.rest == pytest.approx(known.rest, rel=0.05)
    assert found.per_row == pytest.approx(known.per_row)


def test_each_member_of_a_batch_is_answered_after_those_before_it() -> None:
    together = [0, 0, 0, 1_000_000_000]
    constants = Constants(hand_off=0.0, rest=0.0, per_row=0.001)

    added = foretold_seconds(B, together, constants) - foretold_seconds(B, together, NOTHING)

    assert added == pytest.approx([0.0, 0.001, 0.002, 0.0])


def test_requests_of_the_warm_up_do_not_count() -> None:
    times = arrivals(B, 0.5, 1, 2.0)
    seconds = foretold_seconds(B, times, NOTHING)
    late = seconds[np.array(times) >= 1_000_000_000]

    counted = foretold(B, times, NOTHING, since=1.0)

    assert counted.p50 == pytest.approx(sorted(late)[(len(late) + 1) // 2 - 1] * 1e3)


def test_everything_is_answered_at_the_loads_that_are_compared() -> None:
    for device in DEVICES:
        assert foretold_seconds(device, arrivals(device, 0.8, 1, 2.0), NOTHING).min() > 0


def test_a_gap_says_by_how_much_reality_is_slower() -> None:
    assert gap_percent(11.0, 10.0) == pytest.approx(10.0)
    assert gap_percent(9.0, 10.0) == pytest.approx(-10.0)


def test_a_device_of_captured_sizes_takes_as_long_as_the_next_of_them() -> None:
    stepped = replace(A, captured=(3, 8))
    seconds = [stepped.seconds([1] * rows) for rows in (1, 3, 4, 8, 9)]
    assert seconds == pytest.approx([0.008, 0.008, 0.013, 0.013, 0.014])
    assert stepped.parameters == {"capturedRows": "3,8"}
    assert A.parameters == {}
