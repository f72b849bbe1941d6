"""Whose turn the device has: steps of texts, batches in parts, and work that cannot be divided."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from batchedmodel_model_server.execution.device_thread import DeviceThread

STEP = 0.25
TARGET = 1.0


class World:
    """A device whose clock only work moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.happened: list[str] = []
        self.thread = DeviceThread(asyncio.get_running_loop(), clock=lambda: self.now)

    def took(self, what: str, seconds: float) -> None:
        self.happened.append(what)
        self.now += seconds

    def steps(self, count: int) -> Callable[[bool], None]:
        """A step that posts the next one, so many in all."""

        def step(batch_waits: bool) -> None:
            self.took("step, batch waits" if batch_waits else "step", STEP)
            if count > 1:
                self.thread.post(self.steps(count - 1), TARGET)

        return step

    async def ends(self) -> None:
        """Let all that was handed over run."""
        self.thread.finish()
        await asyncio.to_thread(self.thread.join, 5)
        assert "compute" not in {one.name for one in threading.enumerate()}


class Rows:
    """Work of rows that take so long each."""

    def __init__(self, world: World, name: str, rows: int, each: float) -> None:
        self._world, self._name, self._left, self._each = world, name, rows, each

    def smallest_seconds(self) -> float:
        return self._each

    def run(self, seconds: float) -> bool:
        rows = int(max(1, min(self._left, seconds / self._each)))
        self._world.took(f"{self._name} {rows}", rows * self._each)
        self._left -= rows
        return self._left == 0


async def test_without_texts_a_batch_runs_whole() -> None:
    world = World()
    batch = asyncio.create_task(world.thread.divided(Rows(world, "a", 100, 1.0)))
    world.thread.start()
    await batch
    await world.ends()
    assert world.happened == ["a 100"]


async def test_where_texts_come_now_and_then_a_batch_keeps_none_waiting_for_its_end() -> None:
    # One that began while no text ran was one pass, and the first token came after all of it.
    world = World()
    # The target between tokens does not bound it: with a short one rows would run one by one.
    world.thread.post(world.steps(1), 0.001)
    batch = asyncio.create_task(world.thread.divided(Rows(world, "a", 20, 0.02)))
    await asyncio.sleep(0)
    world.thread.start()
    await batch
    await world.ends()
    assert world.happened == ["step, batch waits", "a 9", "a 9", "a 2"]


async def test_beside_texts_a_batch_runs_in_parts_that_keep_the_target() -> None:
    world = World()
    batch = asyncio.create_task(world.thread.divided(Rows(world, "a", 12, 0.125)))
    await asyncio.sleep(0)
    world.thread.post(world.steps(20), TARGET)
    world.thread.start()
    await batch
    parts = [one for one in world.happened if one.startswith("a")]
    # A target of 1.0 less a step of 0.25 leaves six rows; each has a half of the time.
    assert parts == ["a 6", "a 6"]
    assert world.happened[:6] == ["step, batch waits", "a 6", *["step, batch waits"] * 3, "a 6"]
    await world.ends()


async def test_a_batch_is_done_before_the_next_one_begins() -> None:
    """Batches whose parts took turns would all end late."""
    world = World()
    batches = [
        asyncio.create_task(world.thread.divided(Rows(world, name, 8, 0.125))) for name in "ab"
    ]
    await asyncio.sleep(0)
    world.thread.post(world.steps(40), TARGET)
    world.thread.start()
    await asyncio.gather(*batches)
    assert [one for one in world.happened if one[0] in "ab"] == ["a 6", "a 2", "b 6", "b 2"]
    await world.ends()


async def test_what_is_left_of_a_batch_when_its_caller_leaves_is_dropped() -> None:
    world = World()
    batch = asyncio.create_task(world.thread.divided(Rows(world, "a", 12, 0.125)))
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()

    async def leave() -> None:
        batch.cancel()
        await asyncio.wait([batch])

    def first(batch_waits: bool) -> None:
        world.took("step", STEP)
        world.thread.post(second, TARGET)

    def second(batch_waits: bool) -> None:
        world.took("step", STEP)
        asyncio.run_coroutine_threadsafe(leave(), loop).result(5)

    world.thread.post(first, TARGET)
    world.thread.start()
    await asyncio.wait([batch])
    await world.ends()
    assert world.happened == ["step", "a 6", "step"]


async def test_the_exception_of_a_part_ends_its_batch_and_nothing_else() -> None:
    class Breaks(Rows):
        def run(self, seconds: float) -> bool:
            raise SystemExit(3)

    world = World()
    broken = asyncio.create_task(world.thread.divided(Breaks(world, "a", 12, 0.125)))
    await asyncio.sleep(0)
    world.thread.start()
    with pytest.raises(Exception, match="SystemExit"):
        await broken
    assert await world.thread.call(lambda: 7) == 7
    await world.ends()


async def test_a_batch_that_cannot_say_how_long_it_takes_fails_alone() -> None:
    """It ended the thread: every later caller would have waited for ever."""

    class Unsure(Rows):
        def smallest_seconds(self) -> float:
            raise RuntimeError("no such size")

    world = World()
    broken = asyncio.create_task(world.thread.divided(Unsure(world, "a", 12, 0.125)))
    batch = asyncio.create_task(world.thread.divided(Rows(world, "b", 6, 0.125)))
    await asyncio.sleep(0)
    world.thread.post(world.steps(2), TARGET)
    world.thread.start()
    with pytest.raises(RuntimeError, match="no such size"):
        await asyncio.wait_for(broken, 10)
    await batch
    await world.ends()
    assert world.happened == ["step, batch waits", "b 6", "step"]


async def test_steps_run_in_their_order_and_their_errors_are_logged(
    compute: DeviceThread, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[int] = []
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def fails(batch_waits: bool) -> None:
        done.append(1)
        raise SystemExit(3)

    compute.post(fails)
    compute.post(lambda batch_waits: done.append(2))
    compute.post(lambda batch_waits: loop.call_soon_threadsafe(ended.set))
    await ended.wait()
    assert done == [1, 2]
    assert "work that nobody waits for failed" in caplog.text
