"""The commands with a file that holds a class beside the manifest; `diff` with a live class."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchedmodel_cli.__main__ import main
from batchedmodel_cli.manifest_file import UnusableManifest, read_manifest_file
from support.repository import ROOT

HEAD = {"apiVersion": "batchedmodel.dev/v1alpha1"}
MODEL: dict[str, Any] = {
    **HEAD,
    "kind": "BatchedModel",
    "metadata": {"name": "m"},
    "spec": {"className": "gpu", "model": {"handler": "simulated"}},
}


def a_class(name: str = "gpu", **spec: Any) -> dict[str, Any]:
    return {**HEAD, "kind": "BatchedModelClass", "metadata": {"name": name}, "spec": spec}


BATCHES = a_class(batching={"maxBatchSize": 16})


def written(folder: Path, *documents: object, name: str = "model.yaml") -> Path:
    file = folder / name
    file.write_text(yaml.safe_dump_all(documents), "utf-8")
    return file


def live(folder: Path, *objects: object) -> str:
    return f"--live={written(folder, {'kind': 'List', 'items': list(objects)}, name='live.yaml')}"


def test_a_manifest_has_the_values_of_the_class_in_its_file(tmp_path: Path) -> None:
    for documents in ((BATCHES, MODEL), (MODEL, a_class("other"), BATCHES)):
        spec = read_manifest_file(written(tmp_path, *documents)).spec
        assert spec.batching.max_batch_size == 16


def test_a_file_without_the_class_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, MODEL, a_class("other"))
    assert main(["run", str(file)]) == 2
    assert f'{file}: spec.className: "gpu" is a BatchedModelClass' in capsys.readouterr().err


@pytest.mark.parametrize("documents", [(BATCHES,), (MODEL, MODEL, BATCHES)], ids=["none", "two"])
def test_a_file_has_one_manifest(tmp_path: Path, documents: tuple[object, ...]) -> None:
    with pytest.raises(UnusableManifest, match="manifests; one BatchedModel per file"):
        read_manifest_file(written(tmp_path, *documents))


def test_mistakes_of_the_class_are_named_as_its(tmp_path: Path) -> None:
    wrong = a_class(batching={"maxBatchSize": 0})
    with pytest.raises(UnusableManifest, match=r"^BatchedModelClass gpu: spec\.batching\.maxB"):
        read_manifest_file(written(tmp_path, wrong, MODEL))


def test_the_example_runs_here() -> None:
    spec = read_manifest_file(ROOT / "examples" / "class.yaml").spec
    assert spec.batching.max_batch_size == 64
    assert spec.batching.target_latency_milliseconds == 50


def test_diff_compares_with_the_live_class_and_shows_what_another_would_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = live(tmp_path, MODEL, BATCHES)
    assert main(["diff", str(written(tmp_path, MODEL)), given]) == 0
    capsys.readouterr()
    other = a_class(batching={"maxBatchSize": 64}, pod={"nodeSelector": {"disk": "ssd"}})
    assert main(["diff", str(written(tmp_path, MODEL, other)), given, "--json"]) == 1
    changes = json.loads(capsys.readouterr().out)["changes"]
    effects = {one["field"]: one["effect"] for one in changes}
    assert effects == {
        "spec.batching.maxBatchSize": "EffectiveAtOnce",
        "spec.pod.nodeSelector": "RollsPods",
    }


def test_diff_tells_that_naming_a_class_that_says_the_same_has_no_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"model": {"handler": "simulated"}, "batching": {"maxBatchSize": 16}}
    given = live(tmp_path, {**MODEL, "spec": own}, BATCHES)
    assert main(["diff", str(written(tmp_path, MODEL)), given, "--json"]) == 1
    (change,) = json.loads(capsys.readouterr().out)["changes"]
    assert (change["field"], change["effect"]) == ("spec.className", "NoEffect")


def test_diff_says_that_the_live_class_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, MODEL, BATCHES)
    assert main(["diff", str(file), live(tmp_path, MODEL)]) == 2
    assert "the live object: spec.className" in capsys.readouterr().err


def test_diff_asks_kubectl_for_a_class_that_the_file_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def kubectl(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        found = BATCHES if "batchedmodelclass" in command else MODEL
        return subprocess.CompletedProcess(command, 0, yaml.safe_dump(found), "")

    monkeypatch.setattr(subprocess, "run", kubectl)
    assert main(["diff", str(written(tmp_path, MODEL))]) == 0
    assert [command[2:4] for command in asked if "batchedmodelclass" in command] == [
        ["batchedmodelclass", "gpu"]
    ]
    asked.clear()
    assert main(["diff", str(written(tmp_path, MODEL, BATCHES))]) == 0
    assert "--ignore-not-found" in asked[0]
