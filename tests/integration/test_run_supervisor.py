"""The supervisor in this process, over small real ones."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from batchedmodel_cli.run.processes import Process, ProcessSpec
from batchedmodel_cli.run.supervisor import FAILED, STOPPED, Supervisor

PATIENT = "import signal; print('up', flush=True); signal.pause()"
DEAF = "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()"


def process(name: str, code: str, stop_within: float = 10.0) -> ProcessSpec:
    return ProcessSpec(
        name=name,
        command=(sys.executable, "-c", code),
        environment=dict(os.environ),
        stop_within_seconds=stop_within,
    )


class Watched:
    """A supervisor whose lines are kept, and awaited."""

    def __init__(self, *specs: ProcessSpec) -> None:
        self.lines: list[str] = []
        self._told = asyncio.Event()
        self.supervisor = Supervisor(
            specs,
            show=lambda name, line: self._keep(f"{name}: {line}"),
            tell=lambda sentence: self._keep(sentence),
            admin=lambda: None,
        )

    def _keep(self, line: str) -> None:
        self.lines.append(line)
        self._told.set()

    async def seen(self, *lines: str) -> None:
        """Wait until each of the lines was shown."""
        while not set(lines) <= set(self.lines):
            self._told.clear()
            await self._told.wait()


async def test_processes_are_stopped_one_after_the_other_in_the_order_given() -> None:
    watched = Watched(process("front", PATIENT), process("back", PATIENT))
    run = asyncio.create_task(watched.supervisor.run())
    await watched.seen("front: up", "back: up")
    watched.supervisor.stop()
    assert await run == STOPPED
    assert watched.lines[2:] == ["stopping front", "stopping back"]


async def test_one_that_ignores_sigterm_is_killed_when_its_time_is_over() -> None:
    watched = Watched(process("front", DEAF, stop_within=0.1), process("back", PATIENT))
    run = asyncio.create_task(watched.supervisor.run())
    await watched.seen("front: up", "back: up")
    watched.supervisor.stop()
    assert await run == FAILED
    assert "front still runs after 0.1 s; killing it" in watched.lines
    assert watched.lines[-1] == "stopping back"


async def test_a_process_that_lost_accepted_work_at_its_end_makes_the_run_fail() -> None:
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); print('up', flush=True)"
    watched = Watched(process("front", f"{code}; signal.pause()"))
    run = asyncio.create_task(watched.supervisor.run())
    await watched.seen("front: up")
    watched.supervisor.stop()
    assert await run == FAILED
    assert watched.lines[-1] == "front ended with exit code 5"


async def test_a_process_is_started_again_until_it_stays(tmp_path: Path) -> None:
    code = f"import os; os.mkdir({str(tmp_path / 'once')!r}); raise SystemExit(9)"
    stays = f"import os, signal\nif os.path.exists({str(tmp_path / 'once')!r}):\n"
    stays += f" print('up', flush=True); signal.pause()\n{code}"
    watched = Watched(process("front", stays))
    run = asyncio.create_task(watched.supervisor.run())
    await watched.seen("front: up")
    watched.supervisor.stop()
    assert await run == STOPPED
    assert watched.lines[0] == "front ended with exit code 9; starting it again in 0.2 s"


async def test_a_stop_during_a_pause_does_not_wait_for_it() -> None:
    watched = Watched(process("front", "raise SystemExit(9)"))
    run = asyncio.create_task(watched.supervisor.run())
    await watched.seen("front ended with exit code 9; starting it again in 0.2 s")
    watched.supervisor.stop()
    assert await run == STOPPED
    assert len(watched.lines) == 1


async def test_no_process_is_left_when_the_run_is_cancelled() -> None:
    watched = Watched(process("front", f"import os; print(os.getpid()); {PATIENT}"))
    run = asyncio.create_task(watched.supervisor.run())
    await watched.seen("front: up")
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    pid = int(watched.lines[0].removeprefix("front: "))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_last_words_come_before_the_end_even_when_a_grandchild_holds_the_pipe(
    tmp_path: Path,
) -> None:
    heard = tmp_path / "heard"
    holds = f"""
import pathlib, time
for _ in range(6000):
    if not pathlib.Path({str(heard)!r}).exists():
        time.sleep(0.01)
"""
    code = (
        "import subprocess, sys;"
        f"subprocess.Popen([sys.executable, '-c', {holds!r}]);"
        "sys.stdout.write('last words')"
    )
    lines: list[str] = []
    one = await Process.start(process("front", code), lines.append)
    try:
        assert await asyncio.wait_for(one.ended, 30) == 0
        assert lines == ["last words"]
    finally:
        heard.touch()


async def test_standard_error_is_shown_like_standard_output() -> None:
    lines: list[str] = []
    spec = process("front", "import sys; sys.stderr.write('oh\\n')")
    one = await Process.start(spec, lines.append)
    assert await asyncio.wait_for(one.ended, 20) == 0
    assert lines == ["oh"]


async def test_a_program_that_does_not_exist_is_an_os_error() -> None:
    spec = ProcessSpec(name="x", command=("/no/such",), environment={}, stop_within_seconds=1)
    with pytest.raises(FileNotFoundError):
        await Process.start(spec, print)
