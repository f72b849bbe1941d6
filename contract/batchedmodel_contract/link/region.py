"""Memory that the sidecar makes and the model server sees as well, for large rows.

A file that lies in no file system. Its descriptor goes with the sidecar's hello, and the memory is
shared as long as that connection lasts. The server only reads it. A row that lies there is named by
where it begins. The file is sealed: nothing can make it shorter, so to read it never faults.
"""

import fcntl
import mmap
import os
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput

MAX_BYTES: Final = 4 << 30
"""Of a region that is taken."""
MIN_ITEM_BYTES: Final = 64 * 1024
"""Of an item that lies there. To look for a smaller one takes longer than to send it."""
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_NAME: Final = "batchedmodel-rows"  # as /proc shows it


def create(size: int) -> int:
    """The descriptor of a new region; raises `OSError` where there can be none."""
    descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def mapped(descriptor: int, *, writable: bool) -> mmap.mmap:
    """Its memory; raises `OSError`, and `InvalidInput` for a file that could be made shorter."""
    seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    if seals & _SEALS != _SEALS:
        raise InvalidInput("region", "is not sealed against another size")
    size = os.fstat(descriptor).st_size
    if not 0 < size <= MAX_BYTES:
        raise InvalidInput("region", f"has a size that is not from 1 to {MAX_BYTES} bytes", size)
    access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
    return mmap.mmap(descriptor, size, prot=access)
