"""A process that ends just when it gets a signal says how it ended all the same."""

import asyncio
import os
import signal
import sys
from functools import partial

import pytest

from batchedmodel_cli.run.processes import Process, ProcessSpec


def _set(up: asyncio.Event, _: str) -> None:
    up.set()


def spec(code: str) -> ProcessSpec:
    return ProcessSpec(
        name="one",
        command=(sys.executable, "-S", "-c", code),
        environment=dict(os.environ),
        stop_within_seconds=5.0,
    )


@pytest.mark.parametrize("code", [0, 98])
async def test_a_signal_at_the_moment_of_its_end_loses_no_exit_code(code: int) -> None:
    """The library's own signal looks whether it has ended first, and 255 was told instead."""
    for _ in range(8):
        program = f"import os, time; print('up', flush=True); time.sleep(0.02); os._exit({code})"
        up = asyncio.Event()
        process = await Process.start(spec(program), partial(_set, up))
        await up.wait()
        while not process.ended.done():
            process.send(signal.SIGURG)
            await asyncio.sleep(0)
        assert await process.ended == code


async def test_one_that_ends_in_time_is_terminated_though_its_child_holds_the_pipe() -> None:
    program = (
        "import subprocess, sys, time;"
        "subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(3)']);"
        "print('up', flush=True); time.sleep(60)"
    )
    up = asyncio.Event()
    process = await Process.start(spec(program), partial(_set, up))
    await up.wait()
    assert await process.terminated_within(0.5)
    assert await process.ended == -signal.SIGTERM
