"""Work that is bounded in time: done at once, in time, too late, or given up by its caller."""

import asyncio
import contextlib
import gc
import weakref

import pytest

from batchedmodel_sidecar.http.time_out import within

pytestmark = pytest.mark.looptime


async def answer(after: float, *more: float) -> str:
    for seconds in (after, *more):
        await asyncio.sleep(seconds)
    return "done"


async def at_once() -> str:
    return "done"


async def wrong(after: float) -> str:
    if after:
        await asyncio.sleep(after)
    raise ValueError("wrong")


async def test_what_waits_for_nothing_needs_no_time() -> None:
    assert await within(-1.0, at_once()) == ("done", False)


async def test_what_waits_has_its_time_and_no_more() -> None:
    assert await within(1.0, answer(0.3, 0.0, 0.3)) == ("done", True)
    with pytest.raises(TimeoutError):
        await within(1.0, answer(0.3, 0.3, 0.5))
    assert asyncio.get_running_loop().time() == pytest.approx(1.6)


@pytest.mark.parametrize("after", [0.0, 0.5])
async def test_errors_of_the_work_pass(after: float) -> None:
    with pytest.raises(ValueError, match="wrong"):
        await within(1.0, wrong(after))


async def test_a_caller_that_leaves_ends_the_work() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(10.0)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)  # work may take its leave
            ended.append("cancelled")
            raise

    task = asyncio.create_task(within(100.0, work()))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]


class Body:
    """Something large that the work holds."""


@pytest.mark.parametrize("seconds", [1.0, 100.0])
async def test_nothing_of_work_that_was_cut_short_is_kept(seconds: float) -> None:
    bodies: weakref.WeakSet[Body] = weakref.WeakSet()

    async def work() -> None:
        body = Body()
        bodies.add(body)
        await asyncio.sleep(10.0)

    async def caller() -> None:
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            await within(seconds, work())

    gc.disable()
    try:
        task = asyncio.create_task(caller())
        await asyncio.sleep(2.0)
        assert len(bodies) == (seconds > 2.0)
        task.cancel()
        await asyncio.wait([task])
        assert not bodies
    finally:
        gc.enable()


async def test_nothing_of_work_that_failed_behind_a_wait_is_kept() -> None:
    bodies: weakref.WeakSet[Body] = weakref.WeakSet()
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work(awaited: list[asyncio.Future[None]]) -> None:
        body = Body()
        bodies.add(body)
        await awaited.pop()

    gc.disable()
    try:
        task = asyncio.create_task(within(100.0, work([future])))
        await asyncio.sleep(0.5)
        future.set_exception(ValueError("wrong"))
        del future
        with contextlib.suppress(ValueError):
            await task
        del task
        await asyncio.sleep(0)
        assert not bodies
    finally:
        gc.enable()


async def test_futures_wake_the_work_that_waits_for_them() -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        return await future

    task = asyncio.create_task(within(1.0, work()))
    await asyncio.sleep(0.5)
    future.set_result("done")
    assert await task == ("done", True)
