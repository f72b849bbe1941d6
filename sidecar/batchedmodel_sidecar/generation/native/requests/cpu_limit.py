"""A bound for work in the main thread of a process, in seconds of its CPU."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


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
