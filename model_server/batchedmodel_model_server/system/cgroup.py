"""What the container may use, as version 2 of Linux' control groups says it."""

from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")
_UNIFIED: Final = "0::/"  # begins the line of version 2; in a container nothing follows


def limits(name: str, cgroups: Path = CGROUPS, own: Path = OWN) -> tuple[str, ...]:
    """What the files of this name hold in the process's own group and in those around it.

    All of them bind. Empty where there is no such controller.
    """
    lines = text_of(own).splitlines()
    inner = next((line[len(_UNIFIED) :] for line in lines if line.startswith(_UNIFIED)), "")
    folder = cgroups / inner
    within = [each for each in (folder, *folder.parents) if each.is_relative_to(cgroups)]
    return tuple(found for each in within if (found := text_of(each / name)))


def text_of(file: Path) -> str:
    """What a file of the kernel holds; nothing if it cannot be read."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""
