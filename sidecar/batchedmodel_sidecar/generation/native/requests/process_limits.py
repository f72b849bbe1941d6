"""Bounds for work in a process of its own: seconds of its CPU, and its memory."""

import contextlib
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

_SIZE: Final = Path("/proc/self/statm")


@contextmanager
def cpu_limit(seconds: float, error: Callable[[], Exception]) -> Iterator[None]:
    """Raise an error within it once it has used so much of a CPU.

    On a machine whose cores are busy otherwise the work is not ended sooner. Only the main thread
    can do this, one at a time.
    """

    def over(number: int, frame: FrameType | None) -> None:
        raise error()

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def limit_memory(more: int | None) -> None:
    """Let the process have so many bytes more than it has now, or any number.

    What asks for more raises `MemoryError`, or ends the process where a library knows no such
    error. Where the system does not say how large a process is, there is no limit.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = hard
    if more is not None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = int(_SIZE.read_text().split()[0])
            most = pages * resource.getpagesize() + more
    if hard != resource.RLIM_INFINITY:
        most = hard if most == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
