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
SIMULATION = (f"--profile={ROOT / 'examples' / 'simulated-profile.json'}", "--rate=5000")


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


@pytest.mark.slow
@pytest.mark.nightly
def test_the_example_of_the_docs_is_what_is_printed(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    assert files.diff(*SIMULATION) == 1
    printed, told = (text.splitlines() for text in (capsys.readouterr().out, _example()))
    begins = told.index("simulated, 5,000/s (Poisson):")
    assert printed[:begins] == told[:begins]
    # What is simulated may differ a little with the scheduler; its form may not.
    assert [row[0] for row in map(_cells, printed)] == [row[0] for row in map(_cells, told)]
    for row, of_docs in zip(printed[begins:], told[begins:], strict=True):
        for one, other in zip(_numbers(row), _numbers(of_docs), strict=True):
            assert one == pytest.approx(other, rel=0.1), of_docs


def _example() -> str:
    found = re.search(r"simulated-profile.json`:\n\n```\n(.*?)```", PAGE, re.S)
    assert found is not None
    return found[1]


def _cells(line: str) -> list[str]:
    return re.split(r" {3,}", line.strip())


def _numbers(line: str) -> list[float]:
    return [float(found.replace(",", "")) for found in re.findall(r"\d[\d,.]*", line)]


def test_what_is_live_already_changes_nothing(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(LIVE, LIVE)
    assert files.diff(*SIMULATION) == 0
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


@pytest.mark.slow
def test_the_document_has_the_keys_that_are_promised(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    assert files.diff(*SIMULATION, "--requests=1000", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    promised = PAGE + (ROOT / "docs" / "simulate.md").read_text("utf-8")
    fields = {**found, "effects": {}, "changes": [{**found["changes"][0], "new": None}]}
    for key in _keys(fields):
        assert f"`{key}`" in promised, key
    changed = {one["field"]: one for one in found["changes"]}
    assert changed["spec.batching.maxBatchSize"] == {
        "field": "spec.batching.maxBatchSize",
        "old": 16,
        "new": 32,
        "effects": ["EffectiveAtOnce"],
    }
    for effect in found["effects"]:
        assert f"`{effect}`" in PAGE
    assert found["pods"] == {"old": 3, "new": 3}
    assert found["replacement"]["devices"] == 0
    old, new = found["forecast"]["old"], found["forecast"]["new"]
    assert new["highest_rate"] > old["highest_rate"] > 5000


def _keys(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(_keys, value.values()))
    return set().union(*map(_keys, value)) if isinstance(value, list) else set()


@pytest.mark.slow
def test_another_accelerator_is_foretold_with_its_own_profile_only(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(with_spec(LIVE, accelerator={"count": 2}), LIVE)
    assert files.diff(*SIMULATION, "--requests=1000") == 1
    said = capsys.readouterr().out
    assert "note: then: the profile is of another accelerator; --new-profile names" in said
    profile = json.loads((ROOT / "examples" / "simulated-profile.json").read_text("utf-8"))
    for point in profile["points"]:
        point["seconds"] /= 2
    faster = tmp_path / "faster.json"
    faster.write_text(json.dumps(profile), "utf-8")
    assert files.diff(*SIMULATION, "--requests=1000", f"--new-profile={faster}", "--json") == 1
    found = json.loads(capsys.readouterr().out)["forecast"]
    assert found["new"]["throughput_per_replica"] == pytest.approx(
        2 * found["old"]["throughput_per_replica"], rel=0.2
    )


def test_without_pods_nothing_is_foretold_of_them(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(with_spec(LIVE, suspend=True), LIVE)
    assert files.diff(*SIMULATION, "--requests=1000") == 1
    said = capsys.readouterr().out
    assert "ScalesPods: 3 pods before, 0 after" in said
    assert "note: then: there are no pods" in said


def test_what_the_simulator_knows_nothing_of_is_not_simulated(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(with_spec(LIVE, service={"port": 8080}), LIVE)
    assert files.diff(*SIMULATION) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("simulated: nothing")
    own = with_spec(LIVE, model={"protocol": "OpenAI", "image": "own:1"})
    files.write(with_spec(own, generation={"maxConcurrentRequests": 8}), own)
    assert files.diff(*SIMULATION) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("simulated: nothing")


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
            "the live object: there is no BatchedModel simulated, only minilm",
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
    assert "nothing was given; is there a BatchedModel simulated?" in capsys.readouterr().err


def test_a_live_file_that_is_not_there_is_named(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.live.unlink()
    assert files.diff() == 2
    assert capsys.readouterr().err == f"--live {files.live}: no such file\n"


def test_without_kubectl_the_other_way_is_named(
    files: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(files.live.parent))
    assert main(["diff", str(files.manifest)]) == 2
    assert "kubectl is not installed; --live FILE takes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--rate=5"], "--profile is missing"),
        (["--new-profile=x.json"], "--profile is missing"),
        ([SIMULATION[0]], "--rate or --trace is missing"),
        (["--profile=none.json", "--rate=5"], "--profile none.json: cannot be read"),
    ],
)
def test_a_simulation_that_lacks_something_is_refused_before_anything_is_asked(
    options: list[str], complaint: str, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.live.unlink()
    assert files.diff(*options) == 2
    assert complaint in capsys.readouterr().err
