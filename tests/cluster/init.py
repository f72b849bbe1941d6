"""The first process of a cluster's namespaces: it makes them fit, then waits to be ended.

Run by `cluster.namespace` as process 1 of a process namespace. When it ends, the kernel ends every
other process in there, pods included, and with the last of them go the mounts and the network.
It ends when its standard input does, which happens even if whoever started it is killed.

Uses the standard library alone and imports nothing of ours, so that it starts at once.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PRIVATE_FOLDERS = ("/run", "/var/lib", "/var/log")
"""Where kubelet, containerd and the network plugins write to whatever they are told."""

_KERNEL_SETTINGS = {
    "kernel/keys/root_maxbytes": "25000000",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
}
"""What kubelet insists on and would set for the whole machine. It is shown files that say so."""


def main(visible: Sequence[str]) -> None:
    """`visible`: folders that must stay reachable even below one that is made private."""
    kept = {folder: os.open(folder, os.O_PATH) for folder in visible}
    for folder in _PRIVATE_FOLDERS:
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder)
    for folder, descriptor in kept.items():
        if not _same(folder, descriptor):
            os.makedirs(folder)
            _run("mount", "--bind", f"/proc/{os.getpid()}/fd/{descriptor}", folder)
        os.close(descriptor)
    for name, value in _KERNEL_SETTINGS.items():
        stand_in = Path("/run/kernel-settings") / name
        stand_in.parent.mkdir(parents=True, exist_ok=True)
        stand_in.write_text(f"{value}\n")
        _run("mount", "--bind", str(stand_in), f"/proc/sys/{name}")
    # Volumes may ask for mounts to propagate, which containerd refuses under a private root. These
    # are still cut off from the machine's: nothing mounted from here on shows outside.
    _run("mount", "--make-rshared", "/")
    _run("ip", "link", "set", "lo", "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")
    Path("/proc/sys/net/ipv6/conf/all/forwarding").write_text("1\n")
    # Orphans become children of process 1; ignored, they are reaped by the kernel.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


def _same(folder: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(folder), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
