"""The locks of rooms for answers as another process has them: none keeps its own process out."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LOCKS: Final = """
import sys
from batchedmodel_contract.processes.shared_region import lock
print(lock(int(sys.argv[1]), int(sys.argv[2])), flush=True)
sys.stdin.read()
"""


@contextmanager
def locked_elsewhere(descriptor: int, number: int) -> Iterator[None]:
    """Another process has the lock of this room meanwhile."""
    with _locking(descriptor, number) as has_it:
        assert has_it
        yield


def can_be_locked_elsewhere(descriptor: int, number: int) -> bool:
    """Whether another process gets the lock of this room."""
    with _locking(descriptor, number) as has_it:
        return has_it


@contextmanager
def _locking(descriptor: int, number: int) -> Iterator[bool]:
    with subprocess.Popen(
        [sys.executable, "-c", _LOCKS, str(descriptor), str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[descriptor],
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield process.stdout.readline() == "True\n"
        process.stdin.close()
