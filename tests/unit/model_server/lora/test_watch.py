"""Which adapters a file and a folder name, and where events cannot be relied upon."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.lora import AdapterSettings
from batchedmodel_contract.manifest.adapters import MOST_ITEMS, AdapterItem
from batchedmodel_contract.manifest.source import Source
from batchedmodel_model_server.lora.watch import Watch, is_remote, read_settings, wanted_sources


def test_what_is_listed_comes_before_a_folder_of_the_same_name(tmp_path: Path) -> None:
    for name in ("legal", "sql", ".hidden", "lost+found"):
        (tmp_path / name).mkdir()
    (tmp_path / "readme.txt").write_text("")
    elsewhere = Source(path="/elsewhere")
    settings = AdapterSettings(
        folder=str(tmp_path), items=(AdapterItem(name="sql", source=elsewhere),)
    )
    assert wanted_sources(settings, {}) == {
        "legal": Source(path=str(tmp_path / "legal")),
        "sql": elsewhere,
    }


def test_a_folder_that_is_not_there_has_no_adapters(tmp_path: Path) -> None:
    settings = AdapterSettings(folder=str(tmp_path / "absent"))
    before = {"legal": Source(path=str(tmp_path / "absent/legal"))}
    assert wanted_sources(settings, before) == {}


def test_what_lies_in_a_folder_that_cannot_be_read_just_now_is_still_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(folder: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    inside, listed = Source(path=str(tmp_path / "legal")), Source(path="/elsewhere")
    settings = AdapterSettings(
        folder=str(tmp_path), items=(AdapterItem(name="sql", source=listed),)
    )
    monkeypatch.setattr(os, "scandir", stale)
    before = {"legal": inside, "sql": listed, "gone": Source(path="/other/gone")}
    assert wanted_sources(settings, before) == {"legal": inside, "sql": listed}


def test_a_link_to_itself_hides_none_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "legal").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    found = wanted_sources(AdapterSettings(folder=str(tmp_path)), {})
    assert found == {"legal": Source(path=str(tmp_path / "legal"))}


def test_more_folders_than_count_push_out_none_that_is_served(tmp_path: Path) -> None:
    for number in range(MOST_ITEMS):
        (tmp_path / f"a{number:03}").mkdir()
    (tmp_path / "sql").mkdir()
    settings = AdapterSettings(folder=str(tmp_path))
    assert "sql" not in wanted_sources(settings, {})
    before = {"sql": Source(path=str(tmp_path / "sql"))}
    assert "sql" in wanted_sources(settings, before)


async def test_a_folder_that_comes_later_is_looked_for_every_few_seconds(tmp_path: Path) -> None:
    watch = Watch()
    try:
        watch.follow([tmp_path, tmp_path / "later"])
        async with asyncio.timeout(5.0):
            await watch.changed()  # nobody has written anything
    finally:
        watch.close()


async def test_where_no_events_can_be_had_everything_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("batchedmodel_model_server.lora.watch.Inotify", none_left)
    watch = Watch()
    watch.follow([tmp_path])
    async with asyncio.timeout(5.0):
        await watch.changed()
    watch.close()


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_settings(tmp_path)
    (tmp_path / "adapters.json").write_text('{"slots": 3}')
    assert read_settings(tmp_path) == AdapterSettings(slots=3)


def test_the_file_system_of_the_deepest_mount_counts(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    inner = tmp_path / "a b"
    (inner / "local").mkdir(parents=True)
    escaped = str(inner).replace(" ", "\\040")
    mounts.write_text(
        f"none / overlay rw 0 0\nserver:/x {escaped} nfs4 rw 0 0\nd {escaped}/local ext4 rw 0 0\n"
    )
    assert is_remote(inner, mounts)
    assert is_remote(inner / "deeper", mounts)
    assert not is_remote(inner / "local", mounts)
    assert not is_remote(tmp_path, mounts)
    assert not is_remote(inner, tmp_path / "absent")
