"""A model's life in one process: brought up, asked, drained."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from batchedmodel_contract.batch_wire import BatchReply
from batchedmodel_contract.environment import ModelServerSettings
from batchedmodel_contract.server_api import ModelState
from batchedmodel_contract.spec import Source
from batchedmodel_model_server.compute import ComputeThread
from batchedmodel_model_server.errors import CannotLoad, NotReady, Overloaded
from batchedmodel_model_server.handler import Batch, Handler
from batchedmodel_model_server.service import MAX_IN_FLIGHT, ModelService, load
from support.model_server_handlers import Echo, batch_of

MakeService = Callable[[type[Handler]], ModelService]


@pytest_asyncio.fixture
async def make_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MakeService]:
    """Makes the service of a handler class, as a manifest would name it."""
    compute = ComputeThread(asyncio.get_running_loop())
    compute.start()

    def make(kind: type[Handler]) -> ModelService:
        monkeypatch.setattr(f"{Echo.__module__}.Named", kind, raising=False)
        settings = ModelServerSettings(
            model_name="model",
            model_socket=str(tmp_path / "model.sock"),
            handler=f"{Echo.__module__}:Named",
            max_batch_size=2,
            cache_folder=str(tmp_path),
        )
        return ModelService(settings, None, compute)

    yield make
    compute.finish()
    compute.join(5)


async def ask(service: ModelService) -> BatchReply:
    with service.admitted() as runner:
        return await runner.run(batch_of(x=[[1]]))


async def test_a_model_is_asked_only_while_it_is_ready(make_service: MakeService) -> None:
    service = make_service(Echo)
    with pytest.raises(NotReady, match="model is LOADING"):
        await ask(service)
    with pytest.raises(NotReady):
        _ = service.profile
    await service.bring_up()
    assert (await ask(service)).statuses == (200,)
    assert service.profile.points
    await service.drain()
    with pytest.raises(NotReady, match="model is DRAINING"):
        await ask(service)


async def test_a_drain_ends_after_the_last_answer_and_unloads_the_model(
    make_service: MakeService,
) -> None:
    happened: list[str] = []

    class Noting(Echo):
        def forward(self, batch: Batch) -> Any:
            happened.append("forward")
            return super().forward(batch)

        def unload(self) -> None:
            happened.append("unload")

    service = make_service(Noting)
    await service.bring_up()
    happened.clear()
    answers = [asyncio.create_task(ask(service)) for _ in range(3)]
    await asyncio.sleep(0)
    await service.drain()
    assert happened == ["forward", "forward", "forward", "unload"]
    assert all([(await answer).statuses == (200,) for answer in answers])


async def test_a_batch_that_arrives_with_the_order_to_stop_is_answered(
    make_service: MakeService,
) -> None:
    service = make_service(Echo)
    await service.bring_up()
    draining = asyncio.create_task(service.drain())
    await asyncio.sleep(0)
    assert not service.ready
    assert (await ask(service)).statuses == (200,)
    await draining


async def test_a_drain_waits_for_a_batch_whose_body_is_still_on_its_way(
    make_service: MakeService,
) -> None:
    service = make_service(Echo)
    await service.bring_up()
    with service.admitted() as runner:
        draining = asyncio.create_task(service.drain())
        done, _ = await asyncio.wait([draining], timeout=0.2)
        assert not done
        assert (await runner.run(batch_of(x=[[1]]))).statuses == (200,)
    await draining


async def test_a_handler_that_fails_to_unload_does_not_hinder_the_end(
    make_service: MakeService,
) -> None:
    class Clinging(Echo):
        def unload(self) -> None:
            raise RuntimeError("no")

    service = make_service(Clinging)
    await service.bring_up()
    await service.drain()
    assert service.lifecycle.state is ModelState.DRAINING


async def test_a_model_that_fails_in_warm_up_is_failed(make_service: MakeService) -> None:
    class Failing(Echo):
        def forward(self, batch: Batch) -> Any:
            raise RuntimeError("out of luck")

    service = make_service(Failing)
    await service.bring_up()
    assert service.lifecycle.state is ModelState.FAILED
    assert "failed in warm-up: the model failed: RuntimeError" in service.lifecycle.event.detail


async def test_a_handler_that_predicts_badly_is_failed(make_service: MakeService) -> None:
    class Confused(Echo):
        def predicted_seconds(self, rows: int, length: int) -> float:
            raise ZeroDivisionError("no idea")

    service = make_service(Confused)
    await service.bring_up()
    assert service.lifecycle.event.detail == "ZeroDivisionError: no idea"


async def test_batches_beyond_the_bound_are_refused(make_service: MakeService) -> None:
    service = make_service(Echo)
    await service.bring_up()
    outcomes = await asyncio.gather(
        *(ask(service) for _ in range(MAX_IN_FLIGHT + 5)),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, Overloaded) for outcome in outcomes) == 5


HANDLER = """
from batchedmodel_model_server.handler import Handler, Spec

class Beside(Handler):
    inputs = {"x": Spec("INT64", ("L",), max=9)}
    outputs = {"y": Spec("INT64", ("L",))}

    def device(self):
        return "host"

    def load(self, path, device):
        self.factor = int((path / "factor.txt").read_text())

    def forward(self, batch):
        return {"y": batch.array("x") * self.factor}
"""


def test_a_handler_in_a_file_is_loaded_from_the_models_folder(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text(HANDLER)
    (tmp_path / "factor.txt").write_text("3")
    settings = ModelServerSettings(
        model_name="model",
        model_socket=str(tmp_path / "model.sock"),
        handler="handler.py:Beside",
        trust=True,
        cache_folder=str(tmp_path),
    )
    source = Source(path=str(tmp_path))
    assert load(settings, source).handler.inputs["x"].max == 9
    with pytest.raises(CannotLoad, match="run only with spec.model.trust: true"):
        load(replace(settings, trust=False), source)
