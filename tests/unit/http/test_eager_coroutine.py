"""A coroutine driven without a task: what it waits for, how it ends, how it is given up."""

import asyncio
import gc
import weakref
from collections.abc import Coroutine
from typing import Any, Final

import looptime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_http.eager_coroutine import DirectFuture, EagerCoroutine

pytestmark = pytest.mark.looptime

Ends = list[tuple[str | None, BaseException | None]]


def sent(work: Coroutine[Any, Any, str]) -> tuple[EagerCoroutine[str], Ends]:
    """An errand, and where its end will be found."""
    ends: Ends = []
    errand = EagerCoroutine(
        work, lambda result, error: ends.append((result, error)), asyncio.get_running_loop()
    )
    return errand, ends


async def test_what_waits_for_nothing_has_ended_when_it_was_begun() -> None:
    async def work() -> str:
        return "done"

    _, ends = sent(work())
    assert ends == [("done", None)]


async def test_an_error_at_once_is_told_like_a_later_one() -> None:
    async def work(seconds: float) -> str:
        if seconds:
            await asyncio.sleep(seconds)
        raise ValueError("wrong")

    for seconds in (0.0, 1.0):
        _, ends = sent(work(seconds))
        await asyncio.sleep(seconds)
        await asyncio.sleep(0)
        ((result, error),) = ends
        assert result is None
        assert isinstance(error, ValueError)


async def test_it_waits_for_turns_timers_futures_tasks_locks_and_errors() -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[str] = loop.create_future()
    lock = asyncio.Lock()
    await lock.acquire()

    async def beside() -> str:
        await asyncio.sleep(1.0)
        raise KeyError("beside")

    async def work() -> str:
        await asyncio.sleep(0)
        await asyncio.sleep(1.0)
        first = await future
        async with lock:
            pass
        with pytest.raises(KeyError):
            await asyncio.create_task(beside())
        return first

    _, ends = sent(work())
    loop.call_later(2.0, future.set_result, "first")
    loop.call_later(3.0, lock.release)
    await asyncio.sleep(3.9)
    assert not ends
    await asyncio.sleep(0.2)
    assert ends == [("first", None)]


async def test_what_is_done_already_is_not_waited_for_longer_than_a_turn() -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    future.set_result("done")

    async def work() -> str:
        done, _ = await asyncio.wait([future])
        return done.pop().result()

    _, ends = sent(work())
    for _ in range(3):
        await asyncio.sleep(0)
    assert ends == [("done", None)]


async def test_whoever_is_waited_for_and_cancelled_by_others_ends_it_without_a_result() -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        return await future

    _, ends = sent(work())
    future.cancel()
    await asyncio.sleep(0)
    assert ends == [(None, None)]


async def test_given_up_in_a_bare_turn_it_ends_there() -> None:
    seen: list[str] = []

    async def work() -> str:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return "done"

    errand, ends = sent(work())
    errand.cancel()
    await asyncio.sleep(0)
    assert (seen, ends) == (["cancelled"], [])


@pytest.mark.parametrize("end", ["set_result", "cancel"])
async def test_given_up_when_what_it_waits_for_has_just_ended_it_ends_there(end: str) -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    seen: list[str] = []

    async def work() -> str:
        try:
            await future
        except asyncio.CancelledError:
            seen.append("cancelled")
            await asyncio.sleep(0.5)  # a cancellation that is left over would strike here
            seen.append("took its leave")
            raise
        return "done"

    errand, ends = sent(work())
    getattr(future, end)(*["done"][: end == "set_result"])
    errand.cancel()
    await asyncio.sleep(1.0)
    assert (seen, ends) == (["cancelled", "took its leave"], [])


async def test_work_that_goes_on_after_it_was_given_up_may_end_and_nobody_is_told() -> None:
    seen: list[str] = []

    async def work() -> str:
        try:
            await asyncio.sleep(5.0)
        except asyncio.CancelledError:
            await asyncio.sleep(1.0)
            seen.append("ended")
        return "done"

    errand, ends = sent(work())
    errand.cancel()
    await asyncio.sleep(2.0)
    assert (seen, ends) == (["ended"], [])


async def test_giving_up_what_has_ended_does_nothing() -> None:
    async def work() -> str:
        return "done"

    errand, ends = sent(work())
    errand.cancel()
    await asyncio.sleep(0)
    assert ends == [("done", None)]


steps = st.lists(st.sampled_from(["turn", "timer", "task", "done", "shield"]), max_size=6)


@pytest.mark.slow
@given(steps, st.integers(0, 20))
def test_it_is_given_up_at_any_moment_as_a_task_would_be(names: list[str], turns: int) -> None:
    """What the work saw until then, and whether it was cancelled, is the same for both."""

    async def work(seen: list[str]) -> str:
        loop = asyncio.get_running_loop()
        try:
            for name in names:
                match name:
                    case "turn":
                        await asyncio.sleep(0)
                    case "timer":
                        await asyncio.sleep(0.001)
                    case "task":
                        await loop.create_task(asyncio.sleep(0))
                    case "done":
                        future = loop.create_future()
                        loop.call_soon(future.set_result, None)
                        await future
                    case "shield":
                        await asyncio.shield(asyncio.sleep(0))
                seen.append(name)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        finally:
            seen.append("over")
        return "done"

    async def as_an_errand() -> list[str]:
        seen: list[str] = []
        errand, ends = sent(work(seen))
        for _ in range(turns):
            await asyncio.sleep(0)
        given_up = "over" not in seen
        errand.cancel()
        await asyncio.sleep(0.05)
        assert len(ends) <= (not given_up)
        assert seen.count("over") == 1
        assert seen.count("cancelled") == given_up
        return seen

    async def as_a_task() -> list[str]:
        seen: list[str] = []
        task = asyncio.create_task(work(seen))
        for _ in range(turns + 1):  # a task begins in the next turn
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return seen

    found = in_virtual_time(as_an_errand())
    if "timer" not in names:  # these end by the clock, and not after so many turns
        assert found == in_virtual_time(as_a_task())


def in_virtual_time(story: Coroutine[Any, Any, list[str]]) -> list[str]:
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        return runner.run(story)


@pytest.mark.parametrize("seconds", [0.0, 1.0])
@pytest.mark.parametrize("kind", [SystemExit, BaseException])
async def test_what_is_no_exception_is_told_once_as_well(
    seconds: float, kind: type[BaseException]
) -> None:
    async def work() -> str:
        if seconds:
            await asyncio.sleep(seconds)
        raise kind("panic")

    _, ends = sent(work())
    await asyncio.sleep(2.0)
    ((result, error),) = ends
    assert result is None
    assert type(error) is kind


async def test_what_waits_a_bare_turn_has_a_task_from_then_on() -> None:
    tasks: list[asyncio.Task[object] | None] = []

    async def work() -> str:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        tasks.append(asyncio.current_task())
        async with asyncio.timeout(1.0):
            await asyncio.sleep(0.5)
        return "done"

    running: list[Ends] = []
    asyncio.get_running_loop().call_soon(lambda: running.append(sent(work())[1]))
    await asyncio.sleep(1.0)
    assert running == [[("done", None)]]
    before, behind = tasks
    assert before is None
    assert behind is not None


async def awaiting(future: DirectFuture[str], seen: list[str]) -> str:
    """Notes what becomes of a future."""
    try:
        seen.append(await future)
    except BaseException as error:
        seen.append(type(error).__name__)
        raise
    return "over"


ENDS: Final[list[tuple[str | BaseException, str]]] = [
    ("done", "done"), (ValueError("wrong"), "ValueError"),
    (asyncio.CancelledError(), "CancelledError"),
]  # fmt: skip


@pytest.mark.parametrize(("end", "told"), ENDS)
async def test_what_awaits_a_direct_future_goes_on_within_the_call_that_settles_it(
    end: str | BaseException, told: str
) -> None:
    future, seen = DirectFuture[str](), list[str]()
    _, ends = sent(awaiting(future, seen))
    assert (seen, ends) == ([], [])
    future.settle(end)
    future.settle("again")
    assert seen == [told]
    assert len(ends) == 1


@pytest.mark.parametrize(("end", "told"), ENDS)
async def test_a_task_that_awaits_a_direct_future_goes_on_in_a_turn_of_its_own(
    end: str | BaseException, told: str
) -> None:
    future, seen = DirectFuture[str](), list[str]()
    task = asyncio.create_task(awaiting(future, seen))
    await asyncio.sleep(0)
    future.settle(end)
    assert seen == []
    await asyncio.wait([task])
    assert seen == [told]
    assert task.cancelled() == isinstance(end, asyncio.CancelledError)


@pytest.mark.parametrize(("end", "told"), ENDS)
async def test_a_direct_future_that_is_settled_is_not_waited_for(
    end: str | BaseException, told: str
) -> None:
    future, seen = DirectFuture[str](), list[str]()
    future.settle(end)
    sent(awaiting(future, seen))
    assert seen == [told]


@pytest.mark.parametrize("by", ["coroutine", "task"])
async def test_a_direct_future_is_cancelled_by_who_awaits_it(by: str) -> None:
    future, seen = DirectFuture[str](), list[str]()
    if by == "task":
        task = asyncio.create_task(awaiting(future, seen))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    else:
        errand, ends = sent(awaiting(future, seen))
        errand.cancel()
        assert ends == []
    assert seen == ["CancelledError"]
    assert not future.cancel()
    future.settle("too late")
    assert seen == ["CancelledError"]


class Rows:
    """What a call is about."""


@pytest.mark.parametrize("fails", [False, True])
async def test_nothing_is_kept_of_what_awaited_a_direct_future(fails: bool) -> None:
    """The rows of a call would stay until the collector finds them."""

    async def work(rows: Rows, future: DirectFuture[str]) -> str:
        try:
            await future
        except ValueError:
            return "wrong"
        return "done"

    rows, future = Rows(), DirectFuture[str]()
    kept = weakref.ref(rows)
    gc.disable()
    try:
        _, ends = sent(work(rows, future))
        del rows
        future.settle(ValueError("wrong") if fails else "done")
        assert ends
        del future, _
        assert kept() is None
    finally:
        gc.enable()
