"""What several tests of the model server start."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.source import Source
from batchedmodel_contract.processes.environment import ModelServerSettings
from batchedmodel_model_server.api.handler import Handler
from batchedmodel_model_server.execution.device_thread import DeviceThread
from batchedmodel_model_server.lifecycle.service import ModelService
from support.model_server_handlers import Times
from support.versions import MakeService


@pytest_asyncio.fixture
async def compute() -> AsyncIterator[DeviceThread]:
    """A thread that runs what it is handed, and has ended behind the test."""
    thread = DeviceThread(asyncio.get_running_loop())
    thread.start()
    yield thread
    thread.finish()
    thread.join(5)
    assert "compute" not in {one.name for one in threading.enumerate()}


@pytest_asyncio.fixture
async def make_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compute: DeviceThread
) -> AsyncIterator[MakeService]:
    """Makes the service of a handler class over the folder `model`; drained behind the test."""
    made: list[ModelService] = []

    def make(kind: type[Handler] = Times) -> ModelService:
        monkeypatch.setattr(f"{Times.__module__}.Named", kind, raising=False)
        settings = ModelServerSettings(
            model_name="m",
            model_socket=str(tmp_path / "model.sock"),
            handler=f"{Times.__module__}:Named",
            max_batch_size=2,
            cache_folder=str(tmp_path),
        )
        made.append(ModelService(settings, Source(path=str(tmp_path / "model")), compute))
        return made[-1]

    yield make
    for service in made:
        await service.drain()
