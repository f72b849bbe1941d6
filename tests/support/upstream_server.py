"""Real servers of other projects as processes, each in the environment that holds it."""

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import aiohttp

from support.foreign_environment import REQUIREMENTS, environment, plain_variables
from support.ports import unused_port

_START_SECONDS: Final = 120.0


@asynccontextmanager
async def mlserver() -> AsyncIterator[str]:
    """The address of an MLServer with the model `m`, which doubles rows."""
    python = await asyncio.to_thread(environment, "mlserver")
    port = unused_port()
    settings = {
        "name": "m",
        "implementation": "serve_mlserver.Doubling",
        "parameters": {"version": "v1.2"},
    }
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/model-settings.json", "w") as file:  # noqa: ASYNC230  # a few bytes
            json.dump(settings, file)
        variables = {
            "MLSERVER_HOST": "127.0.0.1",
            "MLSERVER_HTTP_PORT": str(port),
            "MLSERVER_GRPC_PORT": str(unused_port()),
            "MLSERVER_METRICS_PORT": str(unused_port()),
            "MLSERVER_PARALLEL_WORKERS": "0",
            "PYTHONPATH": str(REQUIREMENTS),
        }
        command = (str(python.parent / "mlserver"), "start", folder)
        async with running(command, variables, f"http://127.0.0.1:{port}") as url:
            yield url


@asynccontextmanager
async def kserve(kind: str) -> AsyncIterator[str]:
    """The address of a KServe model server with the model `m`; see `serve_kserve` for the kinds."""
    python = await asyncio.to_thread(environment, "kserve")
    port = unused_port()
    command = (str(python), str(REQUIREMENTS / "serve_kserve.py"), str(port), kind)
    async with running(command, {}, f"http://127.0.0.1:{port}") as url:
        yield url


@asynccontextmanager
async def running(
    command: tuple[str, ...],
    variables: Mapping[str, str],
    url: str,
    ready: str = "/v2/models/m/ready",
) -> AsyncIterator[str]:
    """A process that serves at `url`, once it answers at the path `ready`, until this is left."""
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**plain_variables(), **variables},
            stdout=log,
            stderr=log,
            # Servers start helpers, which must not outlive them.
            start_new_session=True,
        )
        try:
            await _answers(process, url + ready)
            yield url
        except TimeoutError as error:
            log.seek(0)
            raise AssertionError(log.read().decode(errors="replace")) from error
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _answers(process: asyncio.subprocess.Process, url: str) -> None:
    """Return once the server says that its model is ready; nothing else tells."""
    async with asyncio.timeout(_START_SECONDS), aiohttp.ClientSession() as session:
        while True:
            if process.returncode is not None:
                raise TimeoutError
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
