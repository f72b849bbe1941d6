"""`batchedmodel diff` with kubectl and a real API server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from batchedmodel_cli.__main__ import main
from cluster.kubernetes import ControlPlane
from support.plane import install_crd

NAMESPACE: Final = "looked-at-before"
MANIFEST: Final = """
apiVersion: batchedmodel.dev/v1alpha1
kind: BatchedModel
metadata: {{name: minilm, namespace: {namespace}}}
spec:
  model: {{handler: simulated}}
  batching: {{maxBatchSize: {rows}}}
"""


@pytest.fixture(scope="module")
def server(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane with the custom resource, and a namespace for these tests."""
    install_crd(control_plane)
    control_plane.kubectl("create", "namespace", NAMESPACE)
    yield control_plane
    control_plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def test_an_edit_is_compared_with_the_object_that_the_api_server_has(
    server: ControlPlane,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "model.yaml"

    file.write_text(MANIFEST.format(namespace=NAMESPACE, rows=16), "utf-8")
    assert main(["diff", str(file)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "the live object: there is no BatchedModel minilm\n"

    server.kubectl("apply", "--filename", file)
    assert main(["diff", str(file)]) == 0
    assert capsys.readouterr().out == "minilm: nothing is different\n"

    file.write_text(MANIFEST.format(namespace=NAMESPACE, rows=32), "utf-8")
    assert main(["diff", str(file)]) == 1
    assert "spec.batching.maxBatchSize   16 -> 32   EffectiveAtOnce" in capsys.readouterr().out

    assert main(["diff", str(file), "--namespace=default"]) == 2
    assert "does not match the namespace" in capsys.readouterr().err
    assert main(["diff", str(file), "--context=nobody's"]) == 2
    assert "kubectl: " in capsys.readouterr().err


def test_what_others_have_patched_stays_where_apply_leaves_it(
    server: ControlPlane,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It foretold that apply takes out what was patched in, which `kubectl apply` leaves."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "model.yaml"
    file.write_text(MANIFEST.format(namespace=NAMESPACE, rows=16).replace("minilm", "patched"))
    server.kubectl("apply", "--filename", file)
    where = ("batchedmodel/patched", f"--namespace={NAMESPACE}")
    patch = {"spec": {"batching": {"maxQueueSize": 4711, "maxBatchSize": 64}, "replicas": 3}}
    server.kubectl("patch", *where, "--type=merge", f"--patch={json.dumps(patch)}")
    before = server.kubectl("get", *where, "--output=json")

    assert main(["diff", str(file), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    changes = {one["field"]: (one["old"], one["new"]) for one in found["changes"]}
    assert changes == {"spec.batching.maxBatchSize": (64, 16)}
    assert server.kubectl("get", *where, "--output=json") == before, "nothing is written"
    server.kubectl("apply", "--filename", file)
    spec = json.loads(server.kubectl("get", *where, "--output=json"))["spec"]
    assert (spec["batching"], spec["replicas"]) == (
        {"maxBatchSize": 16, "maxQueueSize": 4711},
        3,
    )
    assert main(["diff", str(file)]) == 0
