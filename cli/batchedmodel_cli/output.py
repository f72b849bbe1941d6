"""The program's own outputs where there is none to write to: closed at the start, or lost later."""

import os
from typing import TextIO


def present(stream: TextIO | None) -> TextIO:
    """The stream; for one that was closed before the start, which is None, one that drops all."""
    return stream or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def discard(stream: TextIO) -> None:
    """Drop what a stream still holds and what is written to it later.

    Otherwise the interpreter's flush at exit would fail again.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
