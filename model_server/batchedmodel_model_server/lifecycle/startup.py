"""How long a start took, and what of.

Owned by the service; phases are timed on whichever thread runs them, one after the other. The time
before `main` is taken from the kernel, which knows when the process began.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PROCESS: Final = "process"
"""The interpreter, the server's own modules and its socket: all before the model's turn."""
IMPORTS: Final = "imports"
FETCH: Final = "fetch"
LOAD: Final = "load"
SELF_TESTS: Final = "self-tests"
WARM_UP: Final = "warm-up"

_STAT: Final = Path("/proc/self/stat")
_STARTED: Final = 19  # of the fields behind the name: clock ticks from the boot to the start


class StartUp:
    """Seconds of each phase so far, in the order in which they came."""

    def __init__(
        self, process_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {PROCESS: process_seconds}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what runs within it; a phase that comes again is added up."""
        began = self._clock()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + self._clock() - began

    @property
    def seconds(self) -> tuple[tuple[str, float], ...]:
        """Every phase and what it took."""
        return tuple(self._seconds.items())

    def __str__(self) -> str:
        phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.seconds)
        return f"{sum(self._seconds.values()):.2f} s: {phases}"


def process_age(stat: Path = _STAT) -> float:
    """Seconds since this process was started, to a hundredth; 0 where the kernel does not say."""
    try:
        # The name comes in parentheses and may hold anything, so count from behind it.
        fields = stat.read_text().rpartition(")")[2].split()
        ticks = int(fields[_STARTED])
    except (OSError, ValueError, IndexError):
        return 0.0
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return max(0.0, now - ticks / os.sysconf("SC_CLK_TCK"))
