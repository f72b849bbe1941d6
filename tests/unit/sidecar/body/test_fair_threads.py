"""Work in threads: fair turns of tenants, and room that is given back whoever leaves when."""

import asyncio
import contextlib
import gc
import random
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any

import pytest

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.body.fair_threads import FairThreads, WorkFailed

FLOOD, OTHER = Share("flood"), Share("other")


class OneByOne(ThreadPoolExecutor):
    """A thread that is held until the test lets it go on; says in which order works began."""

    def __init__(self) -> None:
        super().__init__(1)
        self.let = Event()

    def submit(self, work: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        def held() -> Any:
            assert self.let.wait(10)
            return work(*args, **more)

        return super().submit(held)


async def test_a_flood_of_long_works_keeps_another_tenant_waiting_for_one() -> None:
    with OneByOne() as thread:
        threads, order = FairThreads(thread, at_once=1, room=1000), list[str]()
        works = [threads.do(FLOOD, 10, lambda: order.append("flood")) for _ in range(20)]
        tasks = [asyncio.create_task(work) for work in works]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(threads.do(OTHER, 10, lambda: order.append("other"))))
        await asyncio.sleep(0)
        thread.let.set()
        await asyncio.gather(*tasks)
    assert order.index("other") <= 2
    assert len(order) == 21
    assert threads.room.in_use == 0


async def test_one_tenant_leaves_room_for_another() -> None:
    with OneByOne() as thread:
        threads = FairThreads(thread, at_once=1, room=80)
        tasks = []
        while threads.refusal(FLOOD, 10) is None:
            tasks.append(asyncio.create_task(threads.do(FLOOD, 10, int)))
            await asyncio.sleep(0)
        assert threads.room.in_use == 70
        assert threads.refusal(OTHER, 10) is None
        tasks.append(asyncio.create_task(threads.do(OTHER, 10, int)))
        await asyncio.sleep(0)
        assert threads.refusal(FLOOD, 10) is Rejection.OVER_SHARE
        thread.let.set()
        assert await asyncio.gather(*tasks) == [0] * 8


async def test_work_that_fails_tells_its_caller_and_holds_up_nobody() -> None:
    with OneByOne() as thread:
        thread.let.set()
        threads = FairThreads(thread, at_once=1, room=10)
        with pytest.raises(ZeroDivisionError):
            await threads.do(FLOOD, 10, lambda: 1 // 0)
        assert await threads.do(FLOOD, 10, lambda: 1) == 1


class Body:
    """Something large that a work holds."""


async def test_nothing_of_a_work_that_failed_is_kept() -> None:
    bodies: weakref.WeakSet[Body] = weakref.WeakSet()

    def fail() -> None:
        body = Body()
        bodies.add(body)
        raise ValueError("wrong")

    with OneByOne() as thread:
        thread.let.set()
        threads = FairThreads(thread, at_once=1, room=10)
        gc.disable()
        try:
            with contextlib.suppress(ValueError):
                await threads.do(FLOOD, 10, fail)
            await asyncio.sleep(0)
            assert not bodies
        finally:
            gc.enable()


@pytest.mark.parametrize("seed", range(20))
async def test_whoever_leaves_in_whatever_phase_all_others_are_served(seed: int) -> None:
    rng = random.Random(seed)
    with ThreadPoolExecutor(2) as executor:
        threads = FairThreads(executor, at_once=2, room=1_000_000)
        tasks = []
        for number in range(60):
            share = rng.choice([FLOOD, OTHER])
            tasks.append(asyncio.create_task(threads.do(share, 5, partial(int, number))))
            if rng.random() < 0.3:
                rng.choice(tasks).cancel()
            for _ in range(rng.choice([0, 0, 1, 2, 5])):
                await asyncio.sleep(0)
        async with asyncio.timeout(10):
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            # Behind those whose callers have left.
            last = [threads.do(FLOOD, 5, int) for _ in range(2)]
            await asyncio.gather(*last)
            await asyncio.sleep(0)
        assert threads.room.in_use == 0
    cancelled = (asyncio.CancelledError,)
    assert all(end == n or isinstance(end, cancelled) for n, end in enumerate(ends))


async def test_work_that_fails_behind_the_back_of_its_caller_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails() -> None:
        raise ValueError("as bodies that are none do")

    with OneByOne() as thread:
        threads = FairThreads(thread, at_once=1, room=10)
        task = asyncio.create_task(threads.do(FLOOD, 1, fails))
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        del task
        thread.let.set()
        await threads.do(FLOOD, 1, int)  # behind it
        gc.collect()
    assert threads.room.in_use == 0
    assert not caplog.records


@pytest.mark.parametrize("kind", [SystemExit, StopIteration, BaseException])
async def test_whatever_a_work_raises_its_caller_hears_of_it_and_its_room_is_free_again(
    kind: type[BaseException],
) -> None:
    def work() -> None:
        raise kind("over")

    with ThreadPoolExecutor(1) as thread:
        threads = FairThreads(thread, at_once=1, room=80)
        async with asyncio.timeout(10):
            with pytest.raises(WorkFailed, match=f"{kind.__name__}: over"):
                await threads.do(FLOOD, 10, work)
            assert threads.room.in_use == 0
            assert await threads.do(FLOOD, 80, lambda: "next") == "next"
