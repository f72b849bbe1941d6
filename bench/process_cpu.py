"""CPU time of a running process, as the kernel's scheduler accounts for it."""

from pathlib import Path
from typing import Final

_NANOSECONDS: Final = 1e9


def cpu_seconds(pid: int) -> float:
    """What its threads have used so far, in user and kernel mode; those that ended do not count."""
    threads = Path("/proc", str(pid), "task").iterdir()
    # The first field of schedstat: time on the CPU, to the nanosecond where `stat` counts ticks.
    spent = ((thread / "schedstat").read_text().split()[0] for thread in threads)
    return sum(map(int, spent)) / _NANOSECONDS
