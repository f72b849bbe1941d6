"""A cluster that stands until it is taken down, for a person and for runs of single tests.

Its owner is a process in the background: whoever stops that one stops the cluster.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.commands import tail
from cluster.errors import ClusterError, StartFailed
from cluster.kubernetes import Cluster, attached_cluster, running_cluster
from cluster.settings import Settings
from cluster.slots import SLOTS, Slot, claimed_if_free

_OWNER = "owner"  # file in the run folder: process id, written once the cluster is ready
_START_S = 1800.0
_STOP_S = 30.0


def standing_cluster(settings: Settings) -> Cluster | None:
    """The cluster that is up, if one is."""
    found = _find(settings)
    return attached_cluster(settings, found) if found is not None else None


def bring_up(settings: Settings) -> Cluster:
    """Starts a cluster in the background, or gives the one that is up.

    Raises:
        StartFailed: it could not be started; with the end of what its owner said.
    """
    if (standing := standing_cluster(settings)) is not None:
        return standing
    log = settings.cache / "logs" / "up.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        owner = subprocess.Popen(
            [sys.executable, "-m", "cluster", "serve"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # it outlives this terminal
        )
    deadline = time.monotonic() + _START_S
    try:
        while (standing := standing_cluster(settings)) is None:
            if owner.poll() is not None or time.monotonic() > deadline:
                raise StartFailed(f"the cluster did not start:\n{tail(log)}")
            time.sleep(0.2)
    except BaseException:  # Ctrl-C too: nothing may start behind the back of whoever gave up
        owner.terminate()
        raise
    return standing


def serve(settings: Settings) -> None:
    """Runs a cluster until this process is interrupted: what `bring_up` starts."""
    with running_cluster(settings) as cluster:
        assert cluster.control_plane is not None
        folder = cluster.control_plane.namespace.folder
        (folder / _OWNER).write_text(str(os.getpid()))
        threading.Event().wait()


def take_down(settings: Settings) -> bool:
    """Stops the standing cluster and waits until nothing is left of it; False if none stood.

    Raises:
        ClusterError: its owner does not end.
    """
    slot = _find(settings)
    if slot is None:
        return False
    os.kill(int(_owner(settings, slot).read_text()), signal.SIGTERM)
    deadline = time.monotonic() + _STOP_S
    while True:
        with claimed_if_free(slot.number) as free:
            if free is not None:
                return True
        if time.monotonic() > deadline:
            raise ClusterError(f"the cluster's owner did not end within {_STOP_S:g} s")
        time.sleep(0.05)


@contextmanager
def standing_or_own(settings: Settings) -> Iterator[Cluster]:
    """The cluster that is up, or one for the time of the block."""
    standing = standing_cluster(settings)
    if standing is not None:
        yield standing
        return
    with running_cluster(settings) as cluster:
        yield cluster


def _find(settings: Settings) -> Slot | None:
    for number in SLOTS:
        with claimed_if_free(number) as free:
            # A free slot may still hold the files of an owner that was killed.
            if free is None and _owner(settings, Slot(number)).exists():
                return Slot(number)
    return None


def _owner(settings: Settings, slot: Slot) -> Path:
    return settings.run_folder(slot.number) / _OWNER
