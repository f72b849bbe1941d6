"""The folder of settings, with real files and a real inotify: the events are the point."""

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.batching import FILE_NAME, BatchSettings
from batchedmodel_sidecar.settings import SettingsFolder


class TestSettingsFolder:
    """Real files and a real inotify: the events are the point."""

    async def test_a_swapped_symbolic_link_is_seen(self, tmp_path: Path) -> None:
        first, second = BatchSettings(), replace(BatchSettings(), max_batch_size=7)
        _mount(tmp_path, "one", first)
        folder = SettingsFolder(str(tmp_path))
        assert folder.read() == first
        changes = folder.changes(first)
        seen = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        _mount(tmp_path, "two", second)
        assert await asyncio.wait_for(seen, 2.0) == second
        await changes.aclose()

    async def test_a_file_written_in_place_is_seen(self, tmp_path: Path) -> None:
        first, second = BatchSettings(), replace(BatchSettings(), max_batch_size=7)
        (tmp_path / FILE_NAME).write_text(first.to_json())
        changes = SettingsFolder(str(tmp_path)).changes(first)
        seen = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        (tmp_path / FILE_NAME).write_text(second.to_json())
        assert await asyncio.wait_for(seen, 2.0) == second
        await changes.aclose()

    async def test_a_change_before_the_watch_began_is_seen(self, tmp_path: Path) -> None:
        second = replace(BatchSettings(), max_batch_size=7)
        (tmp_path / FILE_NAME).write_text(second.to_json())
        changes = SettingsFolder(str(tmp_path)).changes(BatchSettings())
        assert await asyncio.wait_for(anext(changes), 2.0) == second
        await changes.aclose()

    async def test_a_version_that_cannot_be_used_is_counted_and_passed_over(
        self, tmp_path: Path
    ) -> None:
        first, good = BatchSettings(), replace(BatchSettings(), max_batch_size=7)
        (tmp_path / FILE_NAME).write_text(first.to_json())
        folder = SettingsFolder(str(tmp_path))
        changes = folder.changes(first)
        seen = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        broken = json.loads(good.to_json()) | {"max_batch_size": 0}
        _replace(tmp_path, json.dumps(broken))
        _replace(tmp_path, "not JSON")
        _replace(tmp_path, good.to_json())
        assert await asyncio.wait_for(seen, 2.0) == good
        await changes.aclose()

    def test_a_missing_file_is_a_clear_error(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="batching.json: cannot be read"):
            SettingsFolder(str(tmp_path)).read()

    def test_what_is_no_file_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / FILE_NAME)
        with pytest.raises(InvalidInput, match="batching.json: is no file"):
            SettingsFolder(str(tmp_path)).read()

    def test_a_file_of_any_size_is_not_taken_in(self, tmp_path: Path) -> None:
        with (tmp_path / FILE_NAME).open("wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(InvalidInput, match=r"batching.json: is longer than \d+ bytes"):
            SettingsFolder(str(tmp_path)).read()


def _mount(folder: Path, version: str, settings: BatchSettings) -> None:
    """Write a version the way a kubelet does."""
    (folder / f"..{version}").mkdir()
    (folder / f"..{version}" / FILE_NAME).write_text(settings.to_json())
    (folder / "..data_tmp").symlink_to(f"..{version}")
    (folder / "..data_tmp").rename(folder / "..data")
    if not (folder / FILE_NAME).is_symlink():
        (folder / FILE_NAME).symlink_to(f"..data/{FILE_NAME}")


def _replace(folder: Path, text: str) -> None:
    (folder / "new").write_text(text)
    (folder / "new").rename(folder / FILE_NAME)
