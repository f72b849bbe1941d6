"""The Debian packages that a node and its images need.

A control plane alone needs `iproute2` and `util-linux`, which every Debian has.
"""

import logging
import os
import shutil
import tempfile
from pathlib import Path

from cluster.commands import locked, run
from cluster.errors import CommandFailed, Unavailable

log = logging.getLogger(__name__)

_COMMANDS = {
    "buildah": "buildah",
    "conntrack": "conntrack",
    "containerd": "containerd",
    "debootstrap": "debootstrap",
    "iptables-save": "iptables",
    "ip": "iproute2",
    "ipset": "ipset",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
"""What must be there, and the package that brings it."""


_LOCK = Path(tempfile.gettempdir(), "batchedmodel-test-packages.lock")


def missing_packages() -> tuple[str, ...]:
    return tuple(package for command, package in _COMMANDS.items() if not shutil.which(command))


def require_root() -> None:
    """Raises `Unavailable` unless this process may make namespaces."""
    if os.geteuid() != 0:
        raise Unavailable("a test cluster needs root: it lives in namespaces of its own")


def require_packages() -> None:
    """Installs what a node needs and this machine lacks.

    Raises:
        Unavailable: not root, or not installable; the message lists the packages.
    """
    if not (missing := missing_packages()):
        return
    if os.geteuid() != 0:
        raise Unavailable(f"a test cluster needs these packages: {' '.join(missing)}")
    with locked(_LOCK):
        _install(missing_packages())


def _install(missing: tuple[str, ...]) -> None:
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise Unavailable(f"a test cluster needs these packages: {' '.join(missing)}")
    log.info("installing %s", " ".join(missing))
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        run(["apt-get", "update", "-q"], environment=quiet, timeout_s=600)
        # On a machine with other users nothing may be removed to make room for a test.
        run(
            ["apt-get", "install", "-q", "-y", "--no-install-recommends", "--no-remove", *missing],
            environment=quiet,
            timeout_s=1200,
        )
    except CommandFailed as error:
        raise Unavailable(
            f"a test cluster needs these packages, and they could not be installed: "
            f"{' '.join(missing)}\n{error}"
        ) from error
    if still_missing := missing_packages():
        raise Unavailable(f"a test cluster needs these packages: {' '.join(still_missing)}")
