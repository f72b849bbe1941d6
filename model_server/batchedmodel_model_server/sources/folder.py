"""The folder with a model's files: what it holds, and models that are fetched into one.

A source that is a folder may hold versions side by side, each in a sub-folder with a number for its
name, as Triton's model repositories do; the highest number counts. Otherwise the source is one
version, and another one as soon as its files differ. Only names, sizes and times of files tell.
Called for every load, on a thread that may block, since downloads do, and by the program `fetch`.

A fetched folder appears under its name at once and whole; until then its files grow in a hidden
one, where a later process goes on. Processes that share the disk wait for each other by a lock.

    FOLDER/owner--name/revisions/main             the commit that `main` was when last asked for
    FOLDER/owner--name/COMMIT-KEY/                whole; KEY stands for the kinds of files wanted
    FOLDER/owner--name/.COMMIT-KEY.partial/       growing; what lacks `.part` is complete and right
    FOLDER/owner--name/.COMMIT-KEY.lock
"""

import asyncio
import fcntl
import hashlib
import importlib
import importlib.util
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final
from urllib.parse import quote

from batchedmodel_contract.invalid_input import shown
from batchedmodel_contract.manifest.source import GGUF_SUFFIX, HuggingFace, Source
from batchedmodel_contract.processes.environment import HUB_FOLDER
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources.hub import (
    COMMIT,
    Hub,
    HubAccess,
    HubFile,
    Unreachable,
    hub_access,
    is_offline,
)
from batchedmodel_model_server.sources.untrusted_files import is_inside

_AT_ONCE: Final = 4
"""Files: one connection seldom fills the line."""
_TRIES: Final = 2
"""How often a file is fetched whose digest is wrong."""
_PART: Final = ".part"
_KEY_CHARACTERS: Final = 8
_PROGRESS_SECONDS: Final = 5.0
_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")
_log = logging.getLogger(__name__)
# Weights as safetensors only: the other formats of a repository are pickles or for other runtimes.
_WANTED: Final = ("*.safetensors", "*.json", "*.txt")
_TRUSTED: Final = ("*.py", "*.pt", "*.pth")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}(-[0-9a-f]+)?")  # with a key where we fetched it


def fetched(
    wanted: HuggingFace, folder: Path, patterns: Sequence[str], environ: Mapping[str, str]
) -> Path:
    """The folder with the files of a repository that match one of the patterns.

    Fetched unless it is there already, which costs no question to the hub when the revision is a
    whole commit. Raises `CannotLoad`.
    """
    repository = _Repository(wanted, folder, patterns)
    try:
        kept = repository.kept()
        if is_offline(environ):
            if kept is None:
                raise CannotLoad(
                    f"{repository.named} is not in {folder}, and offline no hub is asked"
                )
            return kept
        if kept is not None and COMMIT.fullmatch(wanted.revision):
            return kept
        return repository.brought_up_to_date(hub_access(environ), kept)
    except OSError as error:
        raise CannotLoad(f"{repository.named} cannot be kept in {folder}: {error}") from error


class _Repository:
    """One repository at one revision, as far as it is wanted. Raises `OSError` and `CannotLoad`."""

    def __init__(self, wanted: HuggingFace, folder: Path, patterns: Sequence[str]) -> None:
        self._wanted = wanted
        self._patterns = patterns
        self._key = hashlib.sha256("\n".join(sorted(patterns)).encode()).hexdigest()
        self._home = folder / wanted.repo.replace("/", "--")
        # Without slashes and never `..`, whatever the revision is.
        name = quote(wanted.revision, safe="").replace("..", "%2E%2E")
        self._remembered = self._home / "revisions" / name
        self.named = f"source.huggingFace: {wanted.repo} at {wanted.revision}"

    def kept(self) -> Path | None:
        """The whole folder of the commit that the revision was when last asked for, if any."""
        commit = self._wanted.revision
        if COMMIT.fullmatch(commit) is None:
            try:
                commit = self._remembered.read_text("ascii").strip()
            except (FileNotFoundError, NotADirectoryError):
                return None
            if COMMIT.fullmatch(commit) is None:
                return None
        target = self._target(commit)
        return target if target.is_dir() else None

    def brought_up_to_date(self, access: HubAccess, kept: Path | None) -> Path:
        """The folder of the commit that the revision is now; `kept` where no hub answers."""
        try:
            commit = asyncio.run(self._commit(access if kept is None else access.impatient()))
        except Unreachable as error:
            if kept is None:
                raise
            _log.warning("%s; going on with what was fetched before: %s", error, kept)
            return kept
        target = self._target(commit)
        if not target.is_dir():
            _log.info("fetching %s, commit %s, from %s", self.named, commit, access.endpoint)
            self._home.mkdir(parents=True, exist_ok=True)
            with _locked(self._home / f".{target.name}.lock"):
                if not target.is_dir():
                    self._complete(commit, target, access)
        if target != kept and COMMIT.fullmatch(self._wanted.revision) is None:
            write_at_once(self._remembered, commit)  # for the time when no hub can be asked
        return target

    def _target(self, commit: str) -> Path:
        return self._home / f"{commit}-{self._key[:_KEY_CHARACTERS]}"

    async def _commit(self, access: HubAccess) -> str:
        async with Hub(access, self._wanted.repo, self._wanted.revision) as hub:
            return await hub.commit()

    def _complete(self, commit: str, target: Path, access: HubAccess) -> None:
        partial = target.with_name(f".{target.name}.partial")
        partial.mkdir(exist_ok=True)
        asyncio.run(self._download(commit, partial, access))
        # A name must never outlive what it stands for.
        for path in (*partial.rglob("*"), partial):
            _flush(path)
        partial.rename(target)
        _flush(target.parent)

    async def _download(self, commit: str, partial: Path, access: HubAccess) -> None:
        async with Hub(access, self._wanted.repo, self._wanted.revision) as hub:
            files = wanted_files(await hub.files(commit), self._patterns)
            present = sum(_present_bytes(partial, file) for file in files)
            total = sum(file.size for file in files)
            free = shutil.disk_usage(partial).free
            if total - present > free:
                raise CannotLoad(
                    "source.huggingFace: there is no space for the files: "
                    f"{shown_bytes(total - present)} more are needed, and {self._home} has "
                    f"{shown_bytes(free)}"
                )
            progress = Progress(total=total, present=present, now=time.monotonic())
            _log.info("%d files, %s", len(files), progress.line(time.monotonic()))
            turns = asyncio.Semaphore(_AT_ONCE)

            def received(count: int) -> None:
                if progress.add(count, time.monotonic()):
                    _log.info(progress.line(time.monotonic()))

            async def fetch(file: HubFile) -> None:
                async with turns:
                    await _fetch_file(hub, commit, file, partial, received)

            try:
                async with asyncio.TaskGroup() as group:
                    for file in files:
                        group.create_task(fetch(file))
            except ExceptionGroup as failures:
                # The first is the reason; the others were stopped by it or share it.
                raise failures.exceptions[0] from None
            _log.info("complete: %s", progress.line(time.monotonic()))


async def _fetch_file(
    hub: Hub, commit: str, file: HubFile, partial: Path, received: Callable[[int], None]
) -> None:
    whole = partial / file.path
    if whole.is_file():
        return
    whole.parent.mkdir(parents=True, exist_ok=True)
    part = whole.with_name(whole.name + _PART)
    for _ in range(_TRIES):
        await hub.download(commit, file, part, received)
        # From the disk and not as it came: this is what will be served.
        found = await asyncio.to_thread(_file_digest, part, file)
        if found == (file.sha256 or file.git_sha1):
            # After a crash the name counts as proof of the data, so it must come after them.
            await asyncio.to_thread(_flush, part)
            part.rename(whole)
            return
        _log.warning("%s has digest %s, which is wrong; it is thrown away", file.path, found)
        part.unlink()
    raise CannotLoad(
        f"source.huggingFace: {file.path} came with a wrong checksum {_TRIES} times; the hub says "
        f"{shown(file.sha256 or file.git_sha1)}"
    )


def wanted_files(files: Sequence[HubFile], patterns: Sequence[str]) -> list[HubFile]:
    """Those that match one of the patterns; raises `CannotLoad` when they cannot be kept."""
    found = [file for file in files if any(fnmatchcase(file.path, one) for one in patterns)]
    if not found:
        raise CannotLoad(
            f"source.huggingFace: the repository has no file like {', '.join(patterns)}"
        )
    for file in found:
        if not is_inside(file.path):
            raise CannotLoad(
                f"source.huggingFace: {shown(file.path)} would lie outside of its folder"
            )
    if len({file.path for file in found}) < len(found):
        raise CannotLoad("source.huggingFace: the hub lists a file twice")
    return found


def _present_bytes(partial: Path, file: HubFile) -> int:
    for path in (partial / file.path, partial / (file.path + _PART)):
        if path.is_file():
            return min(path.stat().st_size, file.size)
    return 0


def _file_digest(path: Path, file: HubFile) -> str:
    state = hashlib.sha256()
    if file.sha256 is None:
        # The name of a file's content in git.
        state = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with path.open("rb") as content:
        return hashlib.file_digest(content, lambda: state).hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone with what the lock is for. It ends with the process, however that ends.

    Raises `OSError` where the file system has no locks.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("another process is fetching this already; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_at_once(file: Path, text: str) -> None:
    """Put a text into a file, which others read whole or as it was; raises `OSError`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=_PART)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as output:
            output.write(text)
            os.fchmod(descriptor, 0o644)
        os.replace(part, file)
    except OSError:
        os.unlink(part)
        raise


class Progress:
    """Counts bytes. What was there before counts as done, and not towards the speed."""

    def __init__(self, *, total: int, present: int, now: float) -> None:
        self._total = total
        self._present = present
        self._received = 0
        self._began = now
        self._said = now

    def add(self, count: int, now: float) -> bool:
        """Take note of bytes; whether it is time for another line."""
        self._received += count
        if now - self._said < _PROGRESS_SECONDS:
            return False
        self._said = now
        return True

    def line(self, now: float) -> str:
        """How far it is, for a log."""
        # What had to be fetched twice must not make it more than all.
        done = min(self._present + self._received, self._total)
        percent = 100 * done // self._total if self._total else 100
        text = f"{shown_bytes(done)} of {shown_bytes(self._total)} ({percent} %)"
        seconds = now - self._began
        if self._received and seconds > 0:
            text += f", {shown_bytes(int(self._received / seconds))}/s"
        return text


def shown_bytes(count: int) -> str:
    """A number of bytes for people."""
    amount, unit = float(count), 0
    while amount >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{count} bytes" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


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
