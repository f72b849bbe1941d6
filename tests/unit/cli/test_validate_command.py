"""`batchedmodel validate`: what a person reads of right and wrong manifests."""

from pathlib import Path

import pytest

from batchedmodel_cli.__main__ import main
from support.repository import ROOT

HEAD = "apiVersion: batchedmodel.dev/v1alpha1\nkind: {}\nmetadata: {{name: {}}}\n"


def written(folder: Path, name: str, text: str) -> str:
    file = folder / name
    file.write_text(text, "utf-8")
    return str(file)


def model(name: str, spec: str) -> str:
    return HEAD.format("BatchedModel", name) + f"spec: {spec}\n"


def test_each_right_manifest_is_said_to_be_valid_by_its_models_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = [str(ROOT / "examples" / name) for name in ("minilm.yaml", "class.yaml")]
    assert main(["validate", *files]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.splitlines()[0] == f"{files[0]}: minilm is valid"
    assert len(said.out.splitlines()) == 2


def test_each_mistake_has_a_line_of_its_own_and_right_files_are_judged_beside_wrong_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batching = "{maxBatchSize: 0, requestTimeoutSeconds: soon}"
    wrong = written(
        tmp_path, "wrong.yaml", model("a", f"{{model: {{handler: hf}}, batching: {batching}}}")
    )
    right = written(tmp_path, "right.yaml", model("b", "{model: {handler: simulated}}"))
    missing = str(tmp_path / "missing.yaml")
    assert main(["validate", wrong, missing, right]) == 2
    said = capsys.readouterr()
    assert said.out == f"{right}: b is valid\n"
    assert [line.split(" ")[:2] for line in said.err.splitlines()] == [
        [f"{wrong}:", "spec.batching.maxBatchSize:"],
        [f"{wrong}:", "spec.batching.requestTimeoutSeconds:"],
        [f"{missing}:", "no"],
    ]


def test_what_only_apply_refused_is_refused_without_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person learnt it from the API server."""
    spec = "{model: {handler: simulated, resources: {requests: {cpu: 2}, limits: {cpu: 1}}}}"
    assert main(["validate", written(tmp_path, "x.yaml", model("x", spec))]) == 2
    assert "spec.model.resources" in capsys.readouterr().err


def test_a_class_is_looked_for_in_all_files_and_is_valid_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    user = written(
        tmp_path, "m.yaml", model("m", "{className: small, model: {handler: simulated}}")
    )
    batching = "spec: {batching: {maxBatchSize: 4}}\n"
    own = written(tmp_path, "c.yaml", HEAD.format("BatchedModelClass", "small") + batching)
    assert main(["validate", user]) == 2
    assert "spec.className" in capsys.readouterr().err
    assert main(["validate", user, own]) == 0
    assert capsys.readouterr().out == f"{user}: m is valid\n{own}: small is valid\n"
