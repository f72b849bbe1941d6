"""The programs of the cluster, built once from pinned Go modules.

Each module folder under `go/` is built into a folder of the cache that carries the hash of the
module's files: another version is another folder, and an unchanged one is never built again.
"""

import hashlib
import logging
import re
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cluster.commands import locked, run_logged
from cluster.errors import Unavailable
from cluster.settings import Settings

log = logging.getLogger(__name__)

_MODULES = Path(__file__).parent / "go"

_FROM_ASSETS = frozenset({"kube-apiserver", "etcd", "kubectl"})
"""What the folder named by KUBEBUILDER_ASSETS holds by convention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    module: str  # folder under go/
    package: str  # what to build in it
    versioned_by: str | None  # the module whose version it is


def _kubernetes(command: str) -> _Program:
    return _Program(
        module="kubernetes",
        package=f"k8s.io/kubernetes/cmd/{command}",
        versioned_by="k8s.io/kubernetes",
    )


_PROGRAMS = {
    "kube-apiserver": _kubernetes("kube-apiserver"),
    "kube-controller-manager": _kubernetes("kube-controller-manager"),
    "kube-scheduler": _kubernetes("kube-scheduler"),
    "kube-proxy": _kubernetes("kube-proxy"),
    "kubelet": _kubernetes("kubelet"),
    "kubectl": _kubernetes("kubectl"),
    "etcd": _Program(
        module="etcd",
        package="go.etcd.io/etcd/server/v3",
        versioned_by="go.etcd.io/etcd/server/v3",
    ),
    "helm": _Program(
        module="helm", package="helm.sh/helm/v3/cmd/helm", versioned_by="helm.sh/helm/v3"
    ),
    "dns": _Program(module="dns", package=".", versioned_by="github.com/coredns/coredns"),
    "pause": _Program(module="pause", package=".", versioned_by=None),
}

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "helm")
NODE = ("kube-scheduler", "kubelet", "kube-proxy", "dns", "pause")


def binaries(settings: Settings, names: Iterable[str]) -> dict[str, Path]:
    """Paths of the named programs; those that are in no cache yet are built first.

    A build of all of them takes about 8 minutes on 2 cores and logs a line per program.

    Raises:
        Unavailable: something must be built and there is no Go.
        CommandFailed: a build failed; the message holds the end of its log.
    """
    return {name: _binary(settings, name) for name in names}


def _binary(settings: Settings, name: str) -> Path:
    if settings.assets is not None and name in _FROM_ASSETS:
        asset = settings.assets / name
        if asset.exists():
            return asset
    program = _PROGRAMS[name]
    folder = settings.cache / f"bin-{program.module}-{_content_hash(program)}"
    path = folder / name
    if not path.exists():
        with locked(settings.cache / "locks" / f"build-{name}"):
            if not path.exists():
                _build(settings, name, program, path)
    return path


def _content_hash(program: _Program) -> str:
    digest = hashlib.sha256(_linker_flags(program).encode())
    for file in sorted((_MODULES / program.module).iterdir()):
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _build(settings: Settings, name: str, program: _Program, path: Path) -> None:
    if shutil.which("go") is None:
        raise Unavailable(f"{name} must be built: needs go 1.25 or later on the PATH")
    log.info("building %s %s from source, once", name, _version(program))
    started = time.monotonic()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as building:
        run_logged(
            [
                *("nice", "-n", "10", "go", "build", "-mod=readonly", "-trimpath"),
                *("-ldflags", _linker_flags(program), "-o", f"{building}/{name}", program.package),
            ],
            folder=_MODULES / program.module,
            environment={"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"},
            log=settings.cache / "logs" / f"build-{name}.log",
        )
        # A rename is atomic: nobody ever finds half a program.
        Path(building, name).rename(path)
    log.info("built %s in %.0f s", name, time.monotonic() - started)


def _linker_flags(program: _Program) -> str:
    """Leaves debugging data out, and tells programs their own version, which they report."""
    pinned = _version(program)
    values = {}
    if program.module == "kubernetes":
        values["k8s.io/component-base/version.gitVersion"] = pinned
    if program.module == "helm":
        values["helm.sh/helm/v3/internal/version.version"] = pinned
        # What charts are rendered and checked for where there is no cluster to ask.
        major, minor, _ = _version(_PROGRAMS["kube-apiserver"]).removeprefix("v").split(".")
        for package in ("chartutil", "lint/rules"):
            values[f"helm.sh/helm/v3/pkg/{package}.k8sVersionMajor"] = major
            values[f"helm.sh/helm/v3/pkg/{package}.k8sVersionMinor"] = minor
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in values.items())])


def _version(program: _Program) -> str:
    """The version that our go.mod pins, such as `v1.34.4`; empty for a program of our own."""
    if program.versioned_by is None:
        return ""
    found = re.search(
        rf"^\s*(?:require )?{re.escape(program.versioned_by)} (v\S+)",
        (_MODULES / program.module / "go.mod").read_text(),
        flags=re.MULTILINE,
    )
    if found is None:
        raise LookupError(f"go/{program.module}/go.mod does not require {program.versioned_by}")
    return found.group(1)
