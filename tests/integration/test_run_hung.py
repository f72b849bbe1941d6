"""`batchedmodel run` of a model whose pass hangs: it serves again without a person."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from support.chain import TESTS
from support.hanging_handler import HANGS

pytestmark = pytest.mark.alone
"""A process that has to wait for a processor for a second counts as hung here."""

MANIFEST: Final = """
apiVersion: batchedmodel.dev/v1alpha1
kind: BatchedModel
metadata: {name: m}
spec:
  model: {handler: "support.hanging_handler:SoonHung"}
  batching: {requestTimeoutSeconds: 1}
"""
PERIOD_SECONDS: Final = 0.2
"""Between probes, so that a minute of failures is over in a second."""
COMMAND: Final = f"""
import sys
from batchedmodel_cli import __main__
from batchedmodel_cli.run import liveness
liveness.PERIOD_SECONDS = {PERIOD_SECONDS}
sys.exit(__main__.main())
"""


class Run:
    """The command as a process, with its lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def until(self, pattern: str) -> re.Match[str]:
        """Read on until a line matches."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60.0):
            async for line in self.process.stdout:
                self.lines.append(line.decode().rstrip())
                if match := re.search(pattern, self.lines[-1]):
                    return match
        raise AssertionError("\n".join(self.lines))


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Run]:
    file = folder / "model.yaml"
    file.write_text(MANIFEST)
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", COMMAND, "run", str(file), "--port", "0"),
        env={**os.environ, "PYTHONPATH": path},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield Run(process)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        await process.communicate()


async def asked(session: aiohttp.ClientSession, url: str, value: int) -> int:
    x = {"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [value]}
    async with session.post(f"{url}/v2/models/m/infer", json={"inputs": [x]}) as response:
        await response.read()
        return response.status


async def test_a_model_whose_pass_hangs_is_started_anew_and_serves_again(tmp_path: Path) -> None:
    """Would have caught that a run went on refusing every request for as long as the pass hung."""
    async with running(tmp_path) as run, aiohttp.ClientSession() as session:
        url = (await run.until(r"  service  (\S+)"))[1]
        assert await asked(session, url, 1) == 200
        assert await asked(session, url, HANGS) == 504
        await run.until("the model is HUNG")
        await run.until(r"run     \| model fails its liveness probe: .*; stopping it")
        await run.until(r"run     \| model ended with .*; starting it again")
        await run.until(r"batcher \| .*ready: m on ")
        assert await asked(session, url, 1) == 200
        # What hung was the model server: nothing else was restarted.
        assert sum("listening: data port" in line for line in run.lines) == 1
