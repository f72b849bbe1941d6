"""When what waits expires, and the timer that tells of it."""

import asyncio
import math
import os
import time
import weakref

from batchedmodel_sidecar.batching.batcher import Expiries, TimerFd


class Call:
    """Whatever has a deadline."""


class TestExpiries:
    def test_due_entries_come_in_order_of_their_time(self) -> None:
        expiries: Expiries[Call] = Expiries()
        a, b, c = Call(), Call(), Call()
        for at, entry in [(3.0, c), (1.0, a), (2.0, b)]:
            expiries.add(at, entry)
        assert expiries.next() == 1.0
        assert expiries.due(2.0) == [a, b]
        assert expiries.next() == 3.0

    def test_nothing_to_look_for_means_never(self) -> None:
        assert Expiries[Call]().next() == math.inf

    def test_discarded_entries_are_passed_over(self) -> None:
        stays = Call()
        expiries: Expiries[Call] = Expiries()
        gone = expiries.add(1.0, Call())
        expiries.add(2.0, stays)
        expiries.discard(gone)
        assert expiries.due(1.5) == []
        assert expiries.next() == 2.0
        assert expiries.due(2.0) == [stays]

    def test_a_discarded_entry_is_kept_by_nobody(self) -> None:
        expiries: Expiries[Call] = Expiries()
        entry = Call()
        seen = weakref.ref(entry)
        expiries.discard(expiries.add(1e9, entry))
        del entry
        assert seen() is None

    def test_memory_is_bounded_by_the_live_entries_even_behind_one_that_stays(self) -> None:
        expiries: Expiries[Call] = Expiries()
        expiries.add(0.5, Call())
        for number in range(1, 10_000):
            expiries.discard(expiries.add(float(number), Call()))
        assert len(expiries._heap) < 200


class TestTimer:
    async def test_it_calls_once_and_not_before_its_time(self) -> None:
        called: asyncio.Queue[float] = asyncio.Queue()
        timer = TimerFd(asyncio.get_running_loop(), lambda: called.put_nowait(time.monotonic()))
        due = time.monotonic() + 0.02
        timer.arm(due)
        assert await asyncio.wait_for(called.get(), 2.0) >= due
        timer.close()
        assert called.empty()

    async def test_a_time_that_has_passed_calls_as_soon_as_possible(self) -> None:
        called = asyncio.Event()
        timer = TimerFd(asyncio.get_running_loop(), called.set)
        timer.arm(0.0)
        await asyncio.wait_for(called.wait(), 2.0)
        timer.close()

    async def test_never_disarms(self) -> None:
        called = asyncio.Event()
        later = asyncio.Event()
        timer = TimerFd(asyncio.get_running_loop(), called.set)
        other = TimerFd(asyncio.get_running_loop(), later.set)
        timer.arm(time.monotonic() + 0.01)
        timer.arm(math.inf)
        other.arm(time.monotonic() + 0.03)
        await asyncio.wait_for(later.wait(), 2.0)
        assert not called.is_set()
        timer.close()
        other.close()

    async def test_it_tells_by_how_much_it_was_late(self) -> None:
        loop, called = asyncio.get_running_loop(), asyncio.Event()
        late: list[float] = []
        timer = TimerFd(loop, called.set, late.append)
        timer.arm(time.monotonic() - 100)
        time.sleep(0.02)  # what holds the loop up  # noqa: ASYNC251
        await called.wait()
        assert 0.02 <= late[0] < 100, "from when it was armed, if its time had passed already"
        timer.close()

    async def test_closing_gives_the_descriptor_back(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        timer = TimerFd(asyncio.get_running_loop(), lambda: None)
        timer.close()
        timer.close()
        assert len(os.listdir("/proc/self/fd")) == before
