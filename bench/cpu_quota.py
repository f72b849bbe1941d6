"""Holds processes to a part of a core each, by control groups of the kernel; needs root."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/fs/cgroup")
_PERIOD: Final = 100_000
"""Microseconds, as Kubernetes has it for the limits of containers."""


@contextlib.contextmanager
def held_to(cores: float, pids: Sequence[int]) -> Iterator[bool]:
    """Whether each of the processes is held to so much of a core within the block."""
    with contextlib.ExitStack() as stack:
        try:
            for pid in pids:
                stack.enter_context(_group(cores, pid))
        except OSError:
            stack.close()
            yield False
        else:
            yield True


@contextlib.contextmanager
def _group(cores: float, pid: int) -> Iterator[None]:
    first = (_ROOT / "cpu").is_dir()  # the first version of control groups
    root = _ROOT / "cpu" if first else _ROOT
    before = root / _own_group(pid, "cpu" if first else "").lstrip("/")
    group = root / f"bench-{pid}"
    quota = round(cores * _PERIOD)
    group.mkdir()
    try:
        if first:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {_PERIOD}")
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            (before / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def _own_group(pid: int, controller: str) -> str:
    """Where the process is at present."""
    for line in Path("/proc", str(pid), "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"
