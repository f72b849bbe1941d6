"""Whether weights may be the mapped file itself while they are served.

Mapped weights need no time to load, and several processes share them; but they are whatever the
file is. One that is written over in place changes the answers, and one that is cut short ends the
process by SIGBUS, without a word. So only files that nobody writes to any more stay mapped: those
of a numbered version, of a commit and of a package. Set by `loading` around a handler's `load`,
and obeyed by what loads weights for handlers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Module = TypeVar("Module")

_files_stay: ContextVar[bool] = ContextVar("files_stay", default=True)


@contextmanager
def while_files(*, stay: bool) -> Iterator[None]:
    """Within it the model's files count as such that stay as they are, or as others."""
    token = _files_stay.set(stay)
    try:
        yield
    finally:
        _files_stay.reset(token)


def on_device(net: Module, device: str) -> Module:
    """A torch module on the device, its weights in memory of its own if its files may change."""
    moved: Any = net
    moved = moved.to(device)
    if not _files_stay.get():
        # One by one, so that never more than one is there twice. What has moved to another device
        # is no file any more.
        for tensor in (*moved.parameters(), *moved.buffers()):
            if tensor.device.type == "cpu":
                tensor.data = tensor.data.clone()
    kept: Module = moved
    return kept
