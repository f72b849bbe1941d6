"""How a version ends, and a server in the middle of changes: nobody waits for ever."""

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_model_server.errors import CannotLoad, NotReady
from support.model_server_handlers import Times, batch_of, version_of
from support.versions import MakeService, ask, states, until_gone

TOLD = "the server was told to stop"


async def two_versions(
    tmp_path: Path, make_versions: MakeService, kind: type[Times] = Times
) -> Any:
    """A service whose version 2 has taken the place of 1, which is still there."""
    version_of(tmp_path / "model" / "1", factor=1)
    service = make_versions(kind)
    await service.bring_up()
    version_of(tmp_path / "model" / "2", factor=2)
    await service.load()
    return service


@pytest.mark.slow
async def test_a_version_that_is_being_unloaded_takes_no_batch_and_answers_those_it_took(
    tmp_path: Path, make_versions: MakeService
) -> None:
    service = await two_versions(tmp_path, make_versions)
    with service.admitted("1") as runner:
        service.of("1").release()
        await asyncio.sleep(0.01)
        with pytest.raises(NotReady, match="m version 1 is DRAINING: version 2 serves in its plac"):
            await ask(service, "1")
        assert not service.of("1").gone.is_set()
        assert (await runner.run(batch_of(x=[[1]]))).statuses == (200,)
    await until_gone(service, "1")
    assert await ask(service) == 2


@pytest.mark.slow
async def test_a_load_is_refused_while_the_model_is_on_its_way_out(
    tmp_path: Path, make_versions: MakeService
) -> None:
    version_of(tmp_path / "model" / "1", factor=1)
    service = make_versions()
    await service.bring_up()
    with service.admitted():
        unloading = asyncio.create_task(service.unload())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(NotReady, match="m is DRAINING: unloaded because somebody asked"):
            await service.load()
    await unloading
    await service.load()
    assert await ask(service) == 1
    await service.drain()
    for change in (service.load, service.unload):
        with pytest.raises(NotReady, match=f"m is DRAINING: {TOLD}"):
            await change()


async def test_an_order_to_stop_ends_a_load_that_is_under_way_and_whoever_asked_is_told(
    tmp_path: Path, make_versions: MakeService
) -> None:
    entered, gate = threading.Event(), threading.Event()

    class Gated(Times):
        def load(self, path: Path | None, device: str) -> None:
            super().load(path, device)
            if self.factor == 2:
                entered.set()
                assert gate.wait(20)

    version_of(tmp_path / "model" / "1", factor=1)
    service = make_versions(Gated)
    await service.bring_up()
    version_of(tmp_path / "model" / "2", factor=2)
    loads = [asyncio.create_task(service.load()) for _ in range(2)]
    assert await asyncio.to_thread(entered.wait, 5)
    await asyncio.wait_for(service.drain(), 5)
    for outcome in await asyncio.gather(*loads, return_exceptions=True):
        assert isinstance(outcome, NotReady)
    assert states(service) == [("1", "UNLOADED"), ("2", "FAILED")]
    gate.set()


@pytest.mark.slow
async def test_an_order_to_stop_lets_an_unload_that_is_under_way_end_with_its_batches(
    tmp_path: Path, make_versions: MakeService
) -> None:
    unloaded: list[int] = []

    class Noted(Times):
        def unload(self) -> None:
            unloaded.append(self.factor)

    service = await two_versions(tmp_path, make_versions, Noted)
    with service.admitted() as runner:
        unloading = asyncio.create_task(service.unload())
        await asyncio.sleep(0.1)
        draining = asyncio.create_task(service.drain())
        done, _ = await asyncio.wait([draining], timeout=0.2)
        assert not done, "a batch that was accepted has no answer yet"
        assert (await runner.run(batch_of(x=[[1]]))).statuses == (200,)
    await asyncio.wait_for(asyncio.gather(unloading, draining), 5)
    assert sorted(unloaded) == [1, 2]
    assert states(service) == [("1", "UNLOADED"), ("2", "UNLOADED")]
    assert service.lifecycle.event.detail == TOLD


@pytest.mark.slow
async def test_an_end_does_not_wait_for_ever_for_a_handler_that_does_not_unload(
    tmp_path: Path, make_versions: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchedmodel_model_server.lifecycle.service._GIVE_BACK_SECONDS", 0.1)
    gate = threading.Event()

    class Clinging(Times):
        def unload(self) -> None:
            assert gate.wait(20)

    version_of(tmp_path / "model" / "1", factor=1)
    service = make_versions(Clinging)
    await service.bring_up()
    unloading = asyncio.create_task(service.unload())
    await asyncio.sleep(0.1)
    await asyncio.wait_for(service.drain(), 5)
    gate.set()
    await asyncio.wait_for(unloading, 180)


async def test_memory_that_cannot_be_given_back_keeps_nobody_waiting(
    tmp_path: Path,
    make_versions: MakeService,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("the device does not answer")

    monkeypatch.setattr("batchedmodel_model_server.lifecycle.service.return_memory", failing)
    service = await two_versions(tmp_path, make_versions)
    service.of("1").release()
    await until_gone(service, "1")
    assert states(service) == [("1", "UNLOADED"), ("2", "READY")]
    assert "version 1: not all of its memory was given back" in caplog.text
    await asyncio.wait_for(service.unload(), 5)
    assert service.lifecycle.state is ModelState.UNLOADED


class Circular(Times):
    """Refers to itself, so that nothing but the collector finds it."""

    def load(self, path: Path | None, device: str) -> None:
        super().load(path, device)
        self.myself = self


def noting(kind: type[Times]) -> tuple[type[Times], list[int]]:
    """The same kind of handler, and the factors of those that exist."""
    alive: list[int] = []

    class Noted(kind):  # type: ignore[misc, valid-type]
        def load(self, path: Path | None, device: str) -> None:
            super().load(path, device)
            alive.append(self.factor)

        def __del__(self) -> None:
            alive.remove(self.factor)

    return Noted, alive


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "everything"), [(Times, False), (Circular, True)])
async def test_beside_a_version_that_serves_everything_is_searched_only_for_what_is_left(
    tmp_path: Path, make_versions: MakeService, kind: type[Times], everything: bool
) -> None:
    noted, alive = noting(kind)
    version_of(tmp_path / "model" / "1", factor=1)
    service = make_versions(noted)
    await service.bring_up()
    gc.freeze()
    try:
        version_of(tmp_path / "model" / "2", factor=2)
        await service.load()
        young: list[int] = []
        service.of("1").release()
        await until_gone(service, "1")
        assert alive == [2]
        # What the collector has been through is frozen behind it.
        assert any(one is young for one in gc.get_objects()) is not everything
    finally:
        gc.unfreeze()


@pytest.mark.slow
async def test_of_a_version_that_failed_in_warm_up_nothing_is_left(
    tmp_path: Path, make_versions: MakeService
) -> None:
    noted, alive = noting(Times)
    version_of(tmp_path / "model" / "1", factor=1)
    service = make_versions(noted)
    await service.bring_up()
    version_of(tmp_path / "model" / "2", factor=0)
    young: list[int] = []
    with pytest.raises(CannotLoad, match="failed in warm-up"):
        await service.load()
    async with asyncio.timeout(10):  # the thread that told lets go of it when it goes on
        while alive != [1]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert any(one is young for one in gc.get_objects()), "and not everything was searched for it"
