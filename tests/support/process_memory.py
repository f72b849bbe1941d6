"""The memory of a running process in bytes, as the kernel tells it."""

import contextlib
import re
from pathlib import Path
from typing import Final

_BLOCK: Final = 512


def resident_bytes(pid: int) -> int:
    """What it holds now."""
    return _told(pid, "VmRSS")


def resident_shared_bytes(pid: int) -> int:
    """What of that lies in files of no file system, or of one in memory."""
    return _told(pid, "RssShmem")


def peak_bytes(pid: int) -> int:
    """The most it ever held."""
    return _told(pid, "VmHWM")


def shared_bytes(pid: int) -> int:
    """What it holds of files that lie in no file system, mapped or not."""
    return sum(size for _, size in shared_files(pid))


def shared_files(pid: int) -> list[tuple[str, int]]:
    """Those files, by their descriptors, each with its size in memory."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            if str(descriptor.readlink()).startswith("/memfd:"):
                found.append((descriptor.name, descriptor.stat().st_blocks * _BLOCK))
    return found


def forget_peak(pid: int) -> None:
    """The most that it ever held is counted from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _told(pid: int, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    # A process that has ended and is not yet waited for has no memory to tell of.
    assert found, f"process {pid} has ended"
    return int(found[1]) * 1024
