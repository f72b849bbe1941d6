"""Commands that run beside each other as far as one need not wait for another."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_NO_TESTS: Final = 5
"""Of pytest, where nothing was chosen from what it was given: no failure of a lane."""

_CHUNK: Final = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Commands that run in a row until one fails."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    after: tuple[str, ...] = ()
    """Jobs that must have ended before it begins."""
    needs: tuple[str, ...] = ()
    """Jobs that must have ended well before it begins, or it is left out."""
    may_fail: bool = False
    """Whether its failure is no failure of the run: who would use what it makes says so."""


async def run_all(jobs: Sequence[Job]) -> dict[str, bool]:
    """Runs all of them, and says of each whether it ended well.

    Output comes line by line, each behind the name of its job.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a shell has it for what runs in the background. Commands would inherit that, and a
        # run that is given up would wait for them without end.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    running: dict[str, asyncio.Task[bool]] = {}
    async with asyncio.TaskGroup() as group:
        for job in jobs:
            before = {name: running[name] for name in (*job.after, *job.needs)}
            running[job.name] = group.create_task(_run(job, before))
    return {name: task.result() for name, task in running.items()}


async def _run(job: Job, before: Mapping[str, asyncio.Task[bool]]) -> bool:
    for name, task in before.items():
        if not await task and name in job.needs:
            _say(job, f"left out, because {name} failed")
            return False
    for command in job.commands:
        status = await _ended(job, command)
        if status not in (0, _NO_TESTS):
            _say(job, f"{' '.join(command)}: status {status}")
            return job.may_fail
    return True


async def _ended(job: Job, command: Sequence[str]) -> int:
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Ctrl-C must reach it once, from here.
            start_new_session=True,
        )
    )
    try:
        # Who gives up a start that goes on kills what may have begun.
        process = await asyncio.shield(starting)
        assert process.stdout is not None
        rest = b""
        while chunk := await process.stdout.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                _say(job, line.decode("utf-8", "replace"))
        return await process.wait()
    finally:
        process = await starting
        if process.returncode is None:
            # As Ctrl-C would, had it reached the command: pytest then clears up.
            os.killpg(process.pid, signal.SIGINT)
            await process.wait()


def _say(job: Job, line: str) -> None:
    sys.stdout.write(f"{job.name} | {line}\n")
    sys.stdout.flush()
