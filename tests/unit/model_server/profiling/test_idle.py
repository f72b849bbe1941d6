"""The rest of a profile is measured while nobody asks for anything."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_contract.inference.profile import Profile
from batchedmodel_model_server.api.handler import Batch
from batchedmodel_model_server.errors import DeviceLost
from batchedmodel_model_server.execution.device_thread import DeviceThread, TrialScheduling
from batchedmodel_model_server.execution.memory import MemoryCap
from batchedmodel_model_server.execution.watchdog import Watchdog
from batchedmodel_model_server.profiling.shapes import LONG_IDLE_SECONDS, SHORT_PASS_SECONDS
from batchedmodel_model_server.profiling.trial import Trial, measure_when_idle
from support.model_server_handlers import Clock, Timed, loaded
from unit.model_server.profiling.test_trial import settings_in

PACE = 2e-5
WITHIN = 60.0


class Idle:
    """Nothing has been in work for so long as a test says."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.wanted: asyncio.Queue[float] = asyncio.Queue()
        """What is waited for in vain."""
        self.come = asyncio.Event()

    def idle_seconds(self) -> float:
        """As the test says."""
        return self.seconds

    async def quiet(self, seconds: float) -> None:
        """Wait for the test to say so."""
        while self.seconds < seconds:
            self.wanted.put_nowait(seconds)
            self.come.clear()
            await self.come.wait()

    def becomes(self, seconds: float) -> None:
        """From now on."""
        self.seconds = seconds
        self.come.set()


class World:
    """A version that is ready, and what it tells of its profile."""

    def __init__(self, handler: Timed, folder: Path, compute: DeviceThread) -> None:
        loop = asyncio.get_running_loop()
        self.handler, self.cap = handler, MemoryCap()
        self.trial = Trial(loaded(handler), settings_in(folder, 8), handler.clock.read)
        self.at_first = self.trial.profile(self.cap)
        self.ready_after = len(handler.seen)
        self.turns = TrialScheduling(loop, compute, Watchdog(loop, lambda _: None))
        self.told: asyncio.Queue[Profile | DeviceLost] = asyncio.Queue()

    def measure(self, idle: Idle) -> "asyncio.Task[None]":
        """Begin with what is left."""
        tell = self.told.put_nowait
        return asyncio.create_task(measure_when_idle(self.trial, self.turns, idle, tell, tell))

    @property
    def since(self) -> list[float]:
        """Seconds of every pass since it was ready, without what a first pass costs more."""
        return [rows * length * PACE for rows, length in self.handler.seen[self.ready_after :]]


MakeWorld = Callable[[Timed], World]


@pytest.fixture
def world(tmp_path: Path, compute: DeviceThread) -> MakeWorld:
    return lambda handler: World(handler, tmp_path, compute)


async def test_only_short_passes_run_until_nobody_has_come_for_long(world: MakeWorld) -> None:
    server, idle = world(Timed(Clock(), PACE)), Idle(SHORT_PASS_SECONDS)
    assert server.at_first.partial
    async with asyncio.timeout(WITHIN):
        measuring = server.measure(idle)
        assert await idle.wanted.get() == LONG_IDLE_SECONDS
        assert server.since
        assert max(server.since) <= SHORT_PASS_SECONDS
        assert server.told.empty()
        idle.becomes(LONG_IDLE_SECONDS)
        whole = await server.told.get()
        await measuring
    assert max(server.since) > SHORT_PASS_SECONDS
    assert isinstance(whole, Profile)
    assert not whole.partial
    assert {(p.rows, p.length) for p in server.at_first.points} < {
        (p.rows, p.length) for p in whole.points
    }


async def test_nothing_is_measured_while_batches_come(world: MakeWorld) -> None:
    server, idle = world(Timed(Clock(), PACE)), Idle(0.0)
    async with asyncio.timeout(WITHIN):
        measuring = server.measure(idle)
        assert await idle.wanted.get() == SHORT_PASS_SECONDS
    assert server.since == []
    measuring.cancel()


async def test_what_was_measured_before_an_end_is_kept(world: MakeWorld) -> None:
    server, idle = world(Timed(Clock(), PACE)), Idle(SHORT_PASS_SECONDS)
    async with asyncio.timeout(WITHIN):
        measuring = server.measure(idle)
        await idle.wanted.get()
        measuring.cancel()
        await asyncio.wait([measuring])
    again = world(Timed(Clock(), PACE))
    assert again.at_first.cached
    assert len(again.at_first.points) > len(server.at_first.points)


class Failing(Timed):
    """Fails for what is larger than the first shapes."""

    error: Exception = MemoryError()

    def forward(self, batch: Batch) -> Any:
        """Fail, or echo."""
        if batch.array("x").size > 4000:
            raise self.error
        return super().forward(batch)


async def test_what_does_not_fit_bounds_batches_and_ends_nothing(world: MakeWorld) -> None:
    server = world(Failing(Clock(), PACE))
    async with asyncio.timeout(WITHIN):
        await server.measure(Idle(LONG_IDLE_SECONDS))
        whole = await server.told.get()
    assert isinstance(whole, Profile)
    assert server.at_first.max_cost is None
    assert whole.max_cost == server.cap.cost
    assert server.cap.cost is not None
    assert server.cap.cost >= 3000


class Broken(Failing):
    error = ValueError("shapes do not match")


async def test_a_shape_that_fails_is_left_out(
    world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    server = world(Broken(Clock(), PACE))
    async with asyncio.timeout(WITHIN):
        await server.measure(Idle(LONG_IDLE_SECONDS))
        whole = await server.told.get()
    assert isinstance(whole, Profile)
    assert max(p.rows * p.length for p in whole.points) <= 4000
    assert whole.max_cost is None
    assert "shapes do not match" in caplog.text


class Losing(Failing):
    error = DeviceLost("the device is gone")


async def test_a_device_that_is_lost_is_told(world: MakeWorld) -> None:
    server = world(Losing(Clock(), PACE))
    async with asyncio.timeout(WITHIN):
        await server.measure(Idle(LONG_IDLE_SECONDS))
        assert isinstance(await server.told.get(), DeviceLost)


async def test_a_bug_leaves_the_profile_as_it_is(
    world: MakeWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = world(Timed(Clock(), PACE))
    assert server.trial.warm_up is not None
    monkeypatch.setattr(server.trial.warm_up, "batch", lambda _: 1 / 0)
    async with asyncio.timeout(WITHIN):
        await server.measure(Idle(LONG_IDLE_SECONDS))
    assert server.told.empty()
    assert "the profile stays as it is" in caplog.text
