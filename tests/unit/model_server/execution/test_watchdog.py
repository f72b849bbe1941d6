"""A pass that does not end is noticed, and so is that it did after all."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile, ProfilePoint
from batchedmodel_model_server.execution.watchdog import (
    HUNG_LOOK_SECONDS,
    LEAST_SECONDS,
    Watchdog,
    allowed_seconds,
    predicted_seconds,
)

pytestmark = pytest.mark.looptime

PROFILE = Profile(
    cost_rule=CostRule.PADDED,
    device="host",
    points=tuple(
        ProfilePoint(rows=rows, length=length, seconds=rows * length / 100)
        for rows in (1, 8)
        for length in (10, 100)
    ),
)


class Watched:
    """A watchdog, and what it has said and when."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.said: list[tuple[float, str | None]] = []
        self.watchdog = Watchdog(loop, self._tell, loop.time)

    def _tell(self, hung: str | None) -> None:
        self.said.append((round(asyncio.get_running_loop().time(), 3), hung))

    @contextmanager
    def running(self, allowed: float) -> Iterator[None]:
        self.watchdog.pass_begins(allowed)
        try:
            yield
        finally:
            self.watchdog.pass_ends()


async def test_a_pass_is_reported_when_its_time_is_over_and_when_it_ends_after_all() -> None:
    watched = Watched()
    with watched.running(30.0):
        await asyncio.sleep(29.9)
        assert watched.said == []
        await asyncio.sleep(0.2)
        hung = "a forward pass has run for 30 s, and 30 s are the most that it should take"
        assert watched.said == [(30.0, hung)]
        await asyncio.sleep(100.0)
        assert len(watched.said) == 1, "once"
    await asyncio.sleep(HUNG_LOOK_SECONDS)
    assert watched.said[1:] == [(130.5, None)]


async def test_passes_that_end_in_time_are_not_reported_however_many_there_are() -> None:
    watched = Watched()
    for _ in range(20):
        with watched.running(LEAST_SECONDS):
            await asyncio.sleep(0.9 * LEAST_SECONDS)
    await asyncio.sleep(100.0)
    assert watched.said == []


async def test_a_pass_that_began_late_has_its_time_from_then_on() -> None:
    watched = Watched()
    await asyncio.sleep(7.0)  # behind another batch
    with watched.running(10.0):
        await asyncio.sleep(9.9)
        assert watched.said == []
        await asyncio.sleep(0.2)
        assert len(watched.said) == 1


async def test_nothing_is_looked_at_once_it_is_closed() -> None:
    watched = Watched()
    with watched.running(10.0):
        watched.watchdog.close()
        await asyncio.sleep(100.0)
    assert watched.said == []


@pytest.mark.parametrize(
    ("rows", "longest", "seconds"),
    [
        (1, 10, 0.1),
        (2, 10, 0.2),  # twice the smallest
        (7, 100, 7.0),
        (8, 90, 8.0),  # as a larger one
        (16, 100, 16.0),
        (8, 200, 32.0),  # attention
    ],
)
def test_a_pass_takes_no_longer_than_a_larger_one_or_a_smaller_one_so_often(
    rows: int, longest: int, seconds: float
) -> None:
    assert predicted_seconds(PROFILE, rows, longest) == pytest.approx(seconds)


def test_where_nothing_was_measured_only_the_least_time_counts() -> None:
    nothing = Profile(cost_rule=CostRule.ROWS, device="host", points=())
    assert allowed_seconds(nothing, 8, 100) == LEAST_SECONDS


def test_ten_times_the_predicted_time_is_allowed_and_never_less_than_seconds() -> None:
    assert allowed_seconds(PROFILE, 1, 10) == LEAST_SECONDS
    assert allowed_seconds(PROFILE, 8, 100) == pytest.approx(80.0)
