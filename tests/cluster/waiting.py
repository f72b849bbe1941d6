"""How long this process has waited for a cluster: for its start, its answers and its doings."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Waited:
    """A sum of seconds. What waits within a wait counts once, and other threads do not count."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._depth = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts the time that the block takes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        began = time.monotonic()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._seconds += time.monotonic() - began

    def taken(self) -> float:
        """The seconds since it was last asked; those of a wait that goes on come later."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


waited = Waited()
"""Of this process."""
