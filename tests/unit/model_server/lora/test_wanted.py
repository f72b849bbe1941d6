"""Which adapters a file and a folder name."""

import errno
import os
from pathlib import Path

import pytest

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.lora import AdapterSettings
from batchedmodel_contract.manifest.adapters import MOST_ITEMS, AdapterItem
from batchedmodel_contract.manifest.source import Source
from batchedmodel_kube.manifest.pod_settings import adapters_to_json
from batchedmodel_model_server.lora.wanted import Look, read_settings, wanted_sources
from batchedmodel_model_server.sources.folder import content_of


def test_what_is_listed_comes_before_a_folder_of_the_same_name(tmp_path: Path) -> None:
    for name in ("legal", "sql", ".hidden", "lost+found"):
        (tmp_path / name).mkdir()
    (tmp_path / "readme.txt").write_text("")
    elsewhere = Source(path="/elsewhere")
    settings = AdapterSettings(
        folder=str(tmp_path), items=(AdapterItem(name="sql", source=elsewhere),)
    )
    assert wanted_sources(settings, {}) == (
        {"legal": Source(path=str(tmp_path / "legal")), "sql": elsewhere},
        "",
    )


def test_a_folder_that_is_not_there_has_no_adapters(tmp_path: Path) -> None:
    settings = AdapterSettings(folder=str(tmp_path / "absent"))
    before = {"legal": Source(path=str(tmp_path / "absent/legal"))}
    found, problem = wanted_sources(settings, before)
    assert found == {}
    assert problem.startswith("there is no folder of adapters: ")


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
    found, problem = wanted_sources(settings, before)
    assert found == {"legal": inside, "sql": listed}
    assert "Stale file handle" in problem


def test_a_link_to_itself_hides_none_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "legal").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    found = wanted_sources(AdapterSettings(folder=str(tmp_path)), {})
    assert found == ({"legal": Source(path=str(tmp_path / "legal"))}, "")


def test_more_folders_than_count_push_out_none_that_is_served(tmp_path: Path) -> None:
    for number in range(MOST_ITEMS):
        (tmp_path / f"a{number:03}").mkdir()
    (tmp_path / "sql").mkdir()
    settings = AdapterSettings(folder=str(tmp_path))
    found, problem = wanted_sources(settings, {})
    assert "sql" not in found
    assert problem == f"{tmp_path} has {MOST_ITEMS + 1} adapters; only {MOST_ITEMS} count"
    before = {"sql": Source(path=str(tmp_path / "sql"))}
    assert "sql" in wanted_sources(settings, before)[0]


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_settings(tmp_path)
    (tmp_path / "adapters.json").write_text('{"slots": 3}')
    assert read_settings(tmp_path) == AdapterSettings(slots=3)


def test_a_look_tells_files_that_have_changed_by_their_digest(tmp_path: Path) -> None:
    adapter = tmp_path / "sql"
    items = (AdapterItem(name="sql", source=Source(path=str(adapter))),)
    (tmp_path / "adapters.json").write_text(adapters_to_json(AdapterSettings(items=items)))

    def look(before: Look) -> Look:
        return before.again(tmp_path, lambda source: content_of(source, tmp_path))

    absent = look(Look(AdapterSettings()))
    adapter.mkdir()
    empty = look(absent)
    (adapter / "adapter_config.json").write_text("{}")
    whole = look(empty)
    assert look(whole) == whole
    assert len({one.digests["sql"] for one in (absent, empty, whole)}) == 3


def test_settings_that_cannot_be_read_leave_those_before_in_force(tmp_path: Path) -> None:
    before = Look(AdapterSettings(slots=3))
    found = before.again(tmp_path, lambda source: content_of(source, tmp_path))
    assert found.settings == before.settings
    assert found.problems[0].startswith("settings not used: ")
