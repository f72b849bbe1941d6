"""Fetched models on a disk: where they lie, how one is completed, when it may be used.

Called by `sources`. A fetched folder appears under its name at once and whole; until then its files
grow in a hidden one, where a later process goes on. Processes that share the disk wait for each
other by a lock. Where the file system has none they do the same work twice, each in a hidden folder
of its own: the first that is done puts its own in place and removes the others, whose processes
find the whole one there instead.

    FOLDER/owner--name/revisions/main             the commit that `main` was when last asked for
    FOLDER/owner--name/COMMIT-KEY/                whole; KEY stands for the kinds of files wanted
    FOLDER/owner--name/.COMMIT-KEY.partial/       growing; what lacks `.part` is complete and right
    FOLDER/owner--name/.COMMIT-KEY.partial-HOST-PID/             the same, where there are no locks
    FOLDER/owner--name/.COMMIT-KEY.lock
"""

import asyncio
import errno
import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final
from urllib.parse import quote

from batchedmodel_contract.invalid_input import shown
from batchedmodel_contract.manifest.source import HuggingFace
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources.hub import (
    COMMIT,
    Hub,
    HubAccess,
    Unreachable,
    hub_access,
    is_offline,
)
from batchedmodel_model_server.sources.hub_answers import HubFile
from batchedmodel_model_server.sources.progress import Progress, shown_bytes
from batchedmodel_model_server.sources.untrusted_files import is_inside

_AT_ONCE: Final = 4
"""Files: one connection seldom fills the line."""
_TRIES: Final = 2
"""How often a file is fetched whose digest is wrong."""
_PART: Final = ".part"
_KEY_CHARACTERS: Final = 8
_READ_BYTES: Final = 1_048_576
_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
_log = logging.getLogger(__name__)


def fetched(
    wanted: HuggingFace, folder: Path, patterns: Sequence[str], environ: Mapping[str, str]
) -> Path:
    """The folder with the files of a repository that match one of the patterns.

    Fetched unless it is there already, which costs no question to the hub when the revision is a
    whole commit. Raises `CannotLoad`.
    """
    try:
        return _fetched(wanted, folder, patterns, environ)
    except OSError as error:
        raise CannotLoad(f"{_named(wanted)} cannot be kept in {folder}: {error}") from error


def _fetched(
    wanted: HuggingFace, folder: Path, patterns: Sequence[str], environ: Mapping[str, str]
) -> Path:
    home = folder / wanted.repo.replace("/", "--")
    kept = _kept(home, wanted.revision, patterns)
    if is_offline(environ):
        if kept is None:
            raise CannotLoad(f"{_named(wanted)} is not in {folder}, and offline no hub is asked")
        return kept
    if kept is not None and COMMIT.fullmatch(wanted.revision):
        return kept
    return _brought_up_to_date(wanted, home, patterns, hub_access(environ), kept)


def _brought_up_to_date(
    wanted: HuggingFace,
    home: Path,
    patterns: Sequence[str],
    access: HubAccess,
    kept: Path | None,
) -> Path:
    try:
        commit = asyncio.run(_commit(wanted, access if kept is None else access.impatient()))
    except Unreachable as error:
        if kept is None:
            raise
        _log.warning("%s; going on with what was fetched before: %s", error, kept)
        return kept
    target = home / _name(commit, patterns)
    if not target.is_dir():
        _log.info("fetching %s, commit %s, from %s", _named(wanted), commit, access.endpoint)
        home.mkdir(parents=True, exist_ok=True)
        with _locked(home / f".{target.name}.lock") as alone:
            if not target.is_dir():
                _complete(wanted, commit, target, patterns, access, alone=alone)
    if target != kept:
        _remember(home, wanted.revision, commit)
    return target


async def _commit(wanted: HuggingFace, access: HubAccess) -> str:
    async with Hub(access, wanted.repo, wanted.revision) as hub:
        return await hub.commit()


def _complete(
    wanted: HuggingFace,
    commit: str,
    target: Path,
    patterns: Sequence[str],
    access: HubAccess,
    *,
    alone: bool,
) -> None:
    partial = target.with_name(f".{target.name}.partial")
    if not alone:
        # A container that is started again has the same name and number, and goes on.
        partial = partial.with_name(f"{partial.name}-{os.uname().nodename}-{os.getpid()}")
    partial.mkdir(exist_ok=True)
    try:
        asyncio.run(_download(wanted, commit, partial, patterns, access))
        _flush(partial)
        partial.rename(target)
    except OSError:
        # Another process may have been first.
        if alone or not target.is_dir():
            raise
        _log.info("another process has fetched this meanwhile")
    _flush_one(target.parent)
    if not alone:
        for left in target.parent.glob(f".{target.name}.partial*"):
            shutil.rmtree(left, ignore_errors=True)


async def _download(
    wanted: HuggingFace, commit: str, partial: Path, patterns: Sequence[str], access: HubAccess
) -> None:
    async with Hub(access, wanted.repo, wanted.revision) as hub:
        files = wanted_files(await hub.files(commit), patterns)
        present = sum(_present_bytes(partial, file) for file in files)
        total = sum(file.size for file in files)
        _require_space(partial, total - present)
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
        found = await asyncio.to_thread(_digest, part, file)
        if found == (file.sha256 or file.git_sha1):
            # After a crash its name is believed unread, so it must not outlive its data.
            await asyncio.to_thread(_to_disk, part)
            part.rename(whole)
            return
        _log.warning("%s has digest %s, which is wrong; it is thrown away", file.path, found)
        part.unlink()
    raise CannotLoad(
        f"source.huggingFace: {file.path} came with a wrong checksum {_TRIES} times; the hub says "
        f"{file.sha256 or file.git_sha1}"
    )


def _to_disk(file: Path) -> None:
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


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


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise CannotLoad(
            f"source.huggingFace: there is no space for the files: {shown_bytes(needed)} more are "
            f"needed, and {folder.parent} has {shown_bytes(free)}"
        )


def _present_bytes(partial: Path, file: HubFile) -> int:
    for path in (partial / file.path, partial / (file.path + _PART)):
        if path.is_file():
            return min(path.stat().st_size, file.size)
    return 0


def _digest(path: Path, file: HubFile) -> str:
    if file.sha256 is not None:
        state = hashlib.sha256()
    else:
        # The name of a file's content in git.
        state = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with path.open("rb") as content:
        while chunk := content.read(_READ_BYTES):
            state.update(chunk)
    return state.hexdigest()


def _kept(home: Path, revision: str, patterns: Sequence[str]) -> Path | None:
    commit = revision
    if COMMIT.fullmatch(revision) is None:
        try:
            commit = _remembered(home, revision).read_text("ascii").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if COMMIT.fullmatch(commit) is None:
            return None
    target = home / _name(commit, patterns)
    return target if target.is_dir() else None


def _remember(home: Path, revision: str, commit: str) -> None:
    """For the time when no hub can be asked; replaced at once, because others may be reading."""
    if COMMIT.fullmatch(revision):
        return
    path = _remembered(home, revision)
    path.parent.mkdir(exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    with os.fdopen(descriptor, "w", encoding="ascii") as output:
        output.write(commit)
        os.fchmod(descriptor, 0o644)
    os.replace(temporary, path)


def _remembered(home: Path, revision: str) -> Path:
    # Without slashes and never `..`, whatever the revision is.
    return home / "revisions" / quote(revision, safe="").replace("..", "%2E%2E")


def _named(wanted: HuggingFace) -> str:
    return f"source.huggingFace: {wanted.repo} at {wanted.revision}"


def _name(commit: str, patterns: Sequence[str]) -> str:
    key = hashlib.sha256("\n".join(sorted(patterns)).encode()).hexdigest()[:_KEY_CHARACTERS]
    return f"{commit}-{key}"


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Alone with what the lock is for, or False where the file system has no locks.

    The lock ends with the process, however that ends.
    """
    with path.open("w") as file:
        alone = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("another process is fetching this already; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            _log.warning("%s: this file system has no locks; work may be done twice", path.parent)
            alone = False
        yield alone


def _flush(folder: Path) -> None:
    """To the disk, so that a name never outlives what it stands for."""
    for path in (*folder.rglob("*"), folder):
        _flush_one(path)


def _flush_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
