"""Sidecar and model server as real processes, wired as in a pod, for tests and benchmarks.

Everything is on loopback and in a folder of its own; leaving the context ends both processes.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from batchedmodel_contract.manifest.batching import FILE_NAME, BatchSettings
from batchedmodel_contract.processes import sidecar_api
from batchedmodel_contract.processes.environment import ModelServerSettings, SidecarSettings
from batchedmodel_kube.manifest.pod_settings import to_environment

START_SECONDS: Final = 180.0
TOKEN_FILE: Final = "admin-token"
TESTS: Final = Path(__file__).parents[1]
_LISTENING: Final = r"listening: data port (\d+), admin port (\d+)"


class Process:
    """A child process whose log lines can be awaited."""

    def __init__(
        self, name: str, module: str, environment: Mapping[str, str], *arguments: str
    ) -> None:
        self.name = name
        self.lines: list[str] = []
        self._module = module
        self._environment = environment
        self._arguments = arguments
        self._arrived = asyncio.Condition()
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Number of the running process."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it; it must not be running."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self._module,
            *self._arguments,
            env={**os.environ, **self._environment},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self._reader = asyncio.create_task(self._read(self._process))

    async def wait_for(self, pattern: str, *, after: int = 0) -> re.Match[str]:
        """The first log line from number `after` on that the pattern is found in."""
        async with asyncio.timeout(START_SECONDS), self._arrived:
            while True:
                for line in self.lines[after:]:
                    if found := re.search(pattern, line):
                        return found
                if self._reader is None or self._reader.done():
                    raise AssertionError(f"{self.name} ended:\n" + "\n".join(self.lines))
                await self._arrived.wait()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Its exit code, once it has ended and its log is read."""
        assert self._process is not None
        assert self._reader is not None
        code = await self._process.wait()
        await self._reader
        return code

    async def kill(self) -> None:
        """End it at once; it may start again."""
        assert self._process is not None
        self._process.kill()
        await self.ended()

    async def stop(self) -> None:
        """End it, gently first."""
        if self._process is None:
            return
        if self._process.returncode is None:
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(10.0):
                await self.ended()
        except TimeoutError:
            self._process.kill()
            await self.ended()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            async with self._arrived:
                self.lines.append(line.decode().rstrip())
                self._arrived.notify_all()
        async with self._arrived:
            self._arrived.notify_all()


def sample(metrics: str, name: str, **labels: str) -> float:
    """One sample of what `/metrics` said."""
    wanted = {f'{label}="{value}"' for label, value in labels.items()}
    for line in metrics.splitlines():
        found = re.fullmatch(rf"{re.escape(name)}(?:\{{(.*)\}})? (\S+)", line)
        if found and set((found[1] or "").split(",")) - {""} == wanted:
            return float(found[2])
    raise AssertionError(f"/metrics has no {name} {labels}")


@dataclass
class Chain:
    """A running sidecar and a running model server."""

    name: str
    folder: Path
    sidecar: Process
    model: Process
    session: aiohttp.ClientSession
    port: int = 0
    admin_port: int = 0
    infer_path: str = field(init=False)

    def __post_init__(self) -> None:
        self.infer_path = f"/v2/models/{self.name}/infer"

    def url(self, path: str) -> str:
        """A URL of the data port."""
        return f"http://127.0.0.1:{self.port}{path}"

    async def admin(self, path: str) -> tuple[int, str]:
        """Status and text of a GET on the admin port."""
        url = f"http://127.0.0.1:{self.admin_port}{path}"
        async with self.session.get(url) as response:
            return response.status, await response.text()

    @property
    def token(self) -> dict[str, str]:
        """The header that commands need, as who is in the sidecar's container can read it."""
        return {sidecar_api.TOKEN_HEADER: (self.folder / TOKEN_FILE).read_text()}

    async def begin_drain(self) -> None:
        """As the hook of the sidecar's container does."""
        url = f"http://127.0.0.1:{self.admin_port}{sidecar_api.DRAIN}"
        async with self.session.post(url, headers=self.token) as response:
            assert response.status == 202

    async def drain(self) -> tuple[int, str]:
        """As both hooks of a pod do: the answer that the model's container waits for."""
        await self.begin_drain()
        return await self.admin(sidecar_api.DRAINED)

    async def metric(self, name: str, **labels: str) -> float:
        """One sample of `/metrics`."""
        return sample(await self.metrics(), name, **labels)

    async def metrics(self) -> str:
        """All of them at one moment."""
        return (await self.admin("/metrics"))[1]

    async def until(self, name: str, holds: Callable[[float], bool], **labels: str) -> None:
        """Return once a metric is as wanted; metrics can only be asked for."""
        async with asyncio.timeout(START_SECONDS):
            while not holds(await self.metric(name, **labels)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def configure(self, settings: BatchSettings) -> None:
        """Write other batch settings, as a whole."""
        write_settings(self.folder / "settings", settings)

    async def goes_by(self, settings: BatchSettings) -> None:
        """Write other batch settings and return once they are in force, which they may have been.

        For tests that share a chain: each begins with the settings that it needs.
        """
        self.configure(settings)
        async with asyncio.timeout(START_SECONDS):
            while await self._settings_hash() != settings.digest():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def _settings_hash(self) -> str:
        found: str = json.loads((await self.admin("/settings"))[1])["hash"]
        return found

    async def listening(self, *, after: int = 0) -> None:
        """Return once the ports are known that the sidecar names in a line from `after` on."""
        found = await self.sidecar.wait_for(_LISTENING, after=after)
        self.port, self.admin_port = int(found[1]), int(found[2])

    async def ready(self, *, after: int = 0) -> None:
        """Return once the sidecar has said that it is ready, in a line from `after` on."""
        await self.sidecar.wait_for(f'(INFO |")ready: {self.name} on ', after=after)


def write_settings(folder: Path, settings: BatchSettings) -> None:
    """Replace the settings file in one step."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "new").write_text(settings.to_json())
    (folder / "new").rename(folder / FILE_NAME)


def in_front_of(url: str, folder: Path, **settings: Any) -> AbstractAsyncContextManager[Chain]:
    """A sidecar alone, in front of an upstream server, for which it does not wait."""
    return running_chain(
        folder,
        handler="none",
        start_model=False,
        model_socket="",
        upstream_url=url,
        **settings,
    )


@contextlib.asynccontextmanager
async def running_chain(
    folder: Path,
    *,
    handler: str,
    parameters: Mapping[str, str] | None = None,
    source: Mapping[str, object] | None = None,
    settings: BatchSettings | None = None,
    start_model: bool = True,
    sidecar_module: str = "batchedmodel_sidecar",
    compiled: Path | None = None,
    adapters_folder: str = "",
    **sidecar_settings: object,
) -> AsyncIterator[Chain]:
    """Start both, wait until the model is ready (if it is started), stop both.

    `sidecar_module`: what is run as the sidecar, which may be one that is watched. `compiled`: a
    folder whose packages the sidecar has instead. What is logged is the same for both.
    """
    name = "m"
    socket = str(folder / "model.sock")
    batching = settings or BatchSettings()
    write_settings(folder / "settings", batching)
    model_settings = ModelServerSettings(
        model_name=name,
        model_socket=socket,
        handler=handler,
        source=json.dumps(source) if source else "",
        parameters=tuple((parameters or {}).items()),
        max_batch_size=batching.max_batch_size,
        adapters_folder=adapters_folder,
        cache_folder=str(folder / "cache"),
        log_level=sidecar_settings.get("log_level", "info"),  # type: ignore[arg-type]
        log_format=sidecar_settings.get("log_format", "text"),  # type: ignore[arg-type]
    )
    values: dict[str, object] = {
        "model_name": name,
        "model_socket": socket,
        "settings_folder": str(folder / "settings"),
        "host": "127.0.0.1",
        "port": 0,
        "admin_port": 0,
        "token_file": str(folder / TOKEN_FILE),
        **sidecar_settings,
    }
    proxy_settings = SidecarSettings(**values)  # type: ignore[arg-type]  # checked when read
    # Handlers of the tests' own are imported by the model server, and a watched sidecar is one.
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    model_environment = {"PYTHONPATH": path, **to_environment(model_settings)}
    model = Process("model", "batchedmodel_model_server", model_environment)
    sidecar_path = os.pathsep.join([str(compiled), path]) if compiled else path
    sidecar_environment = {"PYTHONPATH": sidecar_path, **to_environment(proxy_settings)}
    sidecar = Process("sidecar", sidecar_module, sidecar_environment)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        chain = Chain(name=name, folder=folder, sidecar=sidecar, model=model, session=session)
        try:
            await sidecar.start()
            if start_model:
                await model.start()
            await chain.listening()
            if start_model:
                await chain.ready()
            yield chain
        finally:
            await sidecar.stop()
            await model.stop()
