"""One child process: started in its own session, its lines handed on, its end awaited.

Called by the supervisor, in the main thread: the kernel kills a process when the thread that
started it ends.
"""

import asyncio
import ctypes
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self

_LONGEST_LINE: Final = 65_536
"""Bytes of a line that are held."""
_LAST_LINES_SECONDS: Final = 1.0
"""For what is in the pipe at a process's end. Its own children may hold the pipe open for ever."""
_PR_SET_PDEATHSIG: Final = 1
# Loaded before any fork: between fork and exec the child may only call it.
_libc: Final = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """How to start and to stop one process."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    stop_within_seconds: float
    """Time from SIGTERM to SIGKILL."""
    liveness_path: str = ""
    """Where the batcher's admin port says whether it is alive; empty: that is not asked."""
    exit_meanings: Mapping[int, str] = field(default_factory=dict)
    """What an exit code after SIGTERM tells a person; a code without an entry is shown itself."""


class Process:
    """A running process. `ended` gives its return code once it is over and its lines are out."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reading: asyncio.Task[None],
        pipe: asyncio.ReadTransport,
    ) -> None:
        self._process = process
        self._reading = reading
        self._pipe = pipe
        self.ended = asyncio.create_task(self._end())

    @classmethod
    async def start(cls, spec: ProcessSpec, on_line: Callable[[str], None]) -> Self:
        """Start it; raises `OSError` when it cannot start."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(_LONGEST_LINE)
        # Not the library's own pipe: a child that the process leaves behind may hold it open.
        output, for_child = os.pipe()
        pipe, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(output, "rb")
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                env=dict(spec.environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=for_child,
                stderr=for_child,
                # Ctrl-C reaches every process of the terminal's session. It must reach only the
                # command, because the model server has to outlive the batcher.
                start_new_session=True,
                preexec_fn=partial(_die_with_parent, os.getpid()),
            )
        except BaseException:
            pipe.close()
            raise
        finally:
            os.close(for_child)
        return cls(process, asyncio.create_task(_show(reader, on_line)), pipe)

    def send(self, signal_number: signal.Signals) -> None:
        """Send a signal; one that has ended takes none."""
        # Not by the library, which looks first whether it has ended: its exit code is lost then.
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal_number)

    async def terminated_within(self, seconds: float) -> bool:
        """Send SIGTERM; whether it ended in that time, its last lines apart."""
        self.send(signal.SIGTERM)
        done, _ = await asyncio.wait({self.ended}, timeout=seconds + _LAST_LINES_SECONDS)
        return bool(done)

    async def _end(self) -> int:
        returncode = await self._process.wait()
        await asyncio.wait({self._reading}, timeout=_LAST_LINES_SECONDS)
        self._pipe.close()
        await self._reading
        return returncode


async def lines_of(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """The lines of a stream, as a terminal leaves them; one that is too long comes in parts."""
    is_cut = False
    while True:
        try:
            line = await reader.readuntil()
            if is_cut and line == b"\n":
                # The end of the line whose parts have been given.
                is_cut = False
                continue
            is_cut = False
        except asyncio.LimitOverrunError as error:
            line = await reader.readexactly(error.consumed)
            is_cut = True
        except asyncio.IncompleteReadError as error:
            line = error.partial
            if not line:
                return
        # Of a progress bar that was drawn over itself the last state stays.
        yield line.decode("utf-8", "replace").rstrip("\r\n").rpartition("\r")[2]


async def _show(reader: asyncio.StreamReader, on_line: Callable[[str], None]) -> None:
    async for line in lines_of(reader):
        on_line(line)


def _die_with_parent(parent: int) -> None:
    # If SIGKILL ends the command, it cannot stop its processes; the kernel then kills them.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
