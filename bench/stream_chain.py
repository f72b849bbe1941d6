"""Simulated engines and sidecars in front of them, as processes of their own on loopback.

Called by `streams`; it knows how they are started and asked, not what is measured.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.upstream import ServerProtocol
from compile_modules import compiled_modules
from device_chain import Chain, Process
from load_generator import cache_folder
from process_family import family_cpu_seconds
from stream_plan import MODEL
from support.chain import TESTS, in_front_of
from support.engine import EngineSettings
from support.ports import unused_port

SETTINGS: Final = BatchSettings(target_first_token_seconds=1.0, target_token_seconds=0.04)
"""A manifest's defaults but for the targets. How many the engine runs at once is learnt."""
_LISTENING: Final = r"listening: port (\d+)"
_IDLE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTimes:
    """What an engine says of requests, by their marks."""

    first: dict[int, float]
    """Seconds from when it had the request to its first token."""
    left: dict[int, float]
    """When it ended a request whose caller had left."""


@dataclass(kw_only=True)
class EngineProcess:
    """A simulated engine; comes back to its port after it was killed."""

    process: Process
    port: int
    url: str

    async def times(self) -> EngineTimes:
        """Of all requests since it was last asked."""
        url = f"{self.url}/simulate/times"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            told = await response.json()
            return EngineTimes(first=dict(told["first"]), left=dict(told["left"]))

    async def come_back(self) -> None:
        """Be killed at once and start again."""
        await self.process.kill()
        after = len(self.process.lines)
        await self.process.start()
        await self.process.wait_for(_LISTENING, after=after)


@dataclass(kw_only=True)
class StreamChain:
    """An engine, and a sidecar in front of it."""

    engine: EngineProcess
    chain: Chain

    @property
    def port(self) -> int:
        """The sidecar's."""
        return self.chain.port

    @property
    def pid(self) -> int:
        """The sidecar's."""
        return self.chain.sidecar.pid

    def cpu_seconds(self) -> float:
        """Of the sidecar and what it has started, so far."""
        return family_cpu_seconds(self.pid)

    async def idle(self) -> None:
        """Return once the engine has nothing to do, or after some time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_IDLE_SECONDS):
                while (counts := await self.counts())["running"] + counts["waiting"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

    async def counts(self) -> dict[str, float]:
        """What the engine says of itself."""
        async with self.chain.session.get(f"{self.engine.url}/simulate") as response:
            found: dict[str, float] = await response.json()
            return found


@contextlib.asynccontextmanager
async def engine(settings: EngineSettings) -> AsyncIterator[EngineProcess]:
    """It alone."""
    port = unused_port()
    given: dict[str, Any] = {"port": port, "model": MODEL, **asdict(settings)}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    process = Process("engine", "support.engine_server", {"PYTHONPATH": path}, *options)
    await process.start()
    try:
        await process.wait_for(_LISTENING)
        yield EngineProcess(process=process, port=port, url=f"http://127.0.0.1:{port}")
    finally:
        await process.stop()


@contextlib.asynccontextmanager
async def stream_chain(
    folder: Path, settings: EngineSettings, batching: BatchSettings = SETTINGS
) -> AsyncIterator[StreamChain]:
    """Both, ready; the sidecar with compiled modules, as in its image."""
    async with (
        engine(settings) as behind,
        in_front_of(
            behind.url,
            folder,
            upstream_protocol=ServerProtocol.OPENAI,
            settings=batching,
            compiled=compiled_modules(cache_folder(os.environ)),
        ) as chain,
    ):
        await chain.ready()
        yield StreamChain(engine=behind, chain=chain)
