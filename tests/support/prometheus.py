"""Prometheus and its promtool, from Debian's package: unpacked into the cache, not installed.

An installed package would start a server on the machine. No right of root is needed.
"""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cluster.commands import locked, run
from cluster.errors import CommandFailed, Unavailable

_PACKAGE: Final = "prometheus"
_PROGRAMS: Final = ("promtool", "prometheus")


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Where they are."""

    promtool: Path
    prometheus: Path


def programs() -> Programs:
    """Those of this machine, else of Debian's package.

    Raises:
        Unavailable: neither can be had; the message says why.
    """
    found = [shutil.which(name) for name in _PROGRAMS]
    if all(found):
        promtool, prometheus = (Path(one) for one in found if one is not None)
        return Programs(promtool=promtool, prometheus=prometheus)
    base = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(base) if base else Path.home() / ".cache") / "batchedmodel"
    folder = cache / "prometheus-debian"
    cache.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            _unpack(folder)
    promtool, prometheus = (folder / name for name in _PROGRAMS)
    return Programs(promtool=promtool, prometheus=prometheus)


def _unpack(folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Unavailable(f"the rules need Debian's package {_PACKAGE}, or promtool on the PATH")
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        work = Path(temporary)
        try:
            run(["apt-get", "download", "-q", _PACKAGE], folder=work, timeout_s=300)
            (package,) = work.glob("*.deb")
            run(["dpkg-deb", "--extract", package, work / "whole"], timeout_s=120)
        except CommandFailed as error:
            raise Unavailable(f"Debian's package {_PACKAGE} cannot be had\n{error}") from error
        (work / "programs").mkdir()
        for name in _PROGRAMS:
            (work / "whole" / "usr" / "bin" / name).rename(work / "programs" / name)
        (work / "programs").rename(folder)
