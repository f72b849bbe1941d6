"""Python environments of foreign clients and servers, each made once and kept in the user's cache.

Tests run programs in them that must not share the project's own libraries. An environment holds
what `tests/foreign/NAME.txt` pins, completely: dependencies are listed there as well.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

REQUIREMENTS: Final = Path(__file__).parents[1] / "foreign"
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_COMPLETE: Final = ".complete"


class CannotMake(Exception):
    """The environment could not be made; the message is what pip said."""


def environment(name: str, *, built_with: Mapping[str, str] = NOTHING, whole: bool = True) -> Path:
    """The Python of the environment that `tests/foreign/NAME.txt` describes.

    The first call installs it, which takes as long as pip takes; processes that want the same one
    at once wait for each other. `built_with`: variables for what is compiled; `whole`: it lacks
    nothing, as one does that is used beside the project's own packages. Raises `CannotMake`.
    """
    requirements = REQUIREMENTS / f"{name}.txt"
    folder = _cache_folder(os.environ) / f"{name}-{_digest(requirements, built_with)}"
    python = folder / "bin" / "python"
    if (folder / _COMPLETE).exists():
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_suffix(".lock")):
        if not (folder / _COMPLETE).exists():
            # Half of one may be left there; it cannot be moved, so it is made at its final place.
            shutil.rmtree(folder, ignore_errors=True)
            _run(sys.executable, "-m", "venv", str(folder))
            pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
            install = (*pip, "install", "--quiet", "--no-deps", "--requirement", str(requirements))
            _run(*install, variables=built_with)
            if whole:
                _run(*pip, "check")
            (folder / _COMPLETE).touch()
    return python


def plain_variables() -> dict[str, str]:
    """Environment variables for a program in such an environment: none of the project's Python."""
    mine = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_CONSTRAINT")
    return {name: value for name, value in os.environ.items() if name not in mine}


def _run(*command: str, variables: Mapping[str, str] = NOTHING) -> None:
    ended = subprocess.run(
        command,
        env={**plain_variables(), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise CannotMake(f"{' '.join(command)}:\n{ended.stdout}{ended.stderr}")


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _cache_folder(variables: Mapping[str, str]) -> Path:
    base = variables.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "batchedmodel" / "foreign"


def _digest(requirements: Path, built_with: Mapping[str, str]) -> str:
    python = f"{sys.version_info.major}.{sys.version_info.minor}\0"
    how = "".join(f"{name}={built_with[name]}\0" for name in sorted(built_with))
    made_of = python.encode() + requirements.read_bytes() + how.encode()
    return hashlib.sha256(made_of).hexdigest()[:16]
