"""Trial passes that take turns with batches."""

import asyncio
import threading
from collections.abc import Callable
from typing import cast

from batchedmodel_model_server.execution.device_thread import (
    LONGEST_TRIAL_SECONDS,
    DeviceThread,
    TrialScheduling,
)
from batchedmodel_model_server.execution.watchdog import Watchdog


class WithoutDelay:
    """A loop whose timers are due at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call_later(self, seconds: float, call: Callable[[], None]) -> asyncio.Handle:
        return self._loop.call_soon(call)


async def test_the_clock_stands_still_while_a_turn_is_waited_for(compute: DeviceThread) -> None:
    now, handed_over = 0.0, threading.Event()

    def batch() -> None:
        nonlocal now
        assert handed_over.wait(5)
        now += 100.0

    def trial() -> str:
        nonlocal now
        now += 2.0
        return "done"

    def clock() -> float:
        if reads:
            reads.pop()
        else:
            handed_over.set()
        return now

    reads = ["when it began"]
    loop = asyncio.get_running_loop()
    turns = TrialScheduling(loop, compute, Watchdog(loop, lambda hung: None), clock)

    def load() -> tuple[str, float]:
        began = turns.clock()
        return turns.take(trial), turns.clock() - began

    served = asyncio.create_task(compute.call(batch))
    await asyncio.sleep(0)
    assert await asyncio.to_thread(load) == ("done", 2.0)
    await served


async def test_a_trial_pass_that_hangs_is_told_although_no_batch_waits(
    compute: DeviceThread,
) -> None:
    loop = asyncio.get_running_loop()
    now, told, ends = 0.0, asyncio.Event(), threading.Event()
    begun = asyncio.Event()

    def tell(hung: str | None) -> None:
        heard.append(hung)
        told.set()

    def trial() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert ends.wait(5)

    heard: list[str | None] = []
    watchdog = Watchdog(cast("asyncio.AbstractEventLoop", WithoutDelay(loop)), tell, lambda: now)
    turns = TrialScheduling(loop, compute, watchdog)
    loading = asyncio.create_task(asyncio.to_thread(turns.take, trial))
    await begun.wait()
    now = LONGEST_TRIAL_SECONDS + 1
    # No batch waits behind it: in an idle moment the next caller would be the first to find out.
    await asyncio.wait_for(told.wait(), 180)
    assert heard[0] is not None
    assert "60 s" in heard[0]
    told.clear()
    ends.set()
    await loading
    await asyncio.wait_for(told.wait(), 5)
    assert heard[1:] == [None]
    watchdog.close()
