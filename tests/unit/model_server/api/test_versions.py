"""Versions of a model: loaded beside the one that serves, swapped, unloaded, told apart."""

import asyncio
import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_model_server.api.handler import Batch, Handler
from batchedmodel_model_server.errors import CannotLoad, NotReady, UnknownModel
from support.lifecycle_events import followed
from support.model_server_handlers import Times, batch_of, version_of
from support.versions import MakeService, ask, states, until_gone


@pytest.mark.slow
async def test_the_highest_number_is_served_and_a_higher_one_takes_its_place(
    tmp_path: Path, make_versions: MakeService
) -> None:
    for number in (2, 10):
        version_of(tmp_path / "model" / str(number), factor=number)
    (tmp_path / "model" / "011").mkdir()
    service = make_versions()
    await service.bring_up()
    assert await ask(service) == 10
    assert service.lifecycle.event.version == "10"
    assert service.of().served.description.version == "10"
    version_of(tmp_path / "model" / "11", factor=11)
    await service.load()
    assert await ask(service) == 11
    assert service.lifecycle.event.version == "11"
    assert await ask(service, "10") == 10, "requests that were read for it may be under way"
    assert states(service) == [("10", "DRAINING"), ("11", "READY")]
    service.of("10").release()
    await until_gone(service, "10")
    with pytest.raises(NotReady, match="m version 10 is UNLOADED: version 11 serves in its place"):
        await ask(service, "10")
    with pytest.raises(UnknownModel, match="'9' of model 'm' is not known"):
        await ask(service, "9")
    assert [row["version"] for row in service.index(ready_only=True)] == ["11"]


async def test_other_files_in_the_same_folder_are_another_version_and_the_same_are_none(
    tmp_path: Path, make_versions: MakeService
) -> None:
    version_of(tmp_path / "model", factor=3)
    service = make_versions()
    await service.bring_up()
    compiled = tmp_path / "model" / "__pycache__"
    compiled.mkdir()
    (compiled / "handler.cpython-311.pyc").write_bytes(b"what an import leaves")
    await service.load()
    assert states(service) == [("1", "READY")]
    (tmp_path / "model" / "factor.txt").write_text("44")
    await service.load()
    assert await ask(service) == 44
    assert states(service) == [("1", "DRAINING"), ("2", "READY")]


@pytest.mark.slow
async def test_a_version_goes_back_to_the_one_before_when_its_folder_is_taken_away(
    tmp_path: Path, make_versions: MakeService
) -> None:
    for number in (1, 2):
        version_of(tmp_path / "model" / str(number), factor=number)
    service = make_versions()
    await service.bring_up()
    (tmp_path / "model" / "2").rename(tmp_path / "bad")
    await service.load()
    assert await ask(service) == 1
    (tmp_path / "bad").rename(tmp_path / "model" / "2")
    back = asyncio.create_task(service.load())
    await asyncio.sleep(0.05)
    assert not back.done(), "two versions of one name at a time would be mixed up"
    service.of("2").release()
    await back
    assert await ask(service) == 2
    assert states(service) == [("1", "DRAINING"), ("2", "READY")]


async def test_the_files_of_a_served_number_must_not_change(
    tmp_path: Path, make_versions: MakeService
) -> None:
    version_of(tmp_path / "model" / "1", factor=1)
    service = make_versions()
    await service.bring_up()
    (tmp_path / "model" / "1" / "factor.txt").write_text("5")
    with pytest.raises(CannotLoad, match="need a number of their own"):
        await service.load()
    assert await ask(service) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "reason"),
    [("none", "failed to load: ValueError"), ("0", "failed in warm-up: the model failed")],
    ids=["load", "warm-up"],
)
async def test_a_new_version_that_fails_leaves_the_old_one_serving_and_says_why(
    tmp_path: Path, make_versions: MakeService, factor: str, reason: str
) -> None:
    version_of(tmp_path / "model" / "1", factor=1)
    service = make_versions()
    await service.bring_up()
    states_heard = followed(service.lifecycle)
    assert (await anext(states_heard)).version == "1"
    version_of(tmp_path / "model" / "2", factor=2)
    (tmp_path / "model" / "2" / "factor.txt").write_text(factor)
    with pytest.raises(CannotLoad, match=reason):
        await service.load()
    assert await ask(service) == 1
    assert states(service) == [("1", "READY"), ("2", "FAILED")]
    assert reason in service.index()[1]["reason"]
    (tmp_path / "model" / "2" / "factor.txt").write_text("2")
    await service.load()
    assert await ask(service) == 2
    # Of the failure nothing was told to those who follow the model.
    assert (await anext(states_heard)).version == "2"


async def test_a_source_that_went_away_leaves_the_old_one_serving(
    tmp_path: Path, make_versions: MakeService
) -> None:
    version_of(tmp_path / "model", factor=1)
    service = make_versions()
    await service.bring_up()
    (tmp_path / "model").rename(tmp_path / "gone")
    with pytest.raises(CannotLoad, match="is not a folder"):
        await service.load()
    assert await ask(service) == 1
    assert states(service) == [("1", "READY"), (None, "FAILED")]


async def test_batches_are_answered_while_a_new_version_loads_and_between_its_trial_passes(
    tmp_path: Path, make_versions: MakeService
) -> None:
    loading, warming, gate = threading.Event(), threading.Event(), threading.Event()
    threads: set[str] = set()

    class Gated(Times):
        def load(self, path: Path | None, device: str) -> None:
            super().load(path, device)
            if self.factor == 2:
                loading.set()
                assert gate.wait(20)

        def forward(self, batch: Batch) -> Any:
            threads.add(threading.current_thread().name)
            if self.factor == 2:
                warming.set()
            return super().forward(batch)

    version_of(tmp_path / "model" / "1", factor=1)
    service = make_versions(Gated)
    await service.bring_up()
    version_of(tmp_path / "model" / "2", factor=2)
    change = asyncio.create_task(service.load())
    assert await asyncio.to_thread(loading.wait, 5)
    assert await ask(service) == 1
    assert states(service) == [("1", "READY"), ("2", "LOADING")]
    assert not warming.is_set()
    gate.set()
    answered = 0
    while not change.done():
        answered += await ask(service)
    assert answered
    await change
    assert warming.is_set()
    assert threads == {"compute"}


@pytest.mark.slow
async def test_what_is_unloaded_gives_its_memory_back_and_can_be_loaded_again(
    tmp_path: Path, make_versions: MakeService
) -> None:
    weights: weakref.WeakSet[Handler] = weakref.WeakSet()

    class Noted(Times):
        def load(self, path: Path | None, device: str) -> None:
            super().load(path, device)
            weights.add(self)

    version_of(tmp_path / "model" / "1", factor=1)
    service = make_versions(Noted)
    await service.bring_up()
    version_of(tmp_path / "model" / "2", factor=2)
    await service.load()
    service.of("1").release()
    await until_gone(service, "1")
    assert len(weights) == 1
    asking = [asyncio.create_task(ask(service)) for _ in range(3)]
    await asyncio.sleep(0)
    await service.unload()
    assert [await one for one in asking] == [2, 2, 2]
    gc.collect()
    assert not weights
    assert service.lifecycle.state is ModelState.UNLOADED
    assert not service.ready
    assert service.live
    with pytest.raises(NotReady, match="m is UNLOADED: unloaded because somebody asked for it"):
        await ask(service)
    await service.unload()
    await service.load()
    assert await ask(service) == 2
    assert states(service) == [("1", "UNLOADED"), ("2", "READY")]


@pytest.mark.slow
async def test_a_model_that_refers_to_itself_is_given_back_even_if_it_was_frozen(
    tmp_path: Path, make_versions: MakeService
) -> None:
    weights: weakref.WeakSet[Handler] = weakref.WeakSet()

    class Circular(Times):
        def load(self, path: Path | None, device: str) -> None:
            super().load(path, device)
            self.myself = self
            weights.add(self)

    version_of(tmp_path / "model", factor=1)
    service = make_versions(Circular)
    await service.bring_up()
    gc.freeze()
    try:
        await service.unload()
        assert not weights
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


async def test_a_caller_that_leaves_does_not_stop_a_load_half_way(
    tmp_path: Path, make_versions: MakeService
) -> None:
    version_of(tmp_path / "model" / "1", factor=1)
    service = make_versions()
    await service.bring_up()
    version_of(tmp_path / "model" / "2", factor=2, seconds=0.1)
    leaving = asyncio.create_task(service.load())
    await asyncio.sleep(0.02)
    leaving.cancel()
    await asyncio.wait([leaving])
    await service.load()
    assert await ask(service) == 2
    assert states(service) == [("1", "DRAINING"), ("2", "READY")]


@pytest.mark.slow
async def test_a_replaced_version_ends_when_nobody_has_asked_it_for_a_while(
    tmp_path: Path, make_versions: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchedmodel_model_server.lifecycle.service.QUIET_SECONDS", 0.1)
    version_of(tmp_path / "model" / "1", factor=1)
    service = make_versions()
    await service.bring_up()
    service.of("1").release()  # too early: it counts for what was replaced
    version_of(tmp_path / "model" / "2", factor=2)
    await service.load()
    with service.admitted("1") as runner:
        await asyncio.sleep(0.2)
        assert (await runner.run(batch_of(x=[[1]]))).statuses == (200,)
    await until_gone(service, "1")


@pytest.mark.slow
async def test_only_the_last_few_versions_that_ended_are_remembered(
    tmp_path: Path, make_versions: MakeService
) -> None:
    version_of(tmp_path / "model" / "1", factor=1)
    service = make_versions()
    await service.bring_up()
    for number in range(2, 14):
        version_of(tmp_path / "model" / str(number), factor=0)
        with pytest.raises(CannotLoad):
            await service.load()
    assert len(service.index()) <= 10
    assert states(service)[0] == ("1", "READY")
