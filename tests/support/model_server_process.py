"""A real model server process, and a caller of it."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from batchedmodel_contract.inference.batch import BatchRequest, ragged
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.link.model_frames import State
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_contract.processes.environment import ModelServerSettings
from batchedmodel_kube.manifest.pod_settings import to_environment
from support.private_hop import Hop, connected

NAME = "model"
TESTS = Path(__file__).parent.parent


@dataclass(kw_only=True)
class ModelServerProcess:
    """A running model server; made by `model_server`."""

    process: asyncio.subprocess.Process
    hop: Hop
    """A caller of it."""
    log: list[str] = field(default_factory=list)
    """Complete once `stop` has returned."""
    log_ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def socket(self) -> Path:
        """Where it is called."""
        return self.hop.socket

    async def settled(self) -> State:
        """The state once it is neither LOADING nor WARMING."""
        async for event in self.hop.states():
            if event.state not in (ModelState.LOADING, ModelState.WARMING):
                return event
        raise AssertionError("the server went away: " + "\n".join(self.log))

    async def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        await self.log_ended.wait()
        return await self.process.wait()


def token_batch(name: str, items: Sequence[Sequence[int]]) -> BatchRequest:
    """A batch of one INT64 input of rank 1."""
    encoded = [
        ((len(item),), b"".join(value.to_bytes(8, "little", signed=True) for value in item))
        for item in items
    ]
    return BatchRequest(inputs=(ragged(name, Datatype.INT64, encoded),))


@asynccontextmanager
async def model_server(
    folder: Path,
    handler: str = "simulated",
    *,
    parameters: Mapping[str, str] | None = None,
    source: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    max_batch_size: int = 32,
) -> AsyncIterator[ModelServerProcess]:
    """A server whose socket answers; killed at the end if it still runs."""
    path = folder / "model.sock"
    settings = ModelServerSettings(
        model_name=NAME,
        model_socket=str(path),
        handler=handler,
        source=orjson.dumps(source).decode() if source else "",
        parameters=tuple((parameters or {}).items()),
        max_batch_size=max_batch_size,
        cache_folder=str(folder / "cache"),
    )
    packages = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    variables = {**os.environ, "PYTHONPATH": packages, **(environ or {})}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-m", "batchedmodel_model_server"),
        env={**variables, **to_environment(settings)},
        stderr=asyncio.subprocess.PIPE,
    )
    async with connected(path) as hop:
        server = ModelServerProcess(process=process, hop=hop)
        serving = asyncio.Event()
        reading = asyncio.create_task(_read_log(server, serving))
        try:
            await asyncio.wait_for(serving.wait(), 20)
            yield server
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await reading


async def _read_log(server: ModelServerProcess, serving: asyncio.Event) -> None:
    assert server.process.stderr is not None
    async for line in server.process.stderr:
        server.log.append(line.decode().rstrip())
        # Logged once the socket accepts connections.
        if " serving " in server.log[-1]:
            serving.set()
    server.log_ended.set()
    serving.set()
