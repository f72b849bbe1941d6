"""Memory that bodies took goes back to the system once they are gone.

glibc keeps what is freed: in holes between what stays, and in blocks of up to 32 MiB, as it raises
the bound above which a block is mapped by itself. So that bound is fixed, and holes are given back
some time after there was much.
"""

import asyncio
import ctypes
from collections.abc import Callable
from typing import Any, Final

_LIBC: Final[Any] = ctypes.CDLL(None)
_MMAP_THRESHOLD: Final = -3  # M_MMAP_THRESHOLD of mallopt
_MAPPED_BYTES: Final = 128 * 1024
"""Blocks from this size on are mapped by themselves: where glibc begins, too."""
_MUCH_BYTES: Final = 8 << 20
_REST_SECONDS: Final = 0.5


def fix_mapped_sizes() -> None:
    """Have large blocks of this process go back to the system as they are freed."""
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)


class Heap:
    """Gives holes back, in a thread, when callers held much and hold little again."""

    def __init__(self, in_use: Callable[[], int]) -> None:
        """`in_use`: bytes that callers hold now."""
        self._in_use = in_use
        self._timer: asyncio.TimerHandle | None = None

    def body_comes(self) -> None:
        """More will be held; needs a running loop."""
        if self._timer is None and self._in_use() >= _MUCH_BYTES:
            self._wait()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_REST_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._in_use() >= _MUCH_BYTES:
            self._wait()
        elif hasattr(_LIBC, "malloc_trim"):
            # Some milliseconds, in which the interpreter's lock is free.
            asyncio.get_running_loop().run_in_executor(None, _LIBC.malloc_trim, 0)
