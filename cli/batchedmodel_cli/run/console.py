"""The output of a run: lines of several processes, each with its name in front.

While processes run, nothing else writes to the output stream. On a terminal what the start is at
stands below the lines, with a spinner; elsewhere it is a line of its own now and then.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TextIO

from rich.console import Console as Terminal
from rich.progress import Progress, SpinnerColumn, TextColumn

from batchedmodel_cli.output import discard
from batchedmodel_cli.run.stages import Stage

RUN: Final = "run"
"""The name in front of what the supervisor itself says."""

_COLOURS: Final = (36, 35, 32, 34)  # cyan, magenta, green, blue
_RUN_COLOUR: Final = 33  # yellow
_WIDEST: Final = 7
_DRAWN_SECONDS: Final = 0.1
_SAID_SECONDS: Final = 10.0


class Console:
    """Writes whole lines; colours them on a terminal, unless `NO_COLOR` asks for none.

    When the stream has no reader any more (the terminal is closed, the pipe's reader is gone), it
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
        terminal = Terminal(file=stream)
        self._terminal = None if terminal.is_dumb_terminal or not stream.isatty() else terminal
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
        text = "".join(f"{line}\n" for line in lines)
        try:
            if self._terminal is not None:
                self._terminal.out(text, end="", highlight=False)
            else:
                self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._lose()

    async def follow(self, stage: Callable[[], Stage | None], clock: Callable[[], float]) -> None:
        """Show what a start is at until it is at nothing more."""
        if self._terminal is None:
            while True:
                await asyncio.sleep(_SAID_SECONDS)
                if (present := stage()) is None:
                    return
                self.tell(present.line(clock()))
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False)
        drawn = Progress(*columns, console=self._terminal, transient=True, auto_refresh=False)
        task = drawn.add_task("")
        try:
            with drawn:
                while (present := stage()) is not None:
                    drawn.update(task, description=present.line(clock()), refresh=True)
                    await asyncio.sleep(_DRAWN_SECONDS)
        except OSError:
            self._lose()

    def _lose(self) -> None:
        discard(self._stream)
        self._on_lost()


def _prefix(name: str, colour: int | None) -> str:
    text = f"{name:<{_WIDEST}} | "
    return text if colour is None else f"\x1b[{colour}m{text}\x1b[0m"
