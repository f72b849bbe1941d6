"""What a cluster can leave on the machine, and removing it.

Everything is found by its slot's number alone, so the same code ends a run in order and clears up
after one that was killed. Processes, mounts and netfilter rules need no clearing: they live in
namespaces that end with their first process.
"""

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from cluster.commands import run
from cluster.errors import ClusterError, CommandFailed
from cluster.settings import Settings
from cluster.slots import SLOTS, Slot, claimed_if_free

_PATIENCE_S = 10.0
_WEIGHT_OF_PODS = 4
"""Times that of a session. All pods are one group for the scheduler, as each session is, and beside
those of the tests ten pods would have what one process has."""


def leftovers(settings: Settings, slot: Slot) -> list[str]:
    """What exists of the cluster in `slot`, alive or not, as sentences for people."""
    found = [f"control group {path}" for path in _control_groups(slot)]
    found += [f"process {process}" for process in _processes(slot)]
    if Path("/sys/class/net", slot.interface).exists():
        found.append(f"network interface {slot.interface}")
    if settings.run_folder(slot.number).exists():
        found.append(f"folder {settings.run_folder(slot.number)}")
    return found


def remove_leftovers(settings: Settings, slot: Slot) -> None:
    """Removes what is left of the cluster in `slot`, which the caller has claimed.

    Raises:
        ClusterError: something cannot be removed.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while leftovers(settings, slot):
        for process in _processes(slot):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if Path("/sys/class/net", slot.interface).exists():
            with suppress(CommandFailed):  # the kernel may be removing it just now
                run(["ip", "link", "delete", slot.interface])
        for group in _control_groups(slot):
            _remove_control_group(group)
        shutil.rmtree(settings.run_folder(slot.number), ignore_errors=True)
        if time.monotonic() > deadline and (left := leftovers(settings, slot)):
            raise ClusterError(f"cannot remove what a cluster left behind: {', '.join(left)}")
        time.sleep(0.02)


def clean_up(settings: Settings) -> list[str]:
    """Removes what killed clusters have left; says what it was. Running ones are not touched."""
    removed = []
    for number in SLOTS:
        with claimed_if_free(number) as slot:
            if slot is not None:
                removed += leftovers(settings, slot)
                remove_leftovers(settings, slot)
    return removed


def make_control_groups(slot: Slot) -> None:
    """Makes the parent of the pods' groups in every hierarchy; kubelet wants to find it."""
    for hierarchy in control_group_hierarchies():
        group = hierarchy / slot.cgroup
        group.mkdir(exist_ok=True)
        for inherited in ("cpuset.cpus", "cpuset.mems"):
            # In version 1 a new group has no processors, and its children can have none either.
            if (group / inherited).exists() and not (group / inherited).read_text().strip():
                (group / inherited).write_text((hierarchy / inherited).read_text())
        for weight, usual in (("cpu.shares", 1024), ("cpu.weight", 100)):
            if (group / weight).exists():
                (group / weight).write_text(str(_WEIGHT_OF_PODS * usual))


def control_group_hierarchies() -> list[Path]:
    """Mount points of all control group hierarchies, of version 1 and of version 2."""
    fields = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(field[1]) for field in fields if field[2] in ("cgroup", "cgroup2")]


def _control_groups(slot: Slot) -> list[Path]:
    groups = [hierarchy / slot.cgroup for hierarchy in control_group_hierarchies()]
    return [group for group in groups if group.exists()]


def _processes(slot: Slot) -> list[int]:
    found: set[int] = set()
    for group in _control_groups(slot):
        for file in group.rglob("cgroup.procs"):
            with suppress(OSError):  # the group has gone meanwhile
                found.update(int(line) for line in file.read_text().split())
    return sorted(found)


def _remove_control_group(group: Path) -> None:
    # Only empty groups can be removed, so the deepest go first.
    for folder, _, _ in os.walk(group, topdown=False):
        with suppress(OSError):  # a process in it is still ending: the caller comes again
            Path(folder).rmdir()
