"""One child process: started in its own session, its lines handed on, its end awaited.

Called by the supervisor. The event loop watches a pipe for the lines and a pidfd for the end. So
there is no other thread, and `preexec_fn` is safe.
"""

import asyncio
import codecs
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

_LONGEST_LINE: Final = 65_536
_CHUNK: Final = 65_536
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


class LineSplitter:
    """Cuts a stream of bytes into lines of text. It holds at most one line, of bounded length."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes) -> list[str]:
        """The lines that are complete now."""
        *lines, rest = (self._rest + self._decoder.decode(data)).split("\n")
        while len(rest) > _LONGEST_LINE:
            lines.append(rest[:_LONGEST_LINE])
            rest = rest[_LONGEST_LINE:]
        self._rest = rest
        return [_as_a_terminal_leaves_it(line) for line in lines]

    def close(self) -> list[str]:
        """The last line, if the stream ended without a line end."""
        rest, self._rest = self._rest + self._decoder.decode(b"", final=True), ""
        return [_as_a_terminal_leaves_it(rest)] if rest else []


class Process:
    """A running process. `ended` holds its return code once it is over and its lines are out."""

    def __init__(self, spec: ProcessSpec, on_line: Callable[[str], None]) -> None:
        """Start it; must be called in a running loop. Raises `OSError` when it cannot start."""
        self._loop = asyncio.get_running_loop()
        self._on_line = on_line
        self._lines = LineSplitter()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._output, for_child = os.pipe()
        try:
            self._popen = _start(spec, for_child)
        except OSError:
            os.close(self._output)
            raise
        finally:
            os.close(for_child)
        self._pidfd = os.pidfd_open(self._popen.pid)
        os.set_blocking(self._output, False)
        self._loop.add_reader(self._output, self._read)
        self._loop.add_reader(self._pidfd, self._reap)

    def send(self, signal_number: signal.Signals) -> None:
        """Send a signal; one that has ended takes none."""
        self._popen.send_signal(signal_number)

    async def ended_within(self, seconds: float) -> bool:
        """Whether it ended in that time."""
        done, _ = await asyncio.wait({self.ended}, timeout=seconds)
        return bool(done)

    def kill(self) -> None:
        """End it here and now, whatever it is doing, and wait for that."""
        self._popen.kill()
        self._reap()

    def _read(self) -> bool:
        """Hand on what there is to read; whether there may be more."""
        try:
            data = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._output)
        for line in self._lines.feed(data):
            self._on_line(line)
        return bool(data)

    def _reap(self) -> None:
        if self.ended.done():
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        returncode = self._popen.wait()
        # Hand on its last lines before its end. Read what is there, not up to the end of the file:
        # a child that it left behind may hold the pipe open.
        try:
            while self._read():
                pass
            for line in self._lines.close():
                self._on_line(line)
        finally:
            self._loop.remove_reader(self._output)
            os.close(self._output)
            self.ended.set_result(returncode)


def _start(spec: ProcessSpec, output: int) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def die_with_parent() -> None:
        # If SIGKILL ends the command, it cannot stop its processes; the kernel then kills them.
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return subprocess.Popen(
        spec.command,
        env=dict(spec.environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        # Ctrl-C reaches every process of the terminal's session. It must reach only the command,
        # because the model server has to outlive the batcher.
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def _as_a_terminal_leaves_it(line: str) -> str:
    """What a line shows after its progress bar was drawn over itself."""
    return line.rstrip("\r").rpartition("\r")[2]
