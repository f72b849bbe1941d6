"""Keeps the processes of one service running, and stops them in order.

The asyncio shell around `restarts`: it starts, waits and signals; what follows an end is decided
there. Called by `run`. It knows names and commands, nothing of models or batches.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Sequence
from typing import Final

from batchedmodel_cli.run.processes import Process, ProcessSpec
from batchedmodel_cli.run.restarts import (
    Ended,
    Interrupt,
    Verdict,
    after_end,
    after_interrupt,
    described,
)

STOPPED: Final = 0
FAILED: Final = 1
WRONG: Final = 2
"""Exit codes of the whole: stopped cleanly, something failed, told to do what cannot be done."""

# A process that SIGTERM found before it had a handler ends by it, which is as good.
_CLEAN_ENDS: Final = {0, -signal.SIGTERM, 128 + signal.SIGTERM}
_EXIT_CODES: Final = {Verdict.CANNOT_LISTEN: FAILED, Verdict.WRONG_SETTINGS: WRONG}


class Supervisor:
    """Runs processes until it is told to stop or one of them cannot go on.

    `specs` are in the order in which they are stopped, each before the next: callers' side first.
    `show(name, line)` gets every line of theirs; `tell(sentence)` what happens to them.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        *,
        show: Callable[[str, str], None],
        tell: Callable[[str], None],
    ) -> None:
        self._specs = tuple(specs)
        self._show = show
        self._tell = tell
        self._running: dict[str, Process] = {}
        self._stopping = asyncio.Event()
        self._exit_code = STOPPED
        self._interrupted_at: float | None = None

    async def run(self) -> int:
        """Serve until stopped; the exit code. No process is left when this returns or raises."""
        try:
            async with asyncio.TaskGroup() as group:
                for spec in self._specs:
                    group.create_task(self._keep(spec), name=f"keep {spec.name}")
                await self._stopping.wait()
                await self._stop_in_order()
        finally:
            for process in tuple(self._running.values()):
                process.kill()
        return self._exit_code

    def stop(self, exit_code: int = STOPPED) -> None:
        """Stop in order, with this exit code unless more fails; asked again, go on with that."""
        if not self._stopping.is_set():
            self._exit_code = exit_code
            self._stopping.set()

    def interrupt(self) -> None:
        """Do what a person's Ctrl-C means: stop in order, and the second time kill."""
        now = asyncio.get_running_loop().time()
        match after_interrupt(now, self._interrupted_at):
            case Interrupt.STOP:
                self._interrupted_at = now
                self.stop()
            case Interrupt.KILL:
                self._tell("killing what still runs")
                self._fail()
                for process in self._running.values():
                    process.send(signal.SIGKILL)
            case Interrupt.REPEAT:
                pass

    async def _keep(self, spec: ProcessSpec) -> None:
        clock = asyncio.get_running_loop().time
        failures = 0
        while not self._stopping.is_set():
            started_at = clock()
            process = Process(spec, lambda line: self._show(spec.name, line))
            self._running[spec.name] = process
            # Shielded: were this task cancelled, the process must still be able to report its end.
            returncode = await asyncio.shield(process.ended)
            del self._running[spec.name]
            if self._stopping.is_set():
                return
            decision = after_end(
                Ended(
                    name=spec.name,
                    started_at=started_at,
                    ended_at=clock(),
                    returncode=returncode,
                ),
                failures,
            )
            failures = decision.failures
            self._tell(decision.sentence)
            if decision.verdict is not Verdict.RESTART:
                self.stop(_EXIT_CODES[decision.verdict])
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), decision.start_at - clock())

    async def _stop_in_order(self) -> None:
        for spec in self._specs:
            process = self._running.get(spec.name)
            if process is None or process.ended.done():
                continue
            self._tell(f"stopping {spec.name}")
            process.send(signal.SIGTERM)
            if not await process.ended_within(spec.stop_within_seconds):
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
