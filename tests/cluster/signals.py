"""Ending in order when asked to end."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Within the block SIGTERM does what Ctrl-C does, so that clean-up code runs.

    Python's own answer to SIGTERM is to be gone at once. Does nothing outside the main thread,
    where signals cannot be handled.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
