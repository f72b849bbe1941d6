"""Memory that the sidecar makes and the model server sees as well, for large rows and answers.

Two files that lie in no file system: one for rows, which the server only reads, and one in which it
puts answers. Their descriptors go over a Unix socket beside the model server's once they have found
each other, and the memory is theirs as long as that connection lasts. What lies in it is named by
where it begins. The files are sealed: nobody can make them shorter, so to read them never faults.

A batch's room for its answer has a number, and each number has a lock: a byte's of the file with
the answers, which need not be there. The server writes only while it holds the lock. A room that
nobody waits for any more is used again once the sidecar has its lock, which it never gives back.
"""

import fcntl
import json
import mmap
import os
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput

LARGEST: Final = 4 << 30
"""Bytes of a region that is taken."""
LONGEST_OFFER: Final = 256
"""Bytes of the message that comes with the descriptor."""
LEAST: Final = 64 * 1024
"""Bytes of an item that lies there. To look for a smaller one takes longer than to send it."""
TAKEN: Final = b"+"
"""The answer to an offer that was taken; what else ends the connection is a refusal."""
_FIXED: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_NAME: Final = "batchedmodel-rows"  # as /proc shows it


def socket_path(model_socket: str) -> str:
    """Where regions are offered: beside the socket that batches go to."""
    return f"{model_socket}.memory"


def create(size: int) -> int:
    """The descriptor of a new region; raises `OSError` where there can be none."""
    descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _FIXED)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def mapped(descriptor: int, *, writable: bool) -> mmap.mmap:
    """Its memory; raises `OSError`, and `InvalidInput` for a file that could be made shorter."""
    seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    if seals & _FIXED != _FIXED:
        raise InvalidInput("region", "is not sealed against another size")
    size = os.fstat(descriptor).st_size
    if not 0 < size <= LARGEST:
        raise InvalidInput("region", f"has a size that is not from 1 to {LARGEST} bytes", size)
    access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
    return mmap.mmap(descriptor, size, prot=access)


def lock(descriptor: int, first: int, count: int = 1) -> bool:
    """Take the locks of so many rooms for this process; False where another process has one.

    They are the process's until it unlocks them, ends, or closes any descriptor of that file.
    """
    assert count > 0, "the system would take the locks of all that follow: our bug"
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, count, first)
    except (OSError, OverflowError):
        # Or there is no such lock: then nothing may be written, and nothing used again.
        return False
    return True


def unlock(descriptor: int, number: int) -> None:
    """Give the lock of a room back; raises `OSError`."""
    fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, number)


def offer(name: str) -> bytes:
    """The message with which a region's descriptors are sent: for rows, and for answers."""
    return json.dumps({"region": name}).encode()


def read_offer(message: bytes) -> str:
    """The name of the region that is offered; raises `InvalidInput`."""
    try:
        name = json.loads(message)["region"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInput("region", f"is offered in a form that is not known: {error!r}") from None
    if not isinstance(name, str) or not name:
        raise InvalidInput("region", "has no name", name)
    return name
