"""The memory of a running process in bytes, as the kernel tells it."""

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
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


def held_bytes(pid: int) -> int:
    """What it holds now, and files that lie in no file system, each counted once."""
    # Of a file that is mapped and has no descriptor any more, what is resident is all one sees.
    files = dict(_mapped_files(pid)) | {inode: size for _, inode, size in _memory_files(pid)}
    return resident_bytes(pid) - resident_shared_bytes(pid) + sum(files.values())


def shared_bytes(pid: int) -> int:
    """What it holds by descriptors of files that lie in no file system, mapped or not."""
    return sum({inode: size for _, inode, size in _memory_files(pid)}.values())


def shared_files(pid: int) -> list[tuple[str, int]]:
    """Those files, by their descriptors, each with its size in memory."""
    return [(name, size) for name, _, size in _memory_files(pid)]


def _memory_files(pid: int) -> Iterator[tuple[str, int, int]]:
    """Descriptor, inode and size in memory."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            if str(descriptor.readlink()).startswith("/memfd:"):
                about = descriptor.stat()
                yield descriptor.name, about.st_ino, about.st_blocks * _BLOCK


def _mapped_files(pid: int) -> Counter[int]:
    """Bytes that are resident, by inode."""
    text = Path(f"/proc/{pid}/smaps").read_text()
    mapping = r"^\S+ \S+ \S+ \S+ (\d+) +/memfd:.*\n(?:.*\n)*?Rss: +(\d+) kB$"
    resident: Counter[int] = Counter()
    for inode, kilobytes in re.findall(mapping, text, re.M):
        resident[int(inode)] += int(kilobytes) * 1024
    return resident


def forget_peak(pid: int) -> None:
    """The most that it ever held is counted from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _told(pid: int, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    # A process that has ended and is not yet waited for has no memory to tell of.
    assert found, f"process {pid} has ended"
    return int(found[1]) * 1024
