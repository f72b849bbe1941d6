"""Errors at the HTTP edge."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from batchedmodel_contract.inference.batch_wire import (
    RegionGone,
)
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.processes.environment import ModelServerSettings
from batchedmodel_contract.processes.server_api import AT_WORK, infer_path
from batchedmodel_model_server.errors import DeviceLost, NotReady
from batchedmodel_model_server.execution.device_thread import DeviceThread
from batchedmodel_model_server.execution.runner import Runner
from batchedmodel_model_server.http.app import make_app
from batchedmodel_model_server.http.shared_regions import Regions
from batchedmodel_model_server.lifecycle.service import ModelService


class Finer(InvalidInput):
    """A kind of bad input that the edge has never heard of."""

    def __init__(self) -> None:
        super().__init__("inputs", "are not to its taste")


class Moving(NotReady):
    """A kind of not being ready that the edge has never heard of."""


class Sick(ModelService):
    """Will not come back by itself."""

    @property
    def live(self) -> bool:
        return False


class Refusing(ModelService):
    """Refuses every batch with the error that it is given."""

    error: Exception | None = None

    @contextmanager
    def admitted(self, version: str | None = None) -> Iterator[Runner]:
        if self.error is not None:
            raise self.error
        with super().admitted(version) as runner:
            yield runner


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Finer(), 400),
        (Moving("it moves"), 503),
        (DeviceLost("gone"), 503),
        (RegionGone("parameters.region", "is no shared memory known here", "a"), 503),
    ],
    ids=["input", "state", "device", "memory"],
)
async def test_an_error_has_the_status_of_its_kind(
    tmp_path: Path, error: Exception, status: int
) -> None:
    settings = ModelServerSettings(
        model_name="model",
        model_socket=str(tmp_path / "model.sock"),
        handler="simulated",
        cache_folder=str(tmp_path),
    )
    loop = asyncio.get_running_loop()
    service = Refusing(settings, None, DeviceThread(loop))
    service.error = error
    async with TestClient(TestServer(make_app(service, Regions({}, {})))) as client:
        answer = await client.post(infer_path("model"), data=b"{}")
        assert answer.status == status
        assert await answer.json() == {"error": str(error)}
        assert (AT_WORK in answer.headers) == isinstance(error, DeviceLost)


async def test_liveness_fails_when_only_a_restart_helps(tmp_path: Path) -> None:
    settings = ModelServerSettings(
        model_name="model",
        model_socket=str(tmp_path / "model.sock"),
        handler="simulated",
        cache_folder=str(tmp_path),
    )
    service = Sick(settings, None, DeviceThread(asyncio.get_running_loop()))
    async with TestClient(TestServer(make_app(service, Regions({}, {})))) as client:
        answer = await client.get("/v2/health/live")
        assert (answer.status, await answer.json()) == (503, {"live": False})
