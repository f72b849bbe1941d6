"""A model that generates, through its life in one process."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from batchedmodel_contract.generation.frames import (
    Cancel,
    Configure,
    Refusal,
    Refused,
    StepReport,
    Submit,
    Token,
)
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_contract.processes.environment import ModelServerSettings
from batchedmodel_model_server.errors import NotReady
from batchedmodel_model_server.execution.device_thread import DeviceThread
from batchedmodel_model_server.generation.engine_loop import Caller, EngineLoop
from batchedmodel_model_server.lifecycle.loading import load
from batchedmodel_model_server.lifecycle.service import MAX_IN_FLIGHT, ModelService
from support.engine_frames import submit
from support.model_server_handlers import Echo, batch_of

MakeService = Callable[..., ModelService]


def settings(folder: Path, handler: str = "simulated", **parameters: str) -> ModelServerSettings:
    return ModelServerSettings(
        model_name="m",
        model_socket=str(folder / "model.sock"),
        handler=handler,
        parameters=tuple({"stepSeconds": "0.002", "generates": "true", **parameters}.items()),
        max_batch_size=2,
        cache_folder=str(folder),
    )


class Asking:
    """A caller of the engine that serves."""

    def __init__(self, engine: EngineLoop) -> None:
        self._engine = engine
        self.tokens: list[Token] = []
        self.refused: list[Refused] = []
        self.ended = asyncio.Event()
        self.told = asyncio.Event()
        self.caller: Caller = engine.join(self._sent, self.ended.set)

    def ask(self, *frames: Submit | Cancel | Configure) -> None:
        for frame in frames:
            self._engine.take(self.caller, frame)

    def _sent(self, frame: StepReport | Refused) -> None:
        if isinstance(frame, StepReport):
            self.tokens += frame.tokens
        else:
            self.refused.append(frame)
        if self.tokens or self.refused:
            self.told.set()


def engine_of(service: ModelService) -> EngineLoop:
    """That of the version that serves."""
    assert service.serving is not None
    engine = service.serving.engine
    assert engine is not None
    return engine


async def test_it_is_described_and_has_an_engine_once_it_is_warm(
    tmp_path: Path, compute: DeviceThread
) -> None:
    service = ModelService(settings(tmp_path, blocks="10"), None, compute)
    assert service.serving is None
    await service.bring_up()
    description = service.of().served.generation
    assert description is not None
    # A text has a block at least.
    assert (description.blocks, description.max_sequences) == (10, 10)
    assert description.max_context_tokens == 160
    assert service.of().served.tokenizer
    assert engine_of(service) is not None
    await service.drain()


async def test_an_unload_waits_for_its_texts_and_takes_no_others(
    tmp_path: Path, compute: DeviceThread
) -> None:
    service = ModelService(settings(tmp_path), None, compute)
    await service.bring_up()
    asking = Asking(engine_of(service))
    asking.ask(submit(1, max_tokens=60))
    await asking.told.wait()
    unloading = asyncio.create_task(service.unload())
    await asyncio.sleep(0.06)
    asking.ask(submit(2))
    assert [(one.id, one.why) for one in asking.refused] == [(2, Refusal.BUSY)]
    assert "m is DRAINING" in asking.refused[0].message
    await unloading
    assert len(asking.tokens) == 60
    assert asking.ended.is_set()
    assert service.serving is None
    with pytest.raises(NotReady):
        _ = service.of().served.generation
    await service.load()
    assert service.lifecycle.state is ModelState.READY
    assert engine_of(service) is not None
    await service.drain()


async def test_texts_take_no_batch_its_place(tmp_path: Path, compute: DeviceThread) -> None:
    service = ModelService(settings(tmp_path), None, compute)
    await service.bring_up()
    asking = Asking(engine_of(service))
    asking.ask(*(submit(number, max_tokens=900) for number in range(MAX_IN_FLIGHT)))
    await asking.told.wait()
    with service.admitted() as runner:
        assert (await runner.run(batch_of(x=[[1]]))).statuses == (200,)
    engine_of(service).leave(asking.caller)
    await service.drain()


class Remembering(Echo):
    """Keeps what the manifest asks of its cache."""

    def load(self, path: Path | None, device: str) -> None:
        assert self.cache is not None
        self.seen = self.cache


def test_a_handler_knows_the_manifests_bounds_of_the_cache_before_it_loads(tmp_path: Path) -> None:
    plain = replace(settings(tmp_path), handler=f"{__name__}:Remembering", parameters=())
    told = replace(plain, kv_cache_bytes=1 << 30, kv_cache_fraction=0.5, max_context_tokens=99)
    seen = [load(one, None).handler.cache for one in (plain, told)]
    assert [(one.memory_bytes, one.fraction, one.max_context_tokens) for one in seen] == [
        (None, None, None),
        (1 << 30, 0.5, 99),
    ]
