"""Processes beside the control plane that take a line of JSON and answer with one."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

_TESTS: Final = Path(__file__).parents[2]
_LONGEST_LINE: Final = 2**22


class Helper:
    """One of them; its orders are taken one after the other."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._turn = asyncio.Lock()

    async def order(self, order: object) -> Any:
        """What it answers."""
        assert self._process.stdin is not None
        async with self._turn:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            await self._process.stdin.drain()
            return json.loads(await self.line())

    async def line(self) -> bytes:
        """The next one that it prints."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        assert line, "the process has ended"
        return line


@asynccontextmanager
async def helper(module: str, argument: str) -> AsyncIterator[Helper]:
    """`python -m module argument` for the block."""
    path = os.pathsep.join(filter(None, [str(_TESTS), os.environ.get("PYTHONPATH")]))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, argument),
        env={**os.environ, "PYTHONPATH": path},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LONGEST_LINE,
    )
    try:
        yield Helper(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
