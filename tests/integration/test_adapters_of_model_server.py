"""Adapters of a real model server: files that come, change and go, and rows that ask by number."""

import asyncio
import json
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_contract.inference.batch import BatchReply, BatchRequest, ragged
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_contract.lora import ADAPTERS_FILE, AdapterPhase, AdapterState
from batchedmodel_contract.manifest.source import HuggingFace, Source
from batchedmodel_contract.processes.environment import ModelServerSettings
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.lora.serving import AdapterWishes
from support.model_server_hub import hub
from support.model_server_process import ModelServerProcess, model_server

pytestmark = pytest.mark.asyncio

SECONDS = 5.0
"""In which an edit must be in force."""


class Adapting:
    """The server and what it has said of its adapters."""

    def __init__(self, server: ModelServerProcess, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.states: tuple[AdapterState, ...] = ()
        self.changed = asyncio.Condition()

    async def follow(self) -> None:
        async for states in self.server.hop.adapters():
            async with self.changed:
                self.states = states
                self.changed.notify_all()

    async def until(self, **wanted: AdapterPhase) -> dict[str, AdapterState]:
        """The states by name once they are these; an old version beside a new one counts first."""

        def phases() -> dict[str, AdapterPhase]:
            return {one.name: one.phase for one in reversed(self.states)}

        async with asyncio.timeout(SECONDS), self.changed:
            await self.changed.wait_for(lambda: phases() == wanted)
        return {one.name: one for one in reversed(self.states)}

    async def number(self, name: str, *, above: int) -> int:
        """The number of the newest version, once it is served."""

        def newest() -> list[int]:
            ready = [one for one in self.states if one.phase is AdapterPhase.READY]
            return [one.number for one in ready if one.name == name and one.number > above]

        async with asyncio.timeout(SECONDS), self.changed:
            await self.changed.wait_for(newest)
        return newest()[0]

    async def ask(self, *numbers: int) -> BatchReply:
        """One row of the value 1 for each."""
        one = ((1,), struct.pack("<f", 1.0))
        inputs = (ragged("x", Datatype.FP32, [one] * len(numbers)),)
        return await self.server.hop.infer(BatchRequest(inputs=inputs, adapters=numbers))

    async def values(self, *numbers: int) -> list[float]:
        reply = await self.ask(*numbers)
        assert set(reply.statuses) == {200}, reply.errors
        return [struct.unpack("<f", value)[0] for value in reply.outputs[0].items()]


def adapter(folder: Path, name: str, adds: str) -> Path:
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "adds").write_text(adds)
    return folder / name


def wish(place: Path, *names: str, **other: Any) -> None:
    items = [{"name": name, "source": {"path": str(place / name)}} for name in names]
    new = place / "settings" / ".new"
    new.write_text(json.dumps({"slots": 2, "items": items} | other))
    new.replace(place / "settings" / ADAPTERS_FILE)


@asynccontextmanager
async def adapting(folder: Path) -> AsyncIterator[Adapting]:
    environ = {"BATCHEDMODEL_ADAPTERS_FOLDER": str(folder / "settings")}
    handler = "support.adapting_handler:Adding"
    async with model_server(folder, handler, environ=environ) as server:
        event = await server.settled()
        assert event.state is ModelState.READY, event.detail
        found = Adapting(server, folder)
        following = asyncio.create_task(found.follow())
        try:
            yield found
        finally:
            following.cancel()


async def test_rows_of_more_adapters_than_slots_are_answered_and_unknown_ones_fail_alone(
    tmp_path: Path,
) -> None:
    (tmp_path / "settings").mkdir()
    for at in range(5):
        adapter(tmp_path, f"a{at}", str(10 * (at + 1)))
    # None of them stays in main memory: each is read again when it is asked for.
    wish(tmp_path, *(f"a{at}" for at in range(5)), cpu_memory_bytes=0)
    async with adapting(tmp_path) as found:
        ready = await found.until(**{f"a{at}": AdapterPhase.READY for at in range(5)})
        numbers = [ready[f"a{at}"].number for at in range(5)]
        for _ in range(2):
            answers = await asyncio.gather(*(found.values(0, *numbers, 0) for _ in range(4)))
            assert answers == [[1, 11, 21, 31, 41, 51, 1]] * 4
        assert await found.values(0, 0) == [1, 1]
        reply = await found.ask(0, 99, numbers[0])
        assert reply.statuses == (200, 503, 200)
        assert reply.errors[1] == "its adapter is not served any more"


async def test_what_is_in_force_follows_the_files_while_old_numbers_go_on(tmp_path: Path) -> None:
    (tmp_path / "settings").mkdir()
    adapter(tmp_path, "one", "1")
    adapter(tmp_path, "bad", "much")
    volume = tmp_path / "volume"
    adapter(volume, "two", "2")
    wish(tmp_path, "one", "bad", folder=str(volume))
    ready, failed = AdapterPhase.READY, AdapterPhase.FAILED
    async with adapting(tmp_path) as found:
        states = await found.until(one=ready, two=ready, bad=failed)
        assert states["bad"].reason == "it adds nothing: ValueError"
        one, two = states["one"].number, states["two"].number
        # Written over in place, and as a hub of folders does it.
        adapter(tmp_path, "one", "100")
        os.rename(adapter(tmp_path, "mended", "5") / "adds", tmp_path / "bad" / "adds")
        newer = await found.number("one", above=one)
        mended = await found.number("bad", above=0)
        assert await found.values(one, newer, two, mended) == [2, 101, 3, 6]
        # Another folder comes, and one goes.
        os.rename(adapter(tmp_path, "elsewhere", "7"), volume / "seven")
        (volume / "two" / "adds").unlink()
        (volume / "two").rmdir()
        wish(tmp_path, "one", folder=str(volume))
        states = await found.until(one=ready, seven=ready)
        assert await found.values(states["seven"].number, two, mended) == [8, 3, 6]
        # A file that cannot be used changes nothing.
        (tmp_path / "settings" / ADAPTERS_FILE).write_text('{"items": [{"name": "a"}]}')
        adapter(tmp_path, "one", "1000")
        newest = await found.number("one", above=newer)
        assert await found.values(newest, newer) == [1001, 101]


@pytest.mark.parametrize("online", [True, False])
async def test_a_hub_is_asked_for_adapters_though_the_models_own_files_are_read_offline(
    tmp_path: Path, *, online: bool
) -> None:
    settings = ModelServerSettings(
        model_name="m",
        model_socket="s",
        handler="hf",
        adapters_folder="/a",
        adapters_online=online,
        cache_folder=str(tmp_path),
    )
    async with hub("team/sql", {"adapter_config.json": b"{}"}) as served:
        environ = {"HF_ENDPOINT": served.endpoint, "HF_HUB_OFFLINE": "1"}
        wishes = AdapterWishes(settings, environ)
        source = Source(hugging_face=HuggingFace(repo="team/sql"))
        if online:
            content = await asyncio.to_thread(wishes.find, source)
            assert content.folder is not None
            assert (content.folder / "adapter_config.json").read_bytes() == b"{}"
            # The model's own are mounted for reading alone.
            assert os.listdir(tmp_path) == ["adapters"]
        else:
            with pytest.raises(CannotLoad, match="offline no hub is asked"):
                await asyncio.to_thread(wishes.find, source)
            assert served.authorized == {}


async def test_a_model_that_takes_no_adapters_says_so(tmp_path: Path) -> None:
    (tmp_path / "settings").mkdir()
    wish(tmp_path)
    environ = {"BATCHEDMODEL_ADAPTERS_FOLDER": str(tmp_path / "settings")}
    async with model_server(tmp_path, environ=environ) as server:
        event = await server.settled()
        assert event.state is ModelState.FAILED
        assert "takes no adapters" in event.detail
