"""`batchedmodel diff` as a person types it."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchedmodel_cli.__main__ import main

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "diff.md").read_text("utf-8")
LIVE, NEW = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S))


class Files:
    """A manifest and what kubectl said."""

    def __init__(self, folder: Path) -> None:
        self.manifest, self.live = folder / "model.yaml", folder / "live.yaml"
        self.write(NEW, LIVE)

    def write(self, new: object, live: object) -> None:
        self.manifest.write_text(yaml.safe_dump(new), "utf-8")
        self.live.write_text(yaml.safe_dump(live), "utf-8")

    def diff(self, *more: str) -> int:
        return main(["diff", str(self.manifest), f"--live={self.live}", *more])


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def with_spec(manifest: dict[str, Any], **sections: Any) -> dict[str, Any]:
    return {**manifest, "spec": {**manifest["spec"], **sections}}


def test_the_example_of_the_docs_is_what_is_printed(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    assert files.diff() == 1
    example = re.search(r"diff model.yaml` prints:\n\n```\n(.*?)```", PAGE, re.S)
    assert example is not None
    assert capsys.readouterr().out == example[1]


def test_what_is_live_already_changes_nothing(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(LIVE, LIVE)
    assert files.diff() == 0
    assert capsys.readouterr().out == "simulated: nothing is different\n"


def test_defaults_that_the_api_server_filled_in_are_no_difference(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    batching = {**LIVE["spec"]["batching"], "policy": "Deadline", "requestTimeoutSeconds": 30}
    files.write(LIVE, with_spec(LIVE, batching=batching, service={"port": 80}))
    assert files.diff() == 0


@pytest.mark.parametrize("given", ["yaml", "json", "list"])
def test_the_live_object_is_read_from_standard_input(
    given: str, files: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {**LIVE, "metadata": {"name": "other"}}
    text = {
        "yaml": yaml.safe_dump(LIVE),
        "json": json.dumps(LIVE),
        "list": yaml.safe_dump({"kind": "List", "items": [other, {"kind": "Pod"}, LIVE]}),
    }
    monkeypatch.setattr("sys.stdin", io.StringIO(text[given]))
    assert main(["diff", str(files.manifest), "--live=-"]) == 1
    assert "spec.batching.maxBatchSize" in capsys.readouterr().out


def test_the_document_has_the_keys_that_are_promised(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    assert files.diff("--json") == 1
    found = json.loads(capsys.readouterr().out)
    for key in (*found, *found["changes"][0], *found["pods"], *found["effects"]):
        assert f"`{key}`" in PAGE, key
    changed = {one["field"]: one for one in found["changes"]}
    assert changed["spec.batching.maxBatchSize"] == {
        "field": "spec.batching.maxBatchSize",
        "old": 16,
        "new": 32,
        "effect": "EffectiveAtOnce",
    }
    assert found["pods"] == {"old": 3, "new": 3}


def test_a_wrong_manifest_is_refused_as_everywhere(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(with_spec(NEW, batching={"maxBatchSize": 0}), LIVE)
    assert files.diff() == 2
    said = capsys.readouterr()
    assert said.out == ""
    rule = "spec.batching.maxBatchSize: 0 is below the minimum 1"
    assert said.err == f"{files.manifest}: {rule}\n"


@pytest.mark.parametrize(
    ("live", "complaint"),
    [
        ({"kind": "List", "items": []}, "the live object: there is no BatchedModel simulated"),
        (
            {**LIVE, "metadata": {"name": "minilm"}},
            "the live object: there is no BatchedModel simulated",
        ),
        (
            with_spec(LIVE, batching={"maxBatchSize": 0}),
            "the live object: spec.batching.maxBatchSize: 0 is below the minimum 1",
        ),
        ("a text", "the live object: there is no BatchedModel simulated"),
    ],
)
def test_a_live_object_that_is_none_is_named(
    live: object, complaint: str, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(NEW, live)
    assert files.diff() == 2
    assert capsys.readouterr().err == f"{complaint}\n"


def test_nothing_on_standard_input_is_named(
    files: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert main(["diff", str(files.manifest), "--live=-"]) == 2
    assert "there is no BatchedModel simulated" in capsys.readouterr().err


def test_a_live_file_that_is_not_there_is_named(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.live.unlink()
    assert files.diff() == 2
    assert capsys.readouterr().err == f"--live {files.live}: no such file\n"


def test_without_kubectl_that_is_said(
    files: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(files.live.parent))
    assert main(["diff", str(files.manifest)]) == 2
    assert "kubectl is not installed\n" in capsys.readouterr().err
