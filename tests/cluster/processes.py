"""The long-running programs of a cluster: start, watch, stop one, wait until they are ready."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster.commands import tail
from cluster.errors import StartFailed
from cluster.namespace import Namespace

_PAUSE_S = 0.05


class Program:
    """One program inside the namespaces, with its log file.

    `start` and `stop` may be called again and again: tests of what happens when a part of the
    cluster is away do so.
    """

    def __init__(self, namespace: Namespace, name: str, words: Sequence[str | Path]) -> None:
        self.name = name
        self.log = namespace.logs / f"{name}.log"
        self._namespace = namespace
        self._words = words
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._guard = self._namespace.start(self._words, log=self.log)

    def stop(self, *, grace_s: float = 5.0) -> None:
        """Asks the program to end, and ends it when it has not after `grace_s` seconds."""
        if self._guard is None:
            return
        self._signal(signal.SIGTERM)
        try:
            self._guard.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._guard.wait()
        self._guard = None

    def check(self) -> None:
        """Raises `StartFailed` with the end of the log when the program has ended by itself."""
        if self._guard is not None and (status := self._guard.poll()) is not None:
            raise StartFailed(f"{self.name} ended with status {status}, {self.log_end()}")

    def log_end(self) -> str:
        return f"the end of {self.log}:\n{tail(self.log)}"

    def _signal(self, number: signal.Signals) -> None:
        # The guard passes no signals on.
        assert self._guard is not None
        guard = self._guard.pid
        try:
            children = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
            os.kill(int(children[0]), number)
        except (FileNotFoundError, IndexError, ProcessLookupError):
            return  # it has ended already


def wait_until(
    ready: Callable[[], bool], *, what: str, programs: Sequence[Program], deadline_s: float
) -> None:
    """Looks every 50 ms until `ready` says yes.

    Raises:
        StartFailed: one of `programs` ended, or it took longer than `deadline_s`; with their logs.
    """
    deadline = time.monotonic() + deadline_s
    while not ready():
        for program in programs:
            program.check()
        if time.monotonic() > deadline:
            logs = "\n".join(program.log_end() for program in programs)
            raise StartFailed(f"{what}: not within {deadline_s:g} s\n{logs}")
        time.sleep(_PAUSE_S)
