"""Keeps the processes of one service running, and stops them in order.

Called by `run`. It knows names and commands, nothing of models or batches. `after_end` decides what
follows when a process ends by itself; it is pure.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from batchedmodel_cli.run.liveness import STOP_WITHIN_SECONDS, Address, dead
from batchedmodel_cli.run.processes import Process, ProcessSpec
from batchedmodel_contract.processes.environment import EXIT_CANNOT_LISTEN, EXIT_WRONG_SETTINGS

STOPPED: Final = 0
FAILED: Final = 1
WRONG: Final = 2
"""Exit codes of the run: stopped cleanly, something failed, the user gave something wrong."""

FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 10.0
STEADY_SECONDS: Final = 30.0
"""A process that lived this long starts its count of failures anew."""
ONE_INTERRUPT_SECONDS: Final = 0.5
"""Signals within this time are one: a terminal, `make` and `timeout` may each send theirs."""

# A process that gets SIGTERM before it has a handler ends by the signal, which is clean too.
_CLEAN_ENDS: Final = {0, -signal.SIGTERM, 128 + signal.SIGTERM}
_FINAL: Final = {
    EXIT_CANNOT_LISTEN: (
        FAILED,
        "it cannot listen there. Is another program using the port? "
        "--port chooses another, as PORT=8001 does with make",
    ),
    EXIT_WRONG_SETTINGS: (WRONG, "it cannot use its settings, see its message above"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What follows when a process has ended by itself."""

    sentence: str
    failures: int
    """Ends in a row, this one included; handed in with the next end."""
    pause_seconds: float = 0.0
    """Time until it is started again."""
    exit_code: int | None = None
    """The run's, if the process would end the same way again; None: it is started again."""


def after_end(name: str, returncode: int, lived_seconds: float, failures: int) -> Decision:
    """What follows this end, which came after `failures` others in a row."""
    ended = f"{name} ended with {described(returncode)}"
    if returncode in _FINAL:
        exit_code, advice = _FINAL[returncode]
        return Decision(sentence=f"{ended}: {advice}", failures=failures + 1, exit_code=exit_code)
    if lived_seconds >= STEADY_SECONDS:
        failures = 0
    # The exponent is bounded so that a process failing for days cannot overflow a float.
    pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(failures, 16))
    sentence = f"{ended}; starting it again in {pause:g} s"
    return Decision(sentence=sentence, failures=failures + 1, pause_seconds=pause)


def described(returncode: int) -> str:
    """How a process ended, in words; `returncode` as `subprocess` gives it."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"signal {signal.Signals(-returncode).name}"
    except ValueError:
        return f"signal {-returncode}"


class Supervisor:
    """Runs processes until it is told to stop or one of them cannot go on.

    It stops each process of `specs` before the next: the callers' side comes first.
    `show(name, line)` gets each line of a process, `tell(sentence)` what happens to the processes.
    `admin()` is where the batcher's admin port is now, which says whether they are alive.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        *,
        show: Callable[[str, str], None],
        tell: Callable[[str], None],
        admin: Callable[[], Address | None],
    ) -> None:
        self._admin = admin
        self._specs = specs
        self._show = show
        self._tell = tell
        self._running: dict[str, Process] = {}
        self._stopping = asyncio.Event()
        self._exit_code = STOPPED
        self._interrupted_at: float | None = None

    async def run(self) -> int:
        """Serve until stopped; the exit code. No process is left when this returns or raises."""
        async with asyncio.TaskGroup() as group:
            for spec in self._specs:
                group.create_task(self._keep(spec), name=f"keep {spec.name}")
            await self._stopping.wait()
            await self._stop_in_order()
        return self._exit_code

    @property
    def is_stopping(self) -> bool:
        """Whether all processes are being stopped, or are."""
        return self._stopping.is_set()

    def stop(self, exit_code: int = STOPPED) -> None:
        """Stop in order, with this exit code unless something fails; a second call does nothing."""
        if not self._stopping.is_set():
            self._exit_code = exit_code
            self._stopping.set()

    def interrupt(self) -> None:
        """Handle a signal to stop: the first one stops in order, a later one kills."""
        now = asyncio.get_running_loop().time()
        if self._interrupted_at is None:
            self._interrupted_at = now
            self.stop()
        elif now - self._interrupted_at >= ONE_INTERRUPT_SECONDS:
            self._tell("killing what still runs")
            self._fail()
            for process in self._running.values():
                process.send(signal.SIGKILL)

    async def _keep(self, spec: ProcessSpec) -> None:
        clock = asyncio.get_running_loop().time
        failures = 0
        while not self._stopping.is_set():
            started_at = clock()
            process = await Process.start(spec, partial(self._show, spec.name))
            watch = asyncio.create_task(self._stop_when_dead(spec, process))
            try:
                if self._stopping.is_set():  # while it was started, so nothing else ends it
                    return
                self._running[spec.name] = process
                # Shielded: if this task is cancelled, the process must still report its end.
                returncode = await asyncio.shield(process.ended)
            finally:
                watch.cancel()
                process.send(signal.SIGKILL)
                await process.ended
                self._running.pop(spec.name, None)
            if self._stopping.is_set():
                return
            decision = after_end(spec.name, returncode, clock() - started_at, failures)
            failures = decision.failures
            self._tell(decision.sentence)
            if decision.exit_code is not None:
                self.stop(decision.exit_code)
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), decision.pause_seconds)

    async def _stop_when_dead(self, spec: ProcessSpec, process: Process) -> None:
        """End a process that runs but is dead, so that it is started again."""
        if not spec.liveness_path:
            return
        trouble = await dead(spec.liveness_path, self._admin)
        if self._stopping.is_set():
            return
        self._tell(f"{spec.name} fails its liveness probe: {trouble}; stopping it")
        if not await process.terminated_within(STOP_WITHIN_SECONDS):
            process.send(signal.SIGKILL)

    async def _stop_in_order(self) -> None:
        for spec in self._specs:
            process = self._running.get(spec.name)
            if process is None or process.ended.done():
                continue
            self._tell(f"stopping {spec.name}")
            if not await process.terminated_within(spec.stop_within_seconds):
                self._tell(
                    f"{spec.name} still runs after {spec.stop_within_seconds:g} s; killing it"
                )
                process.send(signal.SIGKILL)
            returncode = await asyncio.shield(process.ended)
            if returncode not in _CLEAN_ENDS:
                plainly = f"{spec.name} ended with {described(returncode)}"
                self._tell(spec.exit_meanings.get(returncode, plainly))
                self._fail()

    def _fail(self) -> None:
        # The first cause stays: a service that could not listen did not fail by being killed.
        self._exit_code = self._exit_code or FAILED
