"""What a model's source holds now: which version, and whether its files are other ones than before.

A source that is a folder may hold versions side by side, each in a sub-folder with a number for its
name, as Triton's model repositories do; the highest number counts. Otherwise the source is one
version, and another one as soon as its files differ. Called when a model is loaded, and by whoever
keeps what was found out about one; reads names, sizes and times of files, never their contents.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from batchedmodel_model_server.errors import CannotLoad

_COMMIT: Final = re.compile(r"[0-9a-f]{40}(-[0-9a-f]+)?")  # with a key where we fetched it


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What can be loaded. Equal contents need not be loaded twice."""

    folder: Path | None = None
    """None when the manifest has no source."""
    number: int | None = None
    """Of the version, where versions have sub-folders."""
    digest: str = ""
    """Differs when a file was added, removed or written."""
    stays: bool = True
    """Whether the files stay as they are once they are there: a version with a number is replaced
    by another number. A folder without is one that somebody may copy other files into."""


def content_of(folder: Path | None, *, numbered: bool) -> Content:
    """What the source's folder holds; `numbered` says that sub-folders may be versions.

    Where they may not be, the folder was made by us or comes with a package, and nobody writes to
    it. Raises `CannotLoad`.
    """
    if folder is None:
        return Content()
    try:
        number = max(_numbers(folder), default=None) if numbered else None
        chosen = folder if number is None else folder / str(number)
        stays = number is not None or not numbered
        return Content(folder=chosen, number=number, digest=_digest(chosen), stays=stays)
    except OSError as error:
        raise CannotLoad(f"{folder} cannot be read: {error}") from error


def _numbers(folder: Path) -> list[int]:
    names = [entry.name for entry in folder.iterdir() if entry.is_dir()]
    # A leading zero would give two folders one number.
    return [int(name) for name in names if name.isascii() and name.isdigit() and name[0] != "0"]


def _digest(folder: Path) -> str:
    """Of all files: their paths, sizes and times of the last writing.

    Without the times below a commit's own folder, as hubs lay it out: the commit says it all, and
    the same files may have been fetched anew.
    """
    whole = folder.resolve()
    timed = not any(_COMMIT.fullmatch(part) for part in whole.parts)
    digest = hashlib.sha256(str(whole).encode(errors="surrogateescape"))
    for parent, folders, files in os.walk(folder):
        # What the interpreter writes beside a handler when it is imported is no change.
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            path = os.path.join(parent, name)
            size, written = stamp(path)
            told = f"{os.path.relpath(path, folder)}\0{size}\0{written if timed else ''}\0"
            digest.update(told.encode(errors="surrogateescape"))
    return digest.hexdigest()


def stamp(path: str | Path) -> tuple[int, int]:
    """A file's size in bytes, and when it was last written in nanoseconds; raises `OSError`."""
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns
