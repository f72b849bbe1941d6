"""A model whose accelerator is missing is not served many times slower in silence."""

import logging

import pytest

from batchedmodel_contract.link.model_state import ON_THE_CPU, ModelState
from batchedmodel_contract.processes.environment import AcceleratorNeed, ModelServerSettings
from batchedmodel_model_server.api.handler import Handler
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.execution.device_thread import DeviceThread
from batchedmodel_model_server.execution.forward import LoadedModel
from batchedmodel_model_server.lifecycle.loading import load
from batchedmodel_model_server.lifecycle.service import ModelService
from support.model_server_handlers import Echo

torch = pytest.importorskip("torch")


class Ours(Echo):
    """Leaves the choice of its device to the server."""

    device = Handler.device


@pytest.fixture(autouse=True)
def no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a node whose driver is missing."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def settings(
    monkeypatch: pytest.MonkeyPatch, kind: type[Handler], need: AcceleratorNeed
) -> ModelServerSettings:
    """Of this handler."""
    monkeypatch.setattr(f"{Echo.__module__}.Named", kind, raising=False)
    return ModelServerSettings(
        model_name="m",
        model_socket="unused",
        cache_folder="unused",
        handler=f"{Echo.__module__}:Named",
        accelerator=need,
    )


def test_a_model_that_requires_an_accelerator_does_not_load_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(CannotLoad) as caught:
        load(settings(monkeypatch, Ours, AcceleratorNeed.REQUIRED), None)
    told = str(caught.value)
    assert told.startswith("spec.accelerator asks for an accelerator, and torch finds none: ")
    assert f"torch {torch.__version__}" in told


def test_a_handler_that_names_its_device_itself_is_let_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert load(settings(monkeypatch, Echo, AcceleratorNeed.REQUIRED), None).device == "host"


@pytest.mark.parametrize("need", [AcceleratorNeed.NONE, AcceleratorNeed.WANTED])
def test_where_it_is_only_wanted_the_log_says_that_the_cpu_computes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, need: AcceleratorNeed
) -> None:
    loaded: LoadedModel = load(settings(monkeypatch, Ours, need), None)
    assert loaded.device == "cpu"
    said = [
        record.levelno for record in caplog.records if record.message.startswith(f"{ON_THE_CPU}: ")
    ]
    assert said == ([] if need is AcceleratorNeed.NONE else [logging.ERROR])


async def test_the_model_has_failed_and_its_state_says_why(
    monkeypatch: pytest.MonkeyPatch, compute: DeviceThread
) -> None:
    service = ModelService(settings(monkeypatch, Ours, AcceleratorNeed.REQUIRED), None, compute)
    await service.bring_up()
    assert service.lifecycle.state is ModelState.FAILED
    assert "spec.accelerator asks" in service.lifecycle.event.detail
    assert service.live, "a restart would not help"
    await service.drain()
