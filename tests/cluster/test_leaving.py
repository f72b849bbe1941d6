"""Nothing of a cluster stays on the machine, however its owner ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.commands import run
from cluster.kubernetes import Cluster, running_control_plane
from cluster.leftovers import clean_up, leftovers
from cluster.namespace import existing_namespace
from cluster.settings import Settings
from cluster.slots import Slot

# The harness of other tests.
pytestmark = pytest.mark.nightly

_OWNER = """\
import os, signal, time
from cluster import Settings, running_cluster
from cluster.images import pause_image
from cluster.signals import termination_as_interrupt
# A shell starts what it leaves in the background with this signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings = Settings.from_environment(os.environ)
with termination_as_interrupt(), running_cluster(settings) as cluster:
    image = pause_image(settings).tag
    cluster.kubectl("run", "pod", f"--image={image}", "--image-pull-policy=Never")
    cluster.kubectl("wait", "pod/pod", "--for=condition=Ready", "--timeout=60s")
    print(cluster.control_plane.namespace.slot.number, flush=True)
    time.sleep(600)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """What belongs to the machine as a whole, and no cluster may change."""

    mounts: frozenset[str]
    netfilter: frozenset[str]
    kernel_settings: frozenset[str]
    folders: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owner:
    """A process with a cluster that runs a pod."""

    process: subprocess.Popen[str]
    slot: Slot
    namespaces: frozenset[str]


def _machine() -> _Machine:
    folders = ("/var/lib", "/var/log", "/run", "/run/netns", "/opt", "/etc/cni", "/usr/libexec")
    kernel = (
        *("kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory", "vm/panic_on_oom"),
        *("net/ipv4/ip_forward", "net/ipv4/conf/all/route_localnet"),
        "net/netfilter/nf_conntrack_max",
    )
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return _Machine(
        mounts=frozenset(line.split()[4] for line in mounts),
        netfilter=frozenset(_rules("iptables-save")) | frozenset(_rules("ip6tables-save")),
        kernel_settings=frozenset(
            f"{name}={path.read_text()}"
            for name in kernel
            if (path := Path("/proc/sys", name)).exists()
        ),
        folders=frozenset(
            str(path)
            for folder in folders
            if Path(folder).exists()
            for path in Path(folder).iterdir()
        ),
    )


def _rules(command: str) -> list[str]:
    return [line for line in run([command]).splitlines() if not line.startswith(("#", ":"))]


def _namespaces(process: int) -> frozenset[str]:
    """Names of the namespaces that a process, or what it starts, lives in."""
    kinds = ("mnt", "net", "pid_for_children")
    return frozenset(os.readlink(f"/proc/{process}/ns/{kind}") for kind in kinds)


def _processes_in(namespaces: frozenset[str]) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if _namespaces(int(folder.name)) & namespaces:
                found.append((folder / "comm").read_text())
    return found


def _traces(settings: Settings, slot: Slot, namespaces: frozenset[str]) -> list[str]:
    """All that shows, outside of it, that there is or was a cluster."""
    addresses = (
        slot.first.host_address,
        slot.first.node_address,
        slot.first.pods,
        slot.first.services,
    )
    routes = run(["ip", "route", "show", "table", "all"]).splitlines()
    return [
        *leftovers(settings, slot),
        *_processes_in(namespaces),
        *(route for route in routes if any(address in route for address in addresses)),
    ]


@pytest.fixture
def before(cluster: Cluster) -> _Machine:
    """The machine before the test. The session's cluster runs beside that of the test."""
    return _machine()


@pytest.fixture
def owner(before: _Machine, cluster_settings: Settings) -> Iterator[_Owner]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        if not said:
            pytest.fail(process.communicate()[1])
        slot = Slot(int(said))
        namespace = existing_namespace(cluster_settings, slot)
        assert namespace is not None
        host = _namespaces(os.getpid())
        yield _Owner(process=process, slot=slot, namespaces=_namespaces(namespace.init) - host)
        process.kill()
    clean_up(cluster_settings)


def test_a_running_cluster_changes_nothing_of_the_machine_and_survives_its_cleaning_up(
    owner: _Owner, before: _Machine, cluster_settings: Settings
) -> None:
    assert _machine() == before
    assert {"kubelet\n", "containerd\n", "nsenter\n"} <= set(_processes_in(owner.namespaces))
    traces = _traces(cluster_settings, owner.slot, owner.namespaces)
    clean_up(cluster_settings)
    assert set(traces) <= set(_traces(cluster_settings, owner.slot, owner.namespaces))


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_an_owner_that_is_asked_to_end_leaves_nothing(
    owner: _Owner, before: _Machine, cluster_settings: Settings, asked: signal.Signals
) -> None:
    owner.process.send_signal(asked)
    owner.process.wait(timeout=30)
    assert _traces(cluster_settings, owner.slot, owner.namespaces) == []
    assert _machine() == before


def test_a_killed_owner_takes_its_processes_along_and_the_rest_can_be_cleaned_up(
    owner: _Owner, before: _Machine, cluster_settings: Settings
) -> None:
    _kill(owner)
    assert any(line.startswith("folder") for line in clean_up(cluster_settings))
    assert _traces(cluster_settings, owner.slot, owner.namespaces) == []
    assert _machine() == before


def test_the_next_start_cleans_up_after_a_killed_owner(
    owner: _Owner, before: _Machine, cluster_settings: Settings
) -> None:
    _kill(owner)
    with running_control_plane(cluster_settings):
        pass
    assert _traces(cluster_settings, owner.slot, owner.namespaces) == []
    assert _machine() == before


def test_an_error_in_the_block_leaves_nothing(before: _Machine, cluster_settings: Settings) -> None:
    with suppress(ZeroDivisionError), running_control_plane(cluster_settings) as started:
        namespaces = _namespaces(started.namespace.init) - _namespaces(os.getpid())
        raise ZeroDivisionError
    assert _traces(cluster_settings, started.namespace.slot, namespaces) == []
    assert _machine() == before


def _kill(owner: _Owner) -> None:
    owner.process.kill()
    owner.process.wait()
    deadline = time.monotonic() + 10
    while left := _processes_in(owner.namespaces):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
