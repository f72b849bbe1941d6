"""The socket file that the proxy connects to: made, replaced when stale, removed at the end."""

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

_UMASK: Final = 0o117  # leaves 0660: the proxy runs as another user of the same group


def bind(path: Path) -> socket.socket:
    """A listening socket at `path`; raises `OSError` when it cannot be had.

    The file of a process that died is replaced, that of a running server is not.
    """
    if path.exists():
        _remove_stale(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # By the umask and not by chmod afterwards, which would leave a moment of other rights.
    before = os.umask(_UMASK)
    try:
        bound.bind(str(path))
    except OSError:
        bound.close()
        raise
    finally:
        os.umask(before)
    bound.setblocking(False)
    return bound


def identity(path: Path) -> tuple[int, int, int]:
    """By what `unlink` recognises the file as the one that was bound.

    File systems use the number of a removed file again; the time tells the two apart.
    """
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_ctime_ns


def unlink(path: Path, bound: tuple[int, int, int]) -> None:
    """Remove the file unless a successor has put its own there."""
    with suppress(FileNotFoundError):
        if identity(path) == bound:
            path.unlink()


def leave_to_parent(path: Path) -> None:
    """In a forked process: close what listens at the path, and all connections to it.

    Otherwise they would outlive the parent: the next server could not have the path, and callers
    would wait for answers. The kernel may have accepted a connection just before the fork, so all
    open sockets are asked.
    """
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode) and _name_of(descriptor) == str(path):
                os.close(descriptor)


def _name_of(descriptor: int) -> object:
    asked = socket.socket(fileno=descriptor)
    try:
        return asked.getsockname()
    finally:
        asked.detach()


def _remove_stale(path: Path) -> None:
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise FileExistsError(f"{path} exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise FileExistsError(f"{path} is served by another process")
