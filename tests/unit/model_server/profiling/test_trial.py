"""What a start found out is found again by the next one, unless something speaks against it."""

import errno
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile, ProfilePoint
from batchedmodel_contract.manifest.source import Source
from batchedmodel_contract.processes.environment import ModelServerSettings
from batchedmodel_model_server.batching.declaration import Sharing
from batchedmodel_model_server.execution.forward import LoadedModel
from batchedmodel_model_server.execution.memory import MemoryCap
from batchedmodel_model_server.handlers.simulated import Simulated
from batchedmodel_model_server.profiling.trial import (
    ProfileCache,
    Trial,
    key_of,
)
from batchedmodel_model_server.profiling.warmup import FIRST_PASS_SECONDS
from batchedmodel_model_server.sources.folder import content_of
from batchedmodel_model_server.sources.untrusted_files import MOST_JSON_BYTES
from support.model_server_handlers import Clock, Echo, Timed, loaded
from support.warm_ups import complete

FINDINGS = Profile(
    cost_rule=CostRule.PADDED,
    device="host",
    points=(ProfilePoint(rows=1, length=16, seconds=0.005),),
    sharing=Sharing.PADDED.value,
    sharing_reason="tried",
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


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"key": "another"}', "null", "[" * 100_000, " " * (MOST_JSON_BYTES + 1)],
    ids=["empty", "open", "list", "other key", "null", "deep", "long"],
)
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


def test_what_is_no_file_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = ProfileCache(tmp_path, {})
    cache.write(FINDINGS)
    [file] = (tmp_path / "profiles").iterdir()
    file.unlink()
    os.mkfifo(file)
    assert cache.read() is None
    assert "is no file" in caplog.text


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


def start(folder: Path, pace: float = 1e-4) -> tuple[Trial, Profile]:
    """A start whose passes take `pace` for each token, in simulated time, and what it finds."""
    clock = Clock()
    trial = Trial(loaded(Timed(clock, pace)), settings_in(folder), clock.read)
    return trial, trial.profile(MemoryCap())


def profile_of_a_start(folder: Path, pace: float = 1e-4) -> Profile:
    """What a start knows once it was idle for long."""
    trial, profile = start(folder, pace)
    if trial.warm_up is None:
        return profile
    complete(trial.warm_up)
    return trial.kept(trial.warm_up.profile())


def test_a_second_start_takes_over_what_the_first_has_found(tmp_path: Path) -> None:
    first, second = profile_of_a_start(tmp_path), profile_of_a_start(tmp_path)
    assert (first.cached, second.cached) == (False, True)
    assert second == replace(first, cached=True)


def test_a_start_with_a_kept_profile_runs_one_shape_only(tmp_path: Path) -> None:
    profile_of_a_start(tmp_path)
    clock = Clock()
    handler = Timed(clock, 1e-4)
    trial = Trial(loaded(handler), settings_in(tmp_path), clock.read)
    assert handler.seen == []
    assert trial.profile(MemoryCap()).cached
    assert len(set(handler.seen)) == 1


def test_what_is_found_beside_a_version_that_serves_is_not_kept(tmp_path: Path) -> None:
    clock = Clock()
    model, settings = loaded(Timed(clock, 1e-4)), settings_in(tmp_path)
    Trial(model, settings, clock.read, alone=False).profile(MemoryCap())
    assert not profile_of_a_start(tmp_path).cached


def test_before_a_model_is_ready_passes_are_short_and_few(tmp_path: Path) -> None:
    """Beside a version that serves, its batches wait for each of them."""
    clock = Clock()
    handler = Timed(clock, 1e-3)
    trial = Trial(loaded(handler), settings_in(tmp_path, 4), clock.read, alone=False)
    tried = len(handler.seen)
    profile = trial.profile(MemoryCap())
    shapes = handler.seen[tried:]
    assert max(rows * length * 1e-3 for rows, length in shapes) <= FIRST_PASS_SECONDS
    assert len(set(shapes)) == len(profile.points) <= 3


def test_a_restart_goes_on_with_what_was_kept_of_a_partial_profile(tmp_path: Path) -> None:
    _, first = start(tmp_path)
    trial, second = start(tmp_path)
    assert (first.partial, second.partial, second.cached) == (True, True, True)
    assert second.points == first.points
    assert trial.warm_up is not None
    complete(trial.warm_up)
    third = trial.kept(trial.warm_up.profile())
    assert set(first.points) < set(third.points)
    assert not third.partial
    assert start(tmp_path)[1] == replace(third, cached=True)


def test_a_process_that_an_idle_pass_has_ended_is_followed_by_none_that_runs_such_passes(
    tmp_path: Path,
) -> None:
    """Each process served for a second, ran the same pass, and was ended by it again."""
    trial, first = start(tmp_path)
    assert trial.idle_pass(lambda: 0.5) == 0.5
    assert start(tmp_path)[0].warm_up is not None, "a pass that ends leaves nothing"
    if (child := os.fork()) == 0:
        trial.idle_pass(lambda: os._exit(9))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    for _ in range(2):
        next_trial, profile = start(tmp_path)
        assert next_trial.warm_up is None
        assert profile == replace(first, cached=True, partial=False)


def test_what_another_process_has_measured_meanwhile_is_not_replaced_by_less(
    tmp_path: Path,
) -> None:
    """Two pods share the folder, and the one that began later had measured less."""
    behind, _ = start(tmp_path)
    whole = profile_of_a_start(tmp_path)
    assert not whole.partial
    assert behind.warm_up is not None
    assert behind.kept(behind.warm_up.profile()).partial
    assert start(tmp_path)[1].points == whole.points


@pytest.mark.parametrize("pace", [1e-3, 1e-5])
def test_a_partial_profile_of_another_pace_begins_anew(tmp_path: Path, pace: float) -> None:
    """What is measured now and what was measured then would make one curve that never was."""
    _, first = start(tmp_path)
    trial, second = start(tmp_path, pace)
    assert second == replace(first, cached=True)
    assert trial.warm_up is not None
    complete(trial.warm_up)
    anew = trial.kept(trial.warm_up.profile())
    assert [p.seconds for p in anew.points] == pytest.approx(
        [p.rows * p.length * pace for p in anew.points]
    )


def test_a_kept_profile_stays_where_a_busy_machine_is_slower(tmp_path: Path) -> None:
    """A neighbour's minute cost sixteen seconds of the start, and its times were kept for good."""
    quiet = profile_of_a_start(tmp_path)
    trial, busy = start(tmp_path, pace=1e-3)
    assert busy == replace(quiet, cached=True)
    assert trial.warm_up is None
    assert start(tmp_path)[1] == busy


def test_a_profile_of_a_busy_machine_serves_until_it_was_measured_anew(tmp_path: Path) -> None:
    busy = profile_of_a_start(tmp_path, pace=1e-3)
    trial, profile = start(tmp_path)
    assert profile == replace(busy, cached=True)
    assert trial.warm_up is not None
    assert trial.kept(trial.warm_up.profile()).partial
    # A start that comes before all is measured does not find less than there was.
    assert start(tmp_path)[1] == profile
    complete(trial.warm_up)
    anew = trial.kept(trial.warm_up.profile())
    assert anew.points[0].seconds == pytest.approx(busy.points[0].seconds / 10)
    assert start(tmp_path)[1] == replace(anew, cached=True)


def test_a_damaged_profile_is_measured_anew_and_replaced(tmp_path: Path) -> None:
    profile_of_a_start(tmp_path)
    [file] = (tmp_path / "profiles").iterdir()
    file.write_text("{")
    assert not profile_of_a_start(tmp_path).cached
    assert profile_of_a_start(tmp_path).cached


def test_a_bound_that_a_start_has_met_binds_the_next_one(tmp_path: Path) -> None:
    """From its first batch on, without meeting it again."""
    cache = ProfileCache(tmp_path, key_of(loaded(Timed(Clock())), settings_in(tmp_path)))
    points = (ProfilePoint(rows=1, length=16, seconds=0.016),)
    cache.write(replace(FINDINGS, points=points, max_cost=900))
    clock, cap = Clock(), MemoryCap()
    handler = Timed(clock, 1e-3)
    assert Trial(loaded(handler), settings_in(tmp_path), clock.read).profile(cap).cached
    assert cap.cost == 900


def test_predicted_times_are_not_kept(tmp_path: Path) -> None:
    handler = Simulated()
    handler.parameters = {}
    handler.load(None, "simulated")
    assert not Trial(loaded(handler), settings_in(tmp_path)).profile(MemoryCap()).cached
    assert list(tmp_path.iterdir()) == []


def test_a_kept_verdict_is_not_used_for_a_model_that_can_no_longer_do_it(tmp_path: Path) -> None:
    model, settings = loaded(Echo()), settings_in(tmp_path)
    packing = replace(model, declaration=replace(model.declaration, packs=True))
    packed = replace(FINDINGS, sharing=Sharing.PACKED.value)
    ProfileCache(tmp_path, key_of(packing, settings)).write(packed)
    assert Trial(model, settings).model.declaration.sharing is Sharing.PADDED


def test_a_write_that_fails_half_way_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = ProfileCache(tmp_path, {})
    cache.write(FINDINGS)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr("batchedmodel_model_server.sources.folder.os.replace", full)
    cache.write(replace(FINDINGS, sharing=Sharing.APART.value))
    assert "the profile cannot be kept" in caplog.text
    assert cache.read() == FINDINGS
    assert len(list((tmp_path / "profiles").iterdir())) == 1


def test_how_a_process_started_is_not_kept(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path, {})
    cache.write(replace(FINDINGS, start_up=(("load", 3.0),), cached=True))
    assert cache.read() == FINDINGS


def test_the_latest_profiles_are_the_ones_that_stay(tmp_path: Path) -> None:
    caches = [ProfileCache(tmp_path, {"number": number}) for number in range(65)]
    for age, cache in enumerate(caches[:64]):
        before = set((tmp_path / "profiles").iterdir()) if age else set()
        cache.write(FINDINGS)
        [new] = set((tmp_path / "profiles").iterdir()) - before
        os.utime(new, (age, age))
    caches[64].write(FINDINGS)
    assert caches[0].read() is None
    assert all(cache.read() == FINDINGS for cache in caches[1:])


class Precise(Echo):
    precision = "bfloat16"


def of_folder(folder: Path, handler: Echo | None = None) -> LoadedModel:
    """The model as it was loaded from a folder."""
    content = content_of(Source(path=str(folder)), folder)
    return replace(loaded(handler or Echo()), content=content)


def test_the_key_says_each_thing_on_which_the_findings_depend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "weights.bin"
    weights.write_bytes(b"1")
    model, settings = of_folder(tmp_path), settings_in(tmp_path)
    usual = key_of(model, settings)

    def changed(other: Mapping[str, Any]) -> set[str]:
        return {name for name, value in usual.items() if other[name] != value}

    assert changed(key_of(model, settings)) == set()
    assert changed(key_of(model, replace(settings, handler="other"))) == {"handler"}
    assert changed(key_of(model, replace(settings, source="{}"))) == {"source"}
    assert changed(key_of(model, replace(settings, parameters=(("a", "b"),)))) == {"parameters"}
    assert changed(key_of(model, replace(settings, max_batch_size=4))) == {"max_batch_size"}
    assert changed(key_of(replace(model, device="cpu"), settings)) == {"device"}
    precise = of_folder(tmp_path, Precise())
    assert {"handler", "precision"} <= changed(key_of(precise, settings))
    cache = "batchedmodel_model_server.profiling.trial"
    elsewhere: list[tuple[str, str, Callable[..., Any]]] = [
        ("threads", "computing_threads", lambda: 99),
        ("memory", "limits", lambda _: ("12345",)),
        ("libraries", "version", lambda _: "99"),
    ]
    for name, function, result in elsewhere:
        with monkeypatch.context() as other:
            other.setattr(f"{cache}.{function}", result)
            assert changed(key_of(model, settings)) == {name}
    with monkeypatch.context() as other:
        other.setattr(sys.modules[Echo.__module__], "__file__", str(weights))
        assert changed(key_of(model, settings)) == {"code"}
    weights.write_bytes(b"22")
    assert changed(key_of(of_folder(tmp_path), settings)) == {"files"}


def test_a_file_of_the_same_size_that_was_changed_later_is_another_one(tmp_path: Path) -> None:
    weights = tmp_path / "weights.bin"
    weights.write_bytes(b"1")
    usual = key_of(of_folder(tmp_path), settings_in(tmp_path))
    os.utime(weights, (1, 1))
    assert key_of(of_folder(tmp_path), settings_in(tmp_path))["files"] != usual["files"]


@pytest.mark.parametrize("name", ["{commit}", "{commit}-1a2b3c4d"])
def test_a_commit_fetched_anew_is_the_same_model(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "snapshots" / name.format(commit="0123456789" * 4)
    folder.mkdir(parents=True)
    weights = folder / "weights.bin"
    weights.write_bytes(b"1")
    usual = key_of(of_folder(folder), settings_in(tmp_path))
    os.utime(weights, (1, 1))
    assert key_of(of_folder(folder), settings_in(tmp_path)) == usual
