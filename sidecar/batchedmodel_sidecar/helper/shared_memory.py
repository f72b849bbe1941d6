"""Memory that two processes share without copying: a file that lies in no file system.

A body is written into it piece by piece as it arrives, and its descriptor is sent over a Unix
socket. A mapping lives as long as anything refers to it.

Connections need descriptors, too. So only so many files are used, and what has none lies in the
process's own memory.
"""

import contextlib
import mmap
import os
import threading
import weakref
from queue import SimpleQueue
from typing import Final

from batchedmodel_contract.inference.tensors import Buffer

_NAME: Final = "batchedmodel-body"  # as /proc shows it
_MOST_FILES: Final = 64
DESCRIPTORS: Final = 2
"""Of each file: its own, and that of its mapping."""


class SharedMemory:
    """Bytes that can be handed to another process; `close` it, mapped or not."""

    def __init__(self, descriptor: int | None = None) -> None:
        """New and empty, or what another process sent. Raises `OSError`."""
        _closer.start()
        if descriptor is None:
            descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        _closer.opened(descriptor)
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self._close = weakref.finalize(self, _closer.close, self._descriptor)

    def __len__(self) -> int:
        """How many bytes it holds."""
        return self.size

    @property
    def descriptor(self) -> int:
        """The descriptor to send. Raises `ValueError` once it is closed."""
        # The number may be another file's by now.
        if not self._close.alive:
            raise ValueError("the memory was closed: our bug")
        return self._descriptor

    def write(self, piece: Buffer) -> None:
        """Put a piece behind what is there. Raises `OSError` when the machine has no more."""
        view = memoryview(piece)
        while view:
            written = os.pwrite(self.descriptor, view, self.size)
            self.size += written
            view = view[written:]

    def rest(self, size: int) -> memoryview:
        """Where the next bytes belong, up to this many; `filled` says when they are there.

        Raises `OSError`.
        """
        os.ftruncate(self.descriptor, self.size + size)
        return memoryview(mmap.mmap(self.descriptor, self.size + size))[self.size :]

    def filled(self, size: int) -> None:
        """So many bytes of the rest are there."""
        self.size += size

    def view(self) -> memoryview:
        """The bytes, to be read only; they stay as long as the view or a part of it does."""
        if not self.size:
            return memoryview(b"")
        mapped = mmap.mmap(self.descriptor, self.size, prot=mmap.PROT_READ)
        if are_scarce():
            with mapped:
                return memoryview(mapped[:])
        # The thread closes this one behind the mapping, and so gives the pages back.
        last = os.dup(self.descriptor)
        _closer.opened(last)
        weakref.finalize(mapped, _closer.close, last)
        return memoryview(mapped)

    def close(self) -> None:
        """Give it up, off the loop. Views stay."""
        self._close()


class Closer:
    """Closes descriptors in a thread of its own.

    The last one to close ten megabytes waits some milliseconds for the kernel. `close` is often
    called by the collector, which may run within any call of the same thread. So it must not take a
    lock, as an executor would: the thread may hold that lock already.
    """

    def __init__(self) -> None:
        self._given: SimpleQueue[int] = SimpleQueue()  # whose `put` may be entered again
        self._open: set[int] = set()  # changed by several threads, which needs no lock
        self.most = _MOST_FILES
        self._started = False

    def start(self) -> None:
        """Start the thread, if there is none. Takes locks, unlike `close`."""
        if not self._started:
            # What is still open when the process ends is closed by the kernel.
            threading.Thread(target=self._work, name="memory", daemon=True).start()
            self._started = True  # behind it: without a thread the next one tries again

    @property
    def files(self) -> int:
        """How many are not closed."""
        return len(self._open)

    def opened(self, descriptor: int) -> None:
        """Count one that will be closed here."""
        self._open.add(descriptor)

    def close(self, descriptor: int) -> None:
        """Close it soon."""
        self._given.put(descriptor)

    def _work(self) -> None:
        while True:
            descriptor = self._given.get()
            self._open.discard(descriptor)  # before another file can have this number
            with contextlib.suppress(OSError):
                os.close(descriptor)


_closer: Final = Closer()


def use_at_most(files: int) -> None:
    """Use so many files before what is new lies elsewhere."""
    _closer.most = files


def are_scarce() -> bool:
    """Whether so many files are used that what is new should lie elsewhere."""
    return _closer.files >= _closer.most
