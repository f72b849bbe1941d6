"""Another definition of BatchedModel takes fields out of manifests that nobody has edited."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import ControlPlane
from support.operator_process import OperatorProcess, PretendSidecar, run_pods
from support.operator_team import SIMULATED, Team
from support.plane import CRD, CRDS, apply, install_crd, until

_SPEC: dict[str, Any] = {
    **SIMULATED,
    "pod": {"nodeSelector": {"disk": "ssd"}},
    "batching": {"trustPriority": True},
    "autoscaling": {"minReplicas": 1, "maxReplicas": 3, "profile": "Fast"},
}
_NEW_FIELDS = (("pod", "nodeSelector"), ("batching", "trustPriority"), ("autoscaling", "profile"))
_ALL = ("deployment/minilm", "service/minilm", "configmap/minilm-batching", "hpa/minilm")
_CLASS_CRD = CRDS / "batchedmodelclasses.yaml"
_SAID = ("Warning", "DefinitionChanged")


@pytest.fixture
def serving(running: OperatorProcess, team: Team, sidecar: PretendSidecar) -> Iterator[Team]:
    """A model that serves and uses all the fields that an earlier definition did not have."""
    team.write(_SPEC)
    until("all children are there", lambda: team.has_all(*_ALL))
    sidecar.settings_hash = team.settings()
    until("its pod is there", lambda: len(run_pods(team.plane, team.namespace, sidecar)) == 1)
    team.until("Progressing", "False", "Complete")
    team.quiet()
    yield team
    install_crd(team.plane)


def test_nothing_is_rolled_or_lost_while_an_earlier_definition_is_there(
    serving: Team, plane: ControlPlane
) -> None:
    before, objects = serving.get("batchedmodel/minilm"), _objects(serving)
    _install_earlier(plane, CRD, *_NEW_FIELDS)
    until("it reads otherwise", lambda: "nodeSelector" not in _manifest(serving)["pod"])
    serving.patch("service/minilm", {"metadata": {"annotations": {"look": "again"}}})
    until("it is said", lambda: _SAID in serving.events())
    serving.quiet()
    assert _objects(serving) == objects
    install_crd(plane)
    until("all of it is back", lambda: _manifest(serving) == before["spec"])
    assert serving.get("batchedmodel/minilm") == before
    assert _objects(serving) == objects


@pytest.mark.nightly
def test_a_manifest_that_was_written_meanwhile_is_followed_once_it_is_applied_anew(
    serving: Team, plane: ControlPlane
) -> None:
    objects = _objects(serving)
    _install_earlier(plane, CRD, *_NEW_FIELDS)
    until("it reads otherwise", lambda: "nodeSelector" not in _manifest(serving)["pod"])
    # With any write the API server drops for good what it left out.
    serving.plane.kubectl("annotate", "bm/minilm", "by=us", f"--namespace={serving.namespace}")
    install_crd(plane)
    until("the field can be written", lambda: _takes_profile(serving))
    serving.quiet()
    assert "nodeSelector" not in _manifest(serving)["pod"]
    assert _objects(serving) == objects
    serving.write(_SPEC)
    serving.until("Reconciled", "True", "Applied")
    serving.quiet()
    assert _objects(serving) == objects
    serving.write({**_SPEC, "batching": {"maxBatchSize": 7}})
    until("an edit is applied", lambda: '"max_batch_size": 7' in serving.settings_file())


def test_a_class_that_loses_fields_rolls_no_model(
    running: OperatorProcess, team: Team, plane: ControlPlane, sidecar: PretendSidecar
) -> None:
    head = {"apiVersion": "batchedmodel.dev/v1alpha1", "kind": "BatchedModelClass"}
    spec = {"pod": {"nodeSelector": {"disk": "ssd"}}}
    apply(plane, {**head, "metadata": {"name": "altered"}, "spec": spec})
    team.write({**SIMULATED, "className": "altered"})
    until("all children are there", team.has_all)
    sidecar.settings_hash = team.settings()
    until("its pod is there", lambda: len(run_pods(plane, team.namespace, sidecar)) == 1)
    team.until("Progressing", "False", "Complete")
    team.quiet()
    before = _objects(team)

    def reads() -> Any:
        return (team.get("bmc/altered") or {"spec": spec})["spec"]["pod"]

    try:
        _install_earlier(plane, _CLASS_CRD, ("pod", "nodeSelector"))
        until("it reads otherwise", lambda: "nodeSelector" not in reads())
        team.patch("service/minilm", {"metadata": {"annotations": {"look": "again"}}})
        until("it is said", lambda: _SAID in team.events())
        team.quiet()
        assert _objects(team) == before
    finally:
        install_crd(plane)
    until("all of it is back", lambda: reads() == spec["pod"])
    team.patch("service/minilm", {"metadata": {"annotations": {"look": "at it"}}})
    team.quiet()
    assert _objects(team) == before
    team.until("Reconciled", "True", "Applied")
    plane.kubectl("delete", "batchedmodelclass", "altered")


def _takes_profile(team: Team) -> bool:
    said = team.plane.kubectl(
        *("patch", "bm/minilm", f"--namespace={team.namespace}", "--type=merge"),
        *("--dry-run=server", "--output=json"),
        *("--patch", json.dumps({"spec": {"autoscaling": {"profile": "Fast"}}})),
    )
    return bool("profile" in json.loads(said)["spec"]["autoscaling"])


def _install_earlier(plane: ControlPlane, file: Path, *lacks: tuple[str, str]) -> None:
    definition = yaml.safe_load(file.read_text())
    (version,) = definition["spec"]["versions"]
    fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    for section, field in lacks:
        del fields[section]["properties"][field]
    words = ("apply", "--server-side", "--force-conflicts", "--filename=-")
    plane.kubectl(*words, stdin=json.dumps(definition))


def _manifest(team: Team) -> dict[str, Any]:
    found = team.get("batchedmodel/minilm")
    # While a definition changes, the API server answers nobody for a moment.
    manifest: dict[str, Any] = {"pod": {"nodeSelector": {}}} if found is None else found["spec"]
    return manifest


def _objects(team: Team) -> dict[str, Any]:
    return {name: body.get("spec") or body["data"] for name in _ALL if (body := team.get(name))}
