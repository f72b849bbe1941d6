"""`batchedmodel run FILE --upstream URL`: the batching in front of a server that runs already."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from support.row_server import NAME, RowServer

MANIFEST = f"""
apiVersion: batchedmodel.dev/v1alpha1
kind: BatchedModel
metadata: {{name: {NAME}}}
spec:
  model: {{protocol: %s, image: own:1}}
  batching: {{policy: Window, maxWaitMilliseconds: 100}}
"""


@asynccontextmanager
async def command(
    folder: Path, protocol: str, url: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The command as a process; it is ended with the context."""
    (folder / "model.yaml").write_text(MANIFEST % protocol)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "batchedmodel_cli", "run", str(folder / "model.yaml")),
        *("--port", "0", "--upstream", url),
        env=dict(os.environ),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        await process.wait()


async def until(process: asyncio.subprocess.Process, pattern: str) -> re.Match[str]:
    assert process.stdout is not None
    lines = []
    async with asyncio.timeout(60.0):
        async for line in process.stdout:
            lines.append(line.decode())
            if found := re.search(pattern, lines[-1]):
                return found
    raise AssertionError("".join(lines))


@pytest.mark.parametrize(
    ("protocol", "path", "body", "rows"),
    [
        ("V1", "/v1/models/m:predict", {"instances": [1, 2]}, "predictions"),
        ("OpenAI", "/v1/embeddings", {"model": "m", "input": ["a", "b"]}, "data"),
        (
            "V2",
            "/v2/models/m/infer",
            {"inputs": [{"name": "x", "datatype": "INT64", "shape": [2, 1], "data": [1, 2]}]},
            "outputs",
        ),
    ],
)
async def test_the_manifests_protocol_decides_and_no_model_server_is_started(
    tmp_path: Path, protocol: str, path: str, body: object, rows: str
) -> None:
    async with (
        RowServer() as server,
        aiohttp.ClientSession() as session,
        command(tmp_path, protocol, server.url) as process,
    ):
        service = (await until(process, r"service +(http://\S+)"))[1]
        responses = await asyncio.gather(
            *(session.post(service + path, json=body) for _ in range(4))
        )
        for response in responses:
            assert response.status == 200
            assert rows in await response.json()
        assert server.rows == [8]
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        rest = (await process.stdout.read()).decode()
        assert "model  " not in rest
        assert await process.wait() == 0


async def test_a_server_that_is_not_there_yet_is_waited_for_and_said_so(tmp_path: Path) -> None:
    async with RowServer() as server:
        pass  # only for a port that nobody has now
    async with command(tmp_path, "V1", server.url) as process:
        await until(process, "model not ready: the model cannot be reached")
        async with server:
            await until(process, "m is ready")
