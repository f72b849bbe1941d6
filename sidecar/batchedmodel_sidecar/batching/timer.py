"""One precise wake-up in monotonic time.

An event loop's own timers are too coarse for batches of a few milliseconds: uvloop rounds to whole
milliseconds and may fire early, asyncio is up to 2 ms late. A timerfd read through the loop comes
25 to 100 us after its time. Early and late wake-ups stay normal input for whoever asks for them.
"""

import asyncio
import ctypes
import math
import os
import time
from collections.abc import Callable
from typing import Final, Protocol

_CLOCK_MONOTONIC: Final = 1
_ABSOLUTE: Final = 1
_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC
_SOON: Final = 1  # nanosecond: a time of zero would disarm instead of firing


class Timer(Protocol):
    """Calls back once when a time is reached."""

    def arm(self, at: float) -> None:
        """Replace the time of the next call; infinity means none. Monotonic seconds."""
        ...

    def close(self) -> None:
        """Never call again."""
        ...


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


_libc: Final = ctypes.CDLL(None, use_errno=True)


class TimerFd:
    """A `Timer` on the kernel's clock, read through the running loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        callback: Callable[[], None],
        late: Callable[[float], None] | None = None,
    ) -> None:
        """`late` is told of every call by how many seconds it came behind its time."""
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
        value = _Timespec(*divmod(nanoseconds, 1_000_000_000))
        spec = _Itimerspec(interval=_Timespec(0, 0), value=value)
        if _libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None) < 0:
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
