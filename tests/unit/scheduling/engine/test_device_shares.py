"""Steps of texts and batches on one device, in virtual time: both go on, and steps in time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_scheduling.engine.device_shares import (
    DEFAULT_TOKEN_SECONDS,
    MOST_OWED_SECONDS,
    DeviceShares,
)

MILLISECONDS = 1e-3


class Device:
    """One on which both always wait, with rows that all take the same time."""

    def __init__(self, *, step: float, row: float, target: float | None) -> None:
        self._step, self._row, self._target = step, row, target
        self.shares = DeviceShares()
        self.steps = self.batches = 0.0
        """Seconds that each had."""
        self.gaps: list[float] = []
        """Between the ends of two steps."""

    def run(self, steps: int) -> None:
        between = 0.0
        while len(self.gaps) < steps:
            seconds = self.shares.for_batch(self._target, self._row)
            if seconds > 0:
                took = self._row * max(1, math.floor(seconds / self._row + 1e-9))
                self.shares.batch_ran(took, step_waited=True)
                self.batches += took
                between += took
            else:
                self.shares.step_ran(self._step, batch_waits=True)
                self.steps += self._step
                self.gaps.append(between + self._step)
                between = 0.0

    @property
    def share(self) -> float:
        """Of steps."""
        return self.steps / (self.steps + self.batches)


times = st.floats(MILLISECONDS, 1.0)


@given(step=times, target=times, row=st.floats(0.01, 1.0))
def test_each_has_two_to_three_fifths_of_the_device(step: float, target: float, row: float) -> None:
    left = max(target - step, 2 / 3 * step)
    device = Device(step=step, row=row * left, target=target)
    device.run(math.ceil(100 * max(1.0, left / step)))
    assert 0.39 < device.share < 0.61


# Beyond three sevenths two rows that fit one by one may be too much for one time between tokens,
# and batches would have less than their least share with one.
@given(step=st.floats(0.01, 3 / 7), target=st.none() | times, row=st.floats(0.01, 1.0))
def test_tokens_come_in_their_target_where_steps_leave_time_for_batches(
    step: float, target: float | None, row: float
) -> None:
    within = DEFAULT_TOKEN_SECONDS if target is None else target
    device = Device(step=step * within, row=row * (1 - step) * within, target=target)
    device.run(200)
    assert max(device.gaps) <= within * (1 + 1e-6)


def test_a_row_that_takes_longer_runs_whole_and_steps_catch_up() -> None:
    device = Device(step=0.020, row=0.400, target=0.050)
    device.run(2000)
    assert max(device.gaps) == pytest.approx(0.420)
    assert 0.49 < device.share < 0.51


def test_small_batches_run_one_behind_the_other_until_the_time_is_over() -> None:
    device = Device(step=0.020, row=0.005, target=0.050)
    device.run(200)
    assert 0.49 < device.share < 0.51
    assert max(device.gaps) <= 0.050 + 1e-9


def test_who_was_away_has_gained_nothing() -> None:
    shares = DeviceShares()
    for _ in range(1000):
        shares.step_ran(0.020, batch_waits=False)
    assert shares.for_batch(0.050, 0.001) == 0, "batches do not get what they did not ask for"
    shares.step_ran(0.020, batch_waits=True)
    assert shares.for_batch(0.050, 0.001) == pytest.approx(0.030)
    for _ in range(1000):
        shares.batch_ran(0.400, step_waited=False)
    shares.step_ran(0.020, batch_waits=True)
    assert shares.for_batch(0.050, 0.001) == pytest.approx(0.030), "nor do steps"


def test_a_batch_that_comes_again_and_again_pays_for_its_long_rows() -> None:
    """A caller that asks anew when it is answered is away for a moment."""
    shares = DeviceShares()
    shares.step_ran(0.020, batch_waits=True)
    shares.batch_ran(0.400, step_waited=True)
    steps = 0
    while not shares.for_batch(0.050, 0.400):
        shares.step_ran(0.020, batch_waits=steps > 0)
        steps += 1
    assert 19 <= steps <= 20


happened = st.lists(st.tuples(st.booleans(), st.floats(MILLISECONDS, 90.0), st.booleans()))


@given(happened=happened, step=st.floats(MILLISECONDS, 0.2), row=st.floats(MILLISECONDS, 0.2))
def test_neither_waits_long_for_what_was_long_ago(
    happened: list[tuple[bool, float, bool]], step: float, row: float
) -> None:
    """A stopped process, a pass that hung, or minutes of steps that left batches their half."""
    shares = DeviceShares()
    for is_step, seconds, other_waits in happened:
        if is_step:
            shares.step_ran(seconds, batch_waits=other_waits)
        else:
            shares.batch_ran(seconds, step_waited=other_waits)
    waited = 0.0
    while not shares.for_batch(0.050, row):
        shares.step_ran(step, batch_waits=True)
        waited += step
    # Of a step that fills the target a batch gains two thirds only.
    assert waited <= 1.5 * (MOST_OWED_SECONDS + row) + step
    waited = 0.0
    while shares.for_batch(0.050, row):
        shares.batch_ran(row, step_waited=True)
        waited += row
    assert waited <= MOST_OWED_SECONDS + row


def test_batches_catch_up_a_part_of_a_step_that_took_very_long() -> None:
    shares = DeviceShares()
    shares.step_ran(30.0, batch_waits=True)
    assert shares.for_batch(0.050, 0.4) == pytest.approx(MOST_OWED_SECONDS)


def test_steps_catch_up_a_part_of_a_batch_that_took_very_long() -> None:
    shares = DeviceShares()
    shares.batch_ran(90.0, step_waited=True)
    for _ in range(round(MOST_OWED_SECONDS / 0.020)):
        assert not shares.for_batch(0.050, 0.4)
        shares.step_ran(0.020, batch_waits=True)
    shares.step_ran(0.020, batch_waits=True)
    assert shares.for_batch(0.050, 0.4)
