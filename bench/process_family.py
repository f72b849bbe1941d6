"""A process and those that it has started: their CPU time and their memory together."""

import contextlib
import re
from pathlib import Path
from typing import Final

from process_cpu import cpu_seconds

_SHARE: Final = re.compile(r"^Pss: +(\d+) kB$", re.M)


def family(pid: int) -> list[int]:
    """It and all below it that run now."""
    found = [pid]
    with contextlib.suppress(FileNotFoundError):
        for thread in Path("/proc", str(pid), "task").iterdir():
            for child in (thread / "children").read_text().split():
                found += family(int(child))
    return found


def family_cpu_seconds(pid: int) -> float:
    """What they have used so far; those that ended do not count."""
    return sum(map(cpu_seconds, family(pid)))


def family_bytes(pid: int) -> int:
    """What they hold; memory that several share is counted once among those who share it."""
    total = 0
    for one in family(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            told = _SHARE.search(Path("/proc", str(one), "smaps_rollup").read_text())
            total += int(told[1]) * 1024 if told else 0
    return total
