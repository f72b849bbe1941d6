"""What learnt times of batches and of steps have in common."""

import random
from typing import Any

import pytest

from batchedmodel_scheduling.latency.batch_times import BatchTimes
from batchedmodel_scheduling.latency.device_times import DeviceTimes
from batchedmodel_scheduling.latency.step_times import StepCost, StepLoad, StepTimes
from support.scheduling import row_profile

Times = tuple[DeviceTimes[Any], list[Any]]
"""Of one kind of work, and some of it."""


def batches() -> Times:
    rows = range(1, 17)
    return BatchTimes(row_profile(0.004, 0.001, rows)), [[1] * count for count in rows]


def steps() -> Times:
    cost = StepCost(base=0.010, prefill_token=60e-6, sequence=0.2e-3)
    loads = [StepLoad(read, texts, 0) for read in (0, 20, 600) for texts in (1, 8, 32)]
    return StepTimes(cost), loads


both = pytest.mark.parametrize("kind", [batches, steps])


@both
@pytest.mark.parametrize("slower", [0.5, 1.4, 3.0])
def test_a_device_of_another_speed_is_learnt(kind: Any, slower: float) -> None:
    times, work = kind()
    before, chance = [times.predict(one) for one in work], random.Random(1)
    for _ in range(600):
        at = chance.randrange(len(work))
        times.observe(work[at], slower * before[at] * chance.uniform(0.97, 1.03))
    for one, measured in zip(work, before, strict=True):
        assert times.predict(one) == pytest.approx(slower * measured, rel=0.05)


@both
def test_one_straggler_changes_next_to_nothing(kind: Any) -> None:
    times, work = kind()
    before = [times.predict(one) for one in work]
    for _ in range(20):
        for one, measured in zip(work, before, strict=True):
            times.observe(one, measured)
    times.observe(work[3], 100 * before[3])
    for one, measured in zip(work, before, strict=True):
        assert times.predict(one) == pytest.approx(measured, rel=0.02)


@both
@pytest.mark.parametrize("no_time", [0.0, -1.0])
def test_what_is_no_time_teaches_nothing(kind: Any, no_time: float) -> None:
    times, work = kind()
    before = times.predict(work[0])
    for _ in range(50):
        times.observe(work[0], no_time)
    assert times.predict(work[0]) == before
