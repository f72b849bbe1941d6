"""The memory of a running process in bytes, as the kernel tells it."""

import re
from pathlib import Path


def resident_bytes(pid: int) -> int:
    """What it holds now."""
    return _told(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    """The most it ever held."""
    return _told(pid, "VmHWM")


def forget_peak(pid: int) -> None:
    """The most that it ever held is counted from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _told(pid: int, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    # A process that has ended and is not yet waited for has no memory to tell of.
    assert found, f"process {pid} has ended"
    return int(found[1]) * 1024
