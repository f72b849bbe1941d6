"""When the batcher decides next, which calls run out of time, and whether it still decides.

All times are monotonic seconds. An event loop's own timers are too coarse for batches of a few
milliseconds: uvloop rounds to whole milliseconds and may fire early, asyncio is up to 2 ms late. A
timerfd read through the loop comes 25 to 100 us after its time. Early and late wake-ups stay normal
input for whoever asks for them.
"""

import asyncio
import ctypes
import heapq
import logging
import math
import os
import time
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

logger: Final = logging.getLogger(__name__)

Entry = TypeVar("Entry")

_CLOCK_MONOTONIC: Final = 1
_ABSOLUTE: Final = 1
_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC
_SOON: Final = 1  # nanosecond: a time of zero would disarm instead of firing
_SWEEP_ABOVE: Final = 64
_PAUSE: Final = 1.0  # seconds until the next decision after one that failed
_MOST_FAILURES: Final = 3
_MOST_LATE: Final = 5.0  # seconds


class Timer(Protocol):
    """Calls back once when a time is reached."""

    def arm(self, at: float) -> None:
        """Replace the time of the next call; infinity means none."""

    def close(self) -> None:
        """Never call again."""


_Itimerspec: Final = ctypes.c_long * 4  # interval and time, each in seconds and nanoseconds
_libc: Final = ctypes.CDLL(None, use_errno=True)


class TimerFd:
    """A `Timer` on the kernel's clock, read through the running loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        callback: Callable[[], None],
        late: Callable[[float], None] | None = None,
    ) -> None:
        """`late` is told how many seconds after its time each call comes."""
        self._loop = loop
        self._callback = callback
        self._late = late
        self._due = 0.0
        self._armed_for = math.inf
        self._fd = _libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        loop.add_reader(self._fd, self._fired)

    def arm(self, at: float) -> None:
        """Replace the time of the next call; a time that has passed calls as soon as possible."""
        if at == self._armed_for:
            return
        self._armed_for = at
        self._due = max(at, time.monotonic())
        nanoseconds = 0 if at == math.inf else max(_SOON, round(at * 1e9))
        spec = _Itimerspec(0, 0, *divmod(nanoseconds, 1_000_000_000))
        if _libc.timerfd_settime(self._fd, _ABSOLUTE, spec, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _fired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # armed anew between the wake-up and this call
        self._armed_for = math.inf
        if self._late is not None:
            self._late(time.monotonic() - self._due)
        self._callback()


class Deadlines(Generic[Entry]):
    """Entries by time, until they are due or discarded.

    What was discarded is not kept until its time, with its body and its answer.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        """Times and numbers, also of entries that were discarded."""
        self._entries: dict[int, Entry] = {}
        self._number = 0

    def add(self, deadline: float, entry: Entry) -> int:
        """Remember an entry; returns the number by which it is discarded."""
        self._number += 1
        self._entries[self._number] = entry
        heapq.heappush(self._heap, (deadline, self._number))
        if len(self._heap) > 2 * len(self._entries) + _SWEEP_ABOVE:
            self._heap = [item for item in self._heap if item[1] in self._entries]
            heapq.heapify(self._heap)
        return self._number

    def discard(self, number: int) -> None:
        """Forget an entry, if it is there."""
        self._entries.pop(number, None)

    def due(self, now: float) -> list[Entry]:
        """Remove and return the entries whose time has come."""
        found: list[Entry] = []
        while self._heap and (self._heap[0][0] <= now or self._heap[0][1] not in self._entries):
            _, number = heapq.heappop(self._heap)
            if number in self._entries:
                found.append(self._entries.pop(number))
        return found

    def next(self) -> float:
        """When to look again; infinity when there is nothing to look for."""
        return self._heap[0][0] if self._heap else math.inf


class DecisionWatchdog:
    """Says for the liveness probe whether the batcher still decides.

    A decision that fails is tried again after a moment. A sidecar whose decisions go on failing, or
    stop, must be restarted: its callers would wait for ever, and its probes would be well. So must
    one whose policy does not know that a batch has ended: to it the server is busy for ever.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._next = math.inf
        self._astray = False

    def decided(self, next_at: float) -> None:
        """A decision was made; the next one is due then."""
        self._failures = 0
        self._next = next_at

    def stumbled(self, now: float) -> float:
        """A decision failed; returns when to try again."""
        self._failures += 1
        self._next = now + _PAUSE
        return self._next

    def lost_track(self) -> None:
        """The policy goes on following a batch that has ended."""
        self._astray = True

    def ailment(self, now: float) -> str | None:
        """What is wrong; None while nothing is."""
        if self._failures >= _MOST_FAILURES:
            return f"the last {self._failures} decisions failed"
        if self._astray:
            return "the policy does not know that a batch has ended"
        late = now - self._next
        return f"a decision is {late:.0f} s late" if late > _MOST_LATE else None


class Decisions:
    """When decisions are made: once for all that comes in a turn of the loop, and when one is due.

    After a decision that fails others follow.
    """

    def __init__(
        self,
        decide: Callable[[float], float],
        clock: Callable[[], float],
        timer: Callable[[Callable[[], None]], Timer],
    ) -> None:
        """`decide` is told the time, and returns when the next decision is due."""
        self._decide = decide
        self._clock = clock
        self._timer = timer(self.make)
        self._asked = self._closed = False
        self.watchdog: Final = DecisionWatchdog()

    def ask(self) -> None:
        """One is made in the next turn of the loop."""
        if not self._asked:
            self._asked = True
            asyncio.get_running_loop().call_soon(self.make)

    def make(self) -> None:
        """Decide now what is to be decided."""
        self._asked = False
        if self._closed:
            return
        now = self._clock()
        try:
            wakes_at = self._decide(now)
            self.watchdog.decided(wakes_at)
        except Exception:
            logger.exception("a decision failed")
            wakes_at = self.watchdog.stumbled(now)
        self._timer.arm(wakes_at)

    def close(self) -> None:
        """Make no more."""
        self._closed = True
        self._timer.close()
