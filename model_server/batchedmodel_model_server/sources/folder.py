"""The folder with a model's files, and what it holds: which version, and whether it has changed.

A source that is a folder may hold versions side by side, each in a sub-folder with a number for its
name, as Triton's model repositories do; the highest number counts. Otherwise the source is one
version, and another one as soon as its files differ. Only names, sizes and times of files tell.
Called for every load, on a thread that may block, since downloads do, and by the program `fetch`.
"""

import hashlib
import importlib
import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from batchedmodel_contract.manifest.source import GGUF_SUFFIX, Source
from batchedmodel_contract.processes.environment import HUB_FOLDER
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources.fetched_models import fetched

# Weights as safetensors only: the other formats of a repository are pickles or for other runtimes.
_WANTED: Final = ("*.safetensors", "*.json", "*.txt")
_TRUSTED: Final = ("*.py", "*.pt", "*.pth")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}(-[0-9a-f]+)?")  # with a key where we fetched it


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What can be loaded. Equal contents need not be loaded twice."""

    folder: Path | None = None
    """Or the GGUF file that is the model. None when the manifest has no source."""
    number: int | None = None
    """Of the version, where versions have sub-folders."""
    digest: str = ""
    """Differs when a file was added, removed or written."""
    stays: bool = True
    """Whether the files stay as they are. Those of a version with a number, of a commit and of a
    package do; other files may be copied over those of a folder without numbers."""


def content_of(
    source: Source | None,
    cache_folder: Path,
    *,
    trust: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Content:
    """What the source holds now, fetched if need be; raises `CannotLoad`."""
    folder = model_folder(source, cache_folder, trust=trust, environ=environ)
    if source is None or folder is None:
        return Content()
    try:
        has_numbers = source.path is not None and folder.is_dir()
        number = max(_numbers(folder), default=None) if has_numbers else None
        chosen = folder if number is None else folder / str(number)
        stays = number is not None or source.path is None
        return Content(folder=chosen, number=number, digest=_digest(chosen), stays=stays)
    except OSError as error:
        raise CannotLoad(f"{folder} cannot be read: {error}") from error


def model_folder(
    source: Source | None,
    cache_folder: Path,
    *,
    trust: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Path | None:
    """The source's folder or GGUF file, None without a source; raises `CannotLoad`.

    Downloads go to a folder of their own in `cache_folder`, and are found there the next time.
    Code and pickles are fetched only with `trust`. `environ` says which hub is asked, and whether.
    """
    if source is None:
        return None
    if source.path is not None:
        path = Path(source.path)
        is_gguf = path.suffix == GGUF_SUFFIX and path.is_file()
        return path if is_gguf else _existing(path, "source.path")
    if source.python_package is not None:
        return _of_package(source.python_package)
    if source.hugging_face is not None:
        wanted = (*_WANTED, *_TRUSTED) if trust else _WANTED
        return fetched(source.hugging_face, cache_folder / HUB_FOLDER, wanted, environ)
    raise CannotLoad("source names neither path nor pythonPackage nor huggingFace")


def stamp(path: str | Path) -> tuple[int, int]:
    """A file's size in bytes, and when it was last written in nanoseconds; raises `OSError`."""
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def _existing(folder: Path, field: str) -> Path:
    if not folder.is_dir():
        raise CannotLoad(f"{field}: {folder} is not a folder")
    return folder


def _of_package(name: str) -> Path:
    field = "source.pythonPackage"
    try:
        # A package that only carries a file may ask for libraries that nothing here needs.
        found = importlib.util.find_spec(name)
        for folder in (found and found.submodule_search_locations) or ():
            if any(Path(folder).glob(f"*{GGUF_SUFFIX}")):
                return Path(folder)
        package = importlib.import_module(name)
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        raise CannotLoad(f"{field}: {name} cannot be imported: {reason}") from error
    if hasattr(package, "get_model_path"):
        try:
            return _existing(Path(package.get_model_path()), f"{field}: {name}.get_model_path()")
        except (OSError, TypeError, ValueError) as error:
            raise CannotLoad(f"{field}: {name}.get_model_path() failed: {error}") from error
    if package.__file__ is not None and (Path(package.__file__).parent / "config.json").is_file():
        return Path(package.__file__).parent
    raise CannotLoad(
        f"{field}: {name} has neither get_model_path() nor a config.json or a *{GGUF_SUFFIX} file "
        "in its folder"
    )


def _numbers(folder: Path) -> list[int]:
    names = [entry.name for entry in folder.iterdir() if entry.is_dir()]
    # A leading zero would give two folders one number.
    return [int(name) for name in names if name.isascii() and name.isdigit() and name[0] != "0"]


def _digest(folder: Path) -> str:
    """Of all files: their paths, sizes and times of the last writing.

    Times are left out below a folder that is named by a commit, as hubs lay files out: the commit
    says it all, and the same files may have been fetched anew.
    """
    whole = folder.resolve()
    timed = not any(_COMMIT.fullmatch(part) for part in whole.parts)
    digest = hashlib.sha256(str(whole).encode(errors="surrogateescape"))
    if not folder.is_dir():
        digest.update(repr(stamp(folder)).encode())
    for parent, folders, files in os.walk(folder):
        # What the interpreter writes beside a handler when it is imported is no change.
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            path = os.path.join(parent, name)
            size, written = stamp(path)
            told = f"{os.path.relpath(path, folder)}\0{size}\0{written if timed else ''}\0"
            digest.update(told.encode(errors="surrogateescape"))
    return digest.hexdigest()
