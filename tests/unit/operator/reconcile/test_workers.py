"""Workers take what is due, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from batchedmodel_kube.errors import Unreachable
from batchedmodel_operator.reconcile.work_queue import (
    Workers,
    WorkQueue,
)


def _queue() -> WorkQueue[str]:
    """A key's group is what stands before its slash."""
    return WorkQueue(lambda: 0.0, group=lambda key: key.partition("/")[0], places=1000)


class _Bench:
    """Workers whose reconciles a test ends."""

    def __init__(
        self, reconcile: Callable[[str], Awaitable[float | None]], at_most: int = 2
    ) -> None:
        self.clock = asyncio.get_running_loop().time
        self.workers: Workers[str] = Workers(_queue(), reconcile, at_most=at_most, clock=self.clock)
        self.running = asyncio.create_task(self.workers.run())

    async def end(self) -> None:
        self.workers.close()
        await self.running


@pytest.mark.looptime
async def test_no_more_reconciles_are_taken_than_allowed() -> None:
    most = running = 0

    async def reconcile(key: str) -> float | None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1
        return None

    bench = _Bench(reconcile)
    for key in "abcde":
        bench.workers.add(key)
    await asyncio.sleep(10)
    assert (most, running) == (2, 0)
    await bench.end()


class _Panic(BaseException):
    pass


@pytest.mark.looptime
@pytest.mark.parametrize("kind", [KeyError, _Panic])
async def test_one_key_that_fails_keeps_nobody_else_waiting(
    caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    reconciles: list[tuple[float, str]] = []

    async def reconcile(key: str) -> float | None:
        reconciles.append((round(bench.clock() - began, 1), key))
        if key == "bad":
            raise Unreachable("not now")
        if key == "bug":
            raise kind(key)
        return None

    bench = _Bench(reconcile)
    began = bench.clock()
    for key in ("bad", "bug", "good"):
        bench.workers.add(key)
    await asyncio.sleep(2)
    assert (0.0, "good") in reconciles
    for again in ("bad", "bug"):
        assert len([key for _, key in reconciles if key == again]) == 3
    assert "bug: failed unexpectedly" in caplog.text
    await bench.end()


@pytest.mark.looptime
async def test_a_reconcile_that_is_cancelled_is_taken_again() -> None:
    reconciles = 0

    async def reconcile(key: str) -> float | None:
        nonlocal reconciles
        reconciles += 1
        if reconciles == 1:
            raise asyncio.CancelledError
        return None

    bench = _Bench(reconcile)
    bench.workers.add("a")
    await asyncio.sleep(1)
    assert reconciles == 2
    await bench.end()


@pytest.mark.looptime
async def test_the_end_waits_for_reconciles_that_have_begun() -> None:
    ended = False

    async def reconcile(key: str) -> float | None:
        nonlocal ended
        await asyncio.sleep(3)
        ended = True
        return 0.0

    bench = _Bench(reconcile)
    bench.workers.add("a")
    await asyncio.sleep(1)
    await bench.end()
    assert ended


@pytest.mark.looptime
async def test_where_the_queue_itself_fails_the_reconciles_that_have_begun_are_ended_too() -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def reconcile(key: str) -> None:
        begun.set()
        await may_end.wait()

    class Broken(WorkQueue[str]):
        def wake_at(self) -> float | None:
            raise RuntimeError("a bug")

    workers: Workers[str] = Workers(
        Broken(lambda: 0.5, group=lambda key: key, places=2),
        reconcile,
        at_most=2,
        clock=lambda: 0.0,
    )
    workers.add("a")
    running = asyncio.create_task(workers.run())
    await begun.wait()
    await asyncio.sleep(1)
    assert not running.done()
    may_end.set()
    with pytest.raises(RuntimeError, match="a bug"):
        await running
    assert workers.reconciles["succeeded"] == 1


@pytest.mark.looptime
async def test_workers_keep_to_the_rate_and_sleep_between() -> None:
    reconciles: list[float] = []

    async def reconcile(key: str) -> float | None:
        reconciles.append(bench.clock())
        return None

    bench = _Bench(reconcile, at_most=16)
    began = bench.clock()
    for number in range(300):
        bench.workers.add(str(number))
    await asyncio.sleep(30)
    assert len(reconciles) == 300
    assert reconciles[-1] - began == pytest.approx(2.0, abs=0.1)
    assert bench.workers.reconciles["succeeded"] == 300
    await bench.end()
