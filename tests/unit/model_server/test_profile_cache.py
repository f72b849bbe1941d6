"""What a start found out is found again by the next one, unless something speaks against it."""

from pathlib import Path

import pytest

from batchedmodel_contract.description import CostRule
from batchedmodel_contract.environment import ModelServerSettings
from batchedmodel_contract.profile import Profile, ProfilePoint
from batchedmodel_model_server.declaration import Sharing
from batchedmodel_model_server.memory import MemoryCap
from batchedmodel_model_server.profile_cache import Findings, ProfileCache, key_of
from batchedmodel_model_server.self_test import Verdict
from batchedmodel_model_server.trial import Trial
from support.model_server_handlers import Echo, loaded

FINDINGS = Findings(
    profile=Profile(
        cost_rule=CostRule.PADDED,
        device="host",
        points=(ProfilePoint(rows=1, length=16, seconds=0.005),),
    ),
    verdict=Verdict(sharing=Sharing.PADDED, reason="tried"),
)


def settings_in(folder: Path, max_batch_size: int = 2) -> ModelServerSettings:
    return ModelServerSettings(
        model_name="model",
        model_socket="/none",
        handler="echo",
        max_batch_size=max_batch_size,
        cache_folder=str(folder),
    )


def test_findings_are_kept_for_their_key_alone(tmp_path: Path) -> None:
    ProfileCache(tmp_path, {"threads": 2}).write(FINDINGS)
    assert ProfileCache(tmp_path, {"threads": 2}).read() == FINDINGS
    assert ProfileCache(tmp_path, {"threads": 4}).read() is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": "another"}', "null"])
def test_a_damaged_file_is_ignored_and_said_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    cache = ProfileCache(tmp_path, {})
    cache.write(FINDINGS)
    [file] = (tmp_path / "profiles").iterdir()
    file.write_text(content)
    assert cache.read() is None
    assert "the kept profile is ignored" in caplog.text
    cache.write(FINDINGS)
    assert cache.read() == FINDINGS


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_profile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "profiles").write_text("a file")
    ProfileCache(tmp_path, {}).write(FINDINGS)
    assert "the profile cannot be kept" in caplog.text


def test_only_so_many_profiles_are_kept(tmp_path: Path) -> None:
    for number in range(70):
        ProfileCache(tmp_path, {"number": number}).write(FINDINGS)
    assert len(list((tmp_path / "profiles").iterdir())) == 64


def test_a_changed_model_has_another_key(tmp_path: Path) -> None:
    model, settings = loaded(Echo()), settings_in(tmp_path)
    assert key_of(model, settings) == key_of(model, settings)
    assert key_of(model, settings) != key_of(model, settings_in(tmp_path, max_batch_size=4))


def test_a_second_start_takes_over_what_the_first_has_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_in(tmp_path)
    monkeypatch.setattr("batchedmodel_model_server.trial.still_holds", lambda *_: True)
    first = Trial(loaded(Echo()), settings).profile(MemoryCap())
    second = Trial(loaded(Echo()), settings).profile(MemoryCap())
    assert (first.cached, second.cached) == (False, True)
    assert second.points == first.points
