"""Nothing of a cluster stays on the machine, however its owner ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from cluster.commands import run
from cluster.kubernetes import running_control_plane
from cluster.leftovers import clean_up, control_group_hierarchies, leftovers
from cluster.settings import Settings
from cluster.slots import SLOTS, Slot

_PROGRAMS = {
    *("etcd", "kube-apiserver", "kube-controller", "kube-scheduler", "kubelet", "kube-proxy"),
    *("containerd", "containerd-shim", "dns", "pause", "unshare", "nsenter"),
}

_OWNER = """\
import os, time
from cluster import Settings, running_cluster
from cluster.images import pause_image
from cluster.signals import termination_as_interrupt
settings = Settings.from_environment(os.environ)
with termination_as_interrupt(), running_cluster(settings) as cluster:
    image = pause_image(settings).tag
    cluster.kubectl("run", "pod", f"--image={image}", "--image-pull-policy=Never")
    cluster.kubectl("wait", "pod/pod", "--for=condition=Ready", "--timeout=60s")
    print("up", flush=True)
    time.sleep(600)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """What a cluster could leave behind or change, as seen from outside of it."""

    processes: frozenset[str]
    mounts: frozenset[str]
    interfaces: frozenset[str]
    routes: frozenset[str]
    control_groups: frozenset[str]
    netfilter: frozenset[str]
    kernel_settings: frozenset[str]
    folders: frozenset[str]

    def added_since(self, before: "_Machine") -> dict[str, frozenset[str]]:
        added = {
            field.name: getattr(self, field.name) - getattr(before, field.name)
            for field in fields(self)
        }
        return {name: what for name, what in added.items() if what}


def _machine(settings: Settings) -> _Machine:
    folders = ("/var/lib", "/var/log", "/run", "/run/netns", "/opt", "/etc/cni", "/usr/libexec")
    kernel = (
        *("kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory", "vm/panic_on_oom"),
        *("net/ipv4/ip_forward", "net/ipv4/conf/all/route_localnet"),
        "net/netfilter/nf_conntrack_max",
    )
    return _Machine(
        processes=frozenset(_processes()),
        mounts=frozenset(
            line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()
        ),
        interfaces=frozenset(os.listdir("/sys/class/net")),
        routes=frozenset(run(["ip", "route", "show", "table", "all"]).splitlines()),
        control_groups=frozenset(
            str(path) for each in control_group_hierarchies() for path in each.iterdir()
        ),
        netfilter=frozenset(_rules("iptables-save")) | frozenset(_rules("ip6tables-save")),
        kernel_settings=frozenset(
            f"{name}={path.read_text()}"
            for name in kernel
            if (path := Path("/proc/sys", name)).exists()
        ),
        folders=frozenset(
            str(path)
            for folder in (*folders, settings.cache / "run")
            if Path(folder).exists()
            for path in Path(folder).iterdir()
        ),
    )


def _processes() -> Iterator[str]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name = (folder / "comm").read_text().strip()
        except OSError:  # it has just ended
            continue
        if name in _PROGRAMS:
            yield f"{folder.name} {name}"


def _rules(command: str) -> list[str]:
    return [line for line in run([command]).splitlines() if not line.startswith(("#", ":"))]


@pytest.fixture
def before(cluster_settings: Settings, cluster: object) -> _Machine:
    """The machine before the test; the session's cluster is part of it and shows what to skip."""
    clean_up(cluster_settings)
    return _machine(cluster_settings)


@pytest.fixture
def owner(before: _Machine) -> Iterator[subprocess.Popen[str]]:
    """A process with a cluster that runs a pod."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as owner:
        assert owner.stdout is not None
        if owner.stdout.readline() != "up\n":
            pytest.fail(owner.communicate()[1])
        yield owner
        owner.kill()


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_an_owner_that_is_asked_to_end_leaves_nothing(
    owner: subprocess.Popen[str],
    before: _Machine,
    cluster_settings: Settings,
    asked: signal.Signals,
) -> None:
    assert _machine(cluster_settings).added_since(before).keys() >= {"processes", "interfaces"}
    owner.send_signal(asked)
    owner.wait(timeout=30)
    assert _machine(cluster_settings).added_since(before) == {}


def test_a_killed_owner_takes_all_processes_along_and_the_rest_can_be_cleaned_up(
    owner: subprocess.Popen[str], before: _Machine, cluster_settings: Settings
) -> None:
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 10
    while "processes" in _machine(cluster_settings).added_since(before):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert any(line.startswith("folder") for line in clean_up(cluster_settings))
    assert _machine(cluster_settings).added_since(before) == {}


def test_the_next_start_cleans_up_by_itself(
    owner: subprocess.Popen[str], before: _Machine, cluster_settings: Settings
) -> None:
    owner.kill()
    owner.wait()
    with running_control_plane(cluster_settings) as successor:
        groups = leftovers(cluster_settings, successor.namespace.slot)
        assert not any(line.startswith("control group") for line in groups)
    assert _machine(cluster_settings).added_since(before) == {}


def test_an_error_in_the_block_leaves_nothing(before: _Machine, cluster_settings: Settings) -> None:
    with pytest.raises(ZeroDivisionError), running_control_plane(cluster_settings):
        raise ZeroDivisionError
    assert _machine(cluster_settings).added_since(before) == {}


def test_cleaning_up_does_not_touch_a_running_cluster(
    owner: subprocess.Popen[str], cluster_settings: Settings
) -> None:
    assert clean_up(cluster_settings) == []
    assert owner.poll() is None
    assert any(leftovers(cluster_settings, Slot(number)) for number in SLOTS)
