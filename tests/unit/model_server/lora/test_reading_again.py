"""An adapter that made room is read again, and a disk that hangs costs its own callers alone."""

import asyncio
import threading
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_contract.lora import ADAPTERS_FILE, AdapterPhase, AdapterSettings, AdapterState
from batchedmodel_contract.manifest.adapters import AdapterItem
from batchedmodel_contract.manifest.source import Source
from batchedmodel_kube.manifest.pod_settings import adapters_to_json
from batchedmodel_model_server.lora import serving
from batchedmodel_model_server.lora.serving import Adapters
from batchedmodel_model_server.lora.slots import DeviceAdapters
from batchedmodel_model_server.sources.folder import Content, content_of
from support.adapting_handler import AddingBank


class SlowDisk(AddingBank):
    """Reads once the disk lets it."""

    def __init__(self) -> None:
        super().__init__(1)
        self.lets = threading.Event()
        self.lets.set()
        self.reads = 0

    def read(self, folder: Path) -> Any:
        """See `AddingBank`."""
        self.reads += 1
        self.lets.wait(30)
        return super().read(folder)


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
async def adapters(
    tmp_path: Path, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Adapters]:
    """Two of them, of which none stays in main memory unless somebody needs it."""
    monkeypatch.setattr(serving, "_LONGEST_RETURN", 0.2)
    items = []
    for name, adds in (("one", "1"), ("two", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adds").write_text(adds)
        items.append(AdapterItem(name=name, source=Source(path=str(tmp_path / name))))
    settings = AdapterSettings(slots=1, cpu_memory_bytes=0, items=tuple(items))
    (tmp_path / ADAPTERS_FILE).write_text(adapters_to_json(settings))
    ready = asyncio.Event()

    def told(states: tuple[AdapterState, ...]) -> None:
        if [one.phase for one in states] == [AdapterPhase.READY] * 2:
            ready.set()

    found = Adapters(
        DeviceAdapters(disk, 1),
        tmp_path,
        settings,
        lambda source: content_of(source, tmp_path / "cache"),
        count(1),
        told,
    )
    found.begin()
    async with asyncio.timeout(30):
        await ready.wait()
    yield found
    disk.lets.set()
    found.end()


async def test_an_adapter_whose_files_come_one_by_one_is_read_once_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read at the first look, and could not be used until the second."""
    monkeypatch.setattr(serving, "_LOOK_SECONDS", 0.02)
    folder, copied, told = tmp_path / "all" / "three", list[str](), list[AdapterPhase]()
    folder.parent.mkdir()
    settings = AdapterSettings(folder=str(folder.parent))
    (tmp_path / ADAPTERS_FILE).write_text(adapters_to_json(settings))

    def find(source: Source) -> Content:
        if len(copied) < 4:
            copied.append(("config", "labels", "license", "adds")[len(copied)])
            (folder / copied[-1]).write_text("3")
        return content_of(source, tmp_path / "cache")

    def tell(states: tuple[AdapterState, ...]) -> None:
        told.extend(one.phase for one in states)

    device = DeviceAdapters(AddingBank(1), 1)
    adapters = Adapters(device, tmp_path, settings, find, count(1), tell)
    adapters.begin()
    await adapters.settled(30)
    folder.mkdir()
    async with asyncio.timeout(30):
        while AdapterPhase.READY not in told:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    adapters.end()
    assert told == [AdapterPhase.FETCHING, AdapterPhase.LOADING, AdapterPhase.READY]


async def test_what_made_room_is_read_again_for_whoever_asks(
    adapters: Adapters, disk: SlowDisk
) -> None:
    before = disk.reads
    async with adapters.lent([1, 2]) as lent:
        assert sorted(lent.weights.values()) == [1.0, 2.0]
        assert not lent.missing
    assert disk.reads == before + 2


async def test_a_disk_that_hangs_holds_nobody_for_long_and_those_who_come_later_not_at_all(
    adapters: Adapters, disk: SlowDisk
) -> None:
    disk.lets.clear()
    async with asyncio.timeout(10):
        async with adapters.lent([1]) as lent:
            assert "have been read for" in lent.missing[1]
        began = asyncio.get_running_loop().time()
        reads = disk.reads
        async with adapters.lent([1]) as lent:
            assert 1 in lent.missing
        assert asyncio.get_running_loop().time() - began < 0.15
        assert disk.reads == reads, "the same reading goes on"
        disk.lets.set()
        while True:
            async with adapters.lent([1]) as lent:
                if lent.weights:
                    break
    assert lent.weights == {1: 1.0}
