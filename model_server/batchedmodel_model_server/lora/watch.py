"""Says when the adapters that there should be, or their files, may have changed.

In a pod the settings lie in a mounted ConfigMap, which the kubelet swaps by a symbolic link;
elsewhere somebody writes the file. Adapters' folders are written by whoever makes adapters. All of
it shows as events of the folders, except on file systems that other machines write to: those say
nothing of it, and are looked at every few seconds.

What is said is only that something may be new. Whoever hears it reads everything again.
"""

import asyncio
import errno
import logging
import os
import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Final

from asyncinotify import Inotify, Mask

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.lora import ADAPTERS_FILE, AdapterSettings, adapters_from_json
from batchedmodel_contract.manifest.adapters import ADAPTER_NAME, MOST_ITEMS
from batchedmodel_contract.manifest.source import Source
from batchedmodel_contract.schema.rules import Broken

_MOST_BYTES: Final = 1 << 20  # as much as a ConfigMap may hold
_CHANGES: Final = (
    Mask.CLOSE_WRITE
    | Mask.CREATE
    | Mask.MOVED_TO
    | Mask.MOVED_FROM
    | Mask.DELETE
    | Mask.DELETE_SELF
    | Mask.MOVE_SELF
)
_SETTLES_SECONDS: Final = 0.2
"""Files of one adapter come one after the other."""
_LONGEST_SECONDS: Final = 1.0
_LOOKS_SECONDS: Final = 2.0
_REMOTE: Final = re.compile(r"nfs|cifs|smb|ceph|fuse|9p|virtiofs|lustre|gluster|gpfs|beegfs")
_MOUNTS: Final = Path("/proc/self/mounts")
_log = logging.getLogger(__name__)


def read_settings(folder: Path) -> AdapterSettings:
    """What the file in this folder says; raises `InvalidInput`."""
    file = folder / ADAPTERS_FILE
    try:
        if file.exists() and not file.is_file():
            raise InvalidInput(str(file), "is no file")  # a pipe would be waited for
        with file.open("rb") as content:
            text = content.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InvalidInput(str(file), f"cannot be read: {error}") from error
    if len(text) > _MOST_BYTES:
        raise InvalidInput(str(file), f"is longer than {_MOST_BYTES} bytes")
    return adapters_from_json(text)


def wanted_sources(settings: AdapterSettings, before: Mapping[str, Source]) -> dict[str, Source]:
    """The adapters that there should be: those listed, and each folder in the one that is named.

    Where that one cannot be read just now, those of `before` that lie in it are still wanted.
    """
    sources: dict[str, Source] = {}
    if settings.folder is not None:
        try:
            names = _folders(Path(settings.folder), before)
        except (FileNotFoundError, NotADirectoryError) as error:
            _log.warning("there is no folder of adapters: %s", error)
            names = []
        except OSError as error:
            _log.warning("the folder of adapters cannot be read: %s", error)
            names = [
                name for name, source in before.items() if source == _in(settings.folder, name)
            ]
        sources = {name: _in(settings.folder, name) for name in names}
    return sources | {item.name: item.source for item in settings.items}


def _in(folder: str, name: str) -> Source:
    return Source(path=os.path.join(folder, name))


def _folders(folder: Path, before: Container[str]) -> list[str]:
    names = sorted(entry.name for entry in os.scandir(folder) if _is_folder(entry))
    found: list[str] = []
    for name in names:
        try:
            found.append(ADAPTER_NAME.read(name))
        except Broken:
            continue  # such as lost+found, or hidden
    if len(found) > MOST_ITEMS:
        _log.error("%s has %d adapters; only %d count", folder, len(found), MOST_ITEMS)
    # None that is served makes room for one that came later.
    return sorted(found, key=lambda name: name not in before)[:MOST_ITEMS]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link to itself
            return False
        raise


class Watch:
    """Folders that are watched. Needs a running loop."""

    def __init__(self) -> None:
        self._inotify: Final = _inotify()
        self._is_deaf = self._inotify is None
        """Whether something may be new of which no event says so."""

    def follow(self, folders: Iterable[Path]) -> None:
        """Watch these, too; those that are not there are looked for every few seconds.

        It may take as long as a remote file system lets it wait.

        Those that are not named any more stay watched, until they are removed: they are few, and
        what they say is only that something may be new. To add one again changes nothing, unless
        it is another folder of its name by now.
        """
        if self._inotify is None:
            return
        found, missing = list[Path](), False
        for folder in folders:
            try:
                self._inotify.add_watch(folder, _CHANGES)
                found.append(folder)
            except OSError:
                missing = True
        self._is_deaf = missing or any(map(is_remote, found))

    async def changed(self) -> None:
        """Return once something may be new and has been quiet for a moment."""
        if self._inotify is None:
            await asyncio.sleep(_LOOKS_SECONDS)
            return
        pause = _LOOKS_SECONDS if self._is_deaf else None
        try:
            async with asyncio.timeout(pause):
                await self._inotify.get()
        except TimeoutError:
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + _LONGEST_SECONDS
        while (left := until - loop.time()) > 0:
            try:
                async with asyncio.timeout(min(left, _SETTLES_SECONDS)):
                    await self._inotify.get()
            except TimeoutError:
                return

    def close(self) -> None:
        """Watch nothing any more."""
        if self._inotify is not None:
            self._inotify.close()


def _inotify() -> Inotify | None:
    try:
        return Inotify()
    except OSError as error:
        # A node has few of them for each user.
        _log.warning("adapters are looked for every %g s: %s", _LOOKS_SECONDS, error)
        return None


def is_remote(folder: Path, mounts: Path = _MOUNTS) -> bool:
    """Whether a folder lies where other machines may write."""
    try:
        lines = [line.split(" ") for line in mounts.read_text(errors="replace").splitlines()]
        whole = str(folder.resolve())
    except OSError:
        return False
    kind, longest = "", -1
    for line in lines:
        point = line[1].replace("\\040", " ").rstrip("/")
        inside = whole == point or whole.startswith(f"{point}/")
        if inside and len(point) >= longest:
            kind, longest = line[2], len(point)
    return _REMOTE.match(kind) is not None
