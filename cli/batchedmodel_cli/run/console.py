"""The output of a run: lines of several processes, each with its name in front.

While processes run, nothing else writes to the output stream.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TextIO

RUN: Final = "run"
"""The name in front of what the supervisor itself says."""

_COLOURS: Final = (36, 35, 32, 34)  # cyan, magenta, green, blue
_RUN_COLOUR: Final = 33  # yellow
_WIDEST: Final = 7


class Console:
    """Writes whole lines; colours them on a terminal, unless `NO_COLOR` asks for none.

    When nobody can read the stream any more (the terminal is closed, the pipe's reader is gone), it
    calls `on_lost`. What is written later is dropped.
    """

    def __init__(
        self,
        stream: TextIO,
        names: Iterable[str],
        environ: Mapping[str, str],
        on_lost: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._on_lost = on_lost
        coloured = stream.isatty() and not environ.get("NO_COLOR")
        colours = dict(zip(names, _COLOURS, strict=False)) | {RUN: _RUN_COLOUR}
        self._prefixes = {
            name: _prefix(name, colour if coloured else None) for name, colour in colours.items()
        }

    def show(self, name: str, line: str) -> None:
        """One line of a process."""
        self.print(self._prefixes[name] + line)

    def tell(self, sentence: str) -> None:
        """One line of the supervisor's own."""
        self.show(RUN, sentence)

    def print(self, *lines: str) -> None:
        """Lines as they are, together."""
        try:
            self._stream.write("".join(f"{line}\n" for line in lines))
            self._stream.flush()
        except OSError:
            discard(self._stream)
            self._on_lost()


def discard(stream: TextIO) -> None:
    """Drop what a stream still holds and what is written to it later.

    Otherwise the interpreter's flush at exit would fail again.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _prefix(name: str, colour: int | None) -> str:
    text = f"{name:<{_WIDEST}} | "
    return text if colour is None else f"\x1b[{colour}m{text}\x1b[0m"
