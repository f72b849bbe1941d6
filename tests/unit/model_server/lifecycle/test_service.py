"""A model's life in one process: brought up, asked, drained."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from batchedmodel_contract.inference.batch import BatchReply
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_contract.manifest.source import Source
from batchedmodel_contract.processes.environment import ModelServerSettings
from batchedmodel_model_server.api.handler import Batch, Handler
from batchedmodel_model_server.errors import CannotLoad, DeviceLost, NotReady, Overloaded
from batchedmodel_model_server.execution.device_thread import DeviceThread
from batchedmodel_model_server.lifecycle.loading import StartUp, load
from batchedmodel_model_server.lifecycle.service import MAX_IN_FLIGHT, ModelService
from batchedmodel_model_server.lifecycle.versions import Topic
from support.hostile_tokenizers import Panic
from support.lifecycle_events import changed, followed
from support.model_server_handlers import Echo, batch_of

MakeService = Callable[[type[Handler]], ModelService]


@pytest_asyncio.fixture
async def make_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compute: DeviceThread
) -> AsyncIterator[MakeService]:
    """Makes the service of a handler class, as a manifest would name it."""

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


async def ask(service: ModelService, number: int = 1) -> BatchReply:
    with service.admitted() as runner:
        return await runner.run(batch_of(x=[[number]]))


async def test_a_model_is_asked_only_while_it_is_ready(make_service: MakeService) -> None:
    service = make_service(Echo)
    with pytest.raises(NotReady, match="model is LOADING"):
        await ask(service)
    with pytest.raises(NotReady):
        _ = service.of().served.profile
    await service.bring_up()
    assert service.lifecycle.event.detail.startswith("ready on host in FP32 after ")
    assert service.of().served.description.to_metadata()["batchedmodel"]["precision"] == "FP32"
    assert (await ask(service)).statuses == (200,)
    assert service.of().served.profile.points
    await service.drain()
    with pytest.raises(NotReady, match="model is DRAINING"):
        await ask(service)


async def test_a_restart_that_takes_a_profile_over_says_so_and_tells_its_own_phases(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Real times would depend on whatever else runs on the machine.
    monkeypatch.setattr("batchedmodel_model_server.profiling.trial.slowness", lambda *_: 1.0)
    profiles = []
    for age in (1.0, 2.0):
        service = make_service(Echo)
        await service.bring_up(StartUp(age))
        profiles.append(service.of().served.profile)
        assert f"process {age:.2f}, imports " in service.lifecycle.event.detail
    first, second = profiles
    assert (first.cached, second.cached) == (False, True)
    assert second.points == first.points
    phases = ["process", "imports", "fetch", "load", "self-tests", "warm-up"]
    assert [name for name, _ in second.start_up] == phases
    assert (first.start_up[0], second.start_up[0]) == (("process", 1.0), ("process", 2.0))


async def whole_profile(service: ModelService) -> None:
    """Wait until the whole profile is told."""
    async with asyncio.timeout(60):
        if service.of().served.profile.partial:
            await changed(service.lifecycle, Topic.PROFILE)
    assert service.lifecycle.state is ModelState.READY


async def test_a_model_is_ready_with_a_partial_profile_that_becomes_whole(
    make_service: MakeService,
) -> None:
    service = make_service(Echo)
    await service.bring_up(StartUp(1.0))
    partial = service.of().served.profile
    assert partial.partial
    assert (await ask(service)).statuses == (200,)
    await whole_profile(service)
    whole = service.of().served.profile
    assert not whole.partial
    assert set(partial.points) < set(whole.points)
    assert whole.start_up == partial.start_up
    assert (await ask(service)).statuses == (200,)
    await service.drain()


async def test_a_drain_ends_what_is_measured_in_idle_moments(make_service: MakeService) -> None:
    passes: list[int] = []

    class Noting(Echo):
        def forward(self, batch: Batch) -> Any:
            passes.append(batch.rows)
            return super().forward(batch)

    service = make_service(Noting)
    await service.bring_up()
    at_first = len(passes)
    await service.drain()
    await asyncio.sleep(0.2)  # longer than a moment must be idle
    assert len(passes) == at_first


class Held(Echo):
    """Its passes wait for a test, once it holds them."""

    holds, begun, goes_on = False, threading.Event(), threading.Event()
    unloaded = threading.Event()

    def forward(self, batch: Batch) -> Any:
        """Echo, when the test says so."""
        if Held.holds:
            Held.begun.set()
            Held.goes_on.wait(60)
        return super().forward(batch)

    def unload(self) -> None:
        """Say so."""
        Held.unloaded.set()


async def test_an_unload_in_the_middle_of_an_idle_pass_waits_for_its_end_and_no_other_begins(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("begun", "goes_on", "unloaded"):
        monkeypatch.setattr(Held, name, threading.Event())
    service = make_service(Held)
    await service.bring_up()
    monkeypatch.setattr(Held, "holds", True)
    async with asyncio.timeout(60):
        await asyncio.to_thread(Held.begun.wait, 60)
        unloading = asyncio.create_task(service.unload())
        async for event in followed(service.lifecycle):
            if event.state is ModelState.DRAINING:
                break
        Held.begun.clear()
        assert not Held.unloaded.is_set()
        Held.goes_on.set()
        await unloading
    assert Held.unloaded.is_set()
    assert not Held.begun.is_set()
    assert service.lifecycle.state is ModelState.UNLOADED
    await service.load()
    assert (await ask(service)).statuses == (200,)
    await service.drain()


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


class Losing(Echo):
    """Loses its device over a 13, and takes its time with a 14."""

    gate = threading.Event()

    def forward(self, batch: Batch) -> Any:
        if (batch.array("x") == 13).any():
            raise DeviceLost("the device is lost: asserted")
        if (batch.array("x") == 14).any():
            assert self.gate.wait(20)
        return super().forward(batch)


async def test_a_lost_device_ends_the_server_and_whoever_was_at_work_is_told(
    make_service: MakeService,
) -> None:
    service = make_service(Losing)
    await service.bring_up()
    assert service.live
    with pytest.raises(DeviceLost, match="asserted"):
        await ask(service, 13)
    assert service.lost.is_set()
    assert not service.live
    assert service.lifecycle.event.state is ModelState.LOST
    assert service.lifecycle.event.detail == "the device is lost: asserted"
    with pytest.raises(NotReady, match="model is LOST"):
        await ask(service)
    await asyncio.wait_for(service.drain(), 1)


async def test_a_device_is_known_to_be_lost_though_nobody_waits_for_the_batch_any_more(
    make_service: MakeService,
) -> None:
    entered, gate = threading.Event(), threading.Event()

    class LosingLate(Echo):
        def forward(self, batch: Batch) -> Any:
            if (batch.array("x") != 13).all():
                return super().forward(batch)
            entered.set()
            assert gate.wait(5)
            raise DeviceLost("the device is lost")

    service = make_service(LosingLate)
    await service.bring_up()
    asking = asyncio.create_task(ask(service, 13))
    await asyncio.to_thread(entered.wait, 5)
    asking.cancel()
    await asyncio.wait([asking])
    gate.set()
    await asyncio.wait_for(service.lost.wait(), 5)
    assert service.lifecycle.state is ModelState.LOST


async def test_a_device_that_is_lost_in_a_drain_ends_it(make_service: MakeService) -> None:
    service = make_service(Losing)
    await service.bring_up()
    with service.admitted():  # a batch that never comes
        draining = asyncio.create_task(service.drain())
        await asyncio.sleep(0)
        with pytest.raises(DeviceLost):
            await ask(service, 13)
        await asyncio.wait_for(draining, 5)
    assert service.lost.is_set()


async def test_a_device_that_is_lost_in_warm_up_ends_the_server(make_service: MakeService) -> None:
    class Lost(Echo):
        def forward(self, batch: Batch) -> Any:
            raise DeviceLost("the device is lost")

    service = make_service(Lost)
    await service.bring_up()
    assert service.lost.is_set()
    assert service.lifecycle.state is ModelState.LOST


async def test_a_device_that_is_lost_in_loading_ends_the_server(make_service: MakeService) -> None:
    class Lost(Echo):
        def load(self, path: Path | None, device: str) -> None:
            raise DeviceLost("the device is lost")

    service = make_service(Lost)
    await service.bring_up()
    assert service.lost.is_set()
    assert service.lifecycle.state is ModelState.LOST


async def test_a_pass_that_hangs_is_told_and_so_is_that_it_ended_after_all(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchedmodel_model_server.execution.watchdog.LEAST_SECONDS", 0.1)
    service = make_service(Losing)
    await service.bring_up()
    states = followed(service.lifecycle)
    assert (await anext(states)).state is ModelState.READY
    asking = asyncio.create_task(ask(service, 14))
    hung = await asyncio.wait_for(anext(states), 5)
    assert hung.state is ModelState.HUNG
    assert "a forward pass has run for" in hung.detail
    assert not service.live
    with pytest.raises(NotReady, match="model is HUNG"):
        await ask(service)
    Losing.gate.set()
    assert (await anext(states)).state is ModelState.READY
    assert service.live
    assert (await asking).statuses == (200,)
    assert (await ask(service)).statuses == (200,)


async def test_a_server_whose_pass_hangs_stops_without_waiting_for_it(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchedmodel_model_server.execution.watchdog.LEAST_SECONDS", 0.1)
    Losing.gate.clear()
    service = make_service(Losing)
    await service.bring_up()
    asking = asyncio.create_task(ask(service, 14))
    await asyncio.sleep(0)
    await asyncio.wait_for(service.drain(), 5)
    Losing.gate.set()
    await asking


async def test_what_the_manifest_or_the_handler_forbids_to_run_twice_is_not(
    make_service: MakeService,
) -> None:
    class Impure(Echo):
        idempotent = False

    service = make_service(Impure)
    await service.bring_up()
    assert not service.of().served.description.idempotent
    service = make_service(Echo)
    await service.bring_up()
    assert service.of().served.description.idempotent


async def test_the_profile_tells_what_has_been_learnt_of_the_memory(
    make_service: MakeService,
) -> None:
    class Small(Echo):
        def forward(self, batch: Batch) -> Any:
            if batch.array("x").size > 1000:
                raise MemoryError
            return super().forward(batch)

    service = make_service(Small)
    await service.bring_up()
    assert service.of().served.profile.max_cost == 1500
    with service.admitted() as runner:
        await runner.run(batch_of(x=[[1] * 700] * 2))
    assert service.of().served.profile.max_cost == 1050


async def test_batches_beyond_the_bound_are_refused(make_service: MakeService) -> None:
    service = make_service(Echo)
    await service.bring_up()
    outcomes = await asyncio.gather(
        *(ask(service) for _ in range(MAX_IN_FLIGHT + 5)),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, Overloaded) for outcome in outcomes) == 5


HANDLER = """
from batchedmodel_model_server.api.handler import Handler, Spec

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
    with pytest.raises(CannotLoad, match="run only with spec.model.trustRemoteCode: true"):
        load(replace(settings, trust=False), source)


class PanicsWhileLoading(Echo):
    def load(self, path: Path | None, device: str) -> None:
        raise Panic("a library's")


async def test_model_over_which_a_library_panics_has_failed_with_that_reason(
    make_service: MakeService,
) -> None:
    service = make_service(PanicsWhileLoading)
    await service.bring_up()
    event = service.lifecycle.event
    assert event.state is ModelState.FAILED
    assert "failed to load: Panic: a library's (" in event.detail
