"""One object that cannot be read costs its own model alone, and its status says why."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import ControlPlane
from support.odd_objects import create, deep, unbounded, wide
from support.operator_process import OTHER_LEASE, OperatorProcess, operator
from support.operator_team import SIMULATED, Team
from support.plane import apply, until


@pytest.fixture
def odd(plane: ControlPlane) -> Iterator[str]:
    """A namespace for odd models."""
    name = "odd-objects"
    apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    with unbounded(plane, name):
        yield name


def test_models_that_cannot_be_read_do_not_keep_an_operator_from_starting(
    plane: ControlPlane, team: Team, odd: str, tmp_path: Path
) -> None:
    create(plane, deep(odd, "deep"))
    for number in range(12):
        create(plane, wide(odd, f"wide-{number}"))
    team.write(SIMULATED)
    with operator(plane, tmp_path, lease=OTHER_LEASE) as starting:
        until("it leads", lambda: starting.leads() is True)
        until("the others' children are there", team.has_all)
        until("it is said of the deep one", lambda: "nested" in _why(plane, odd, "deep"))
        assert starting.alive()
        assert "watching failed" not in starting.log()
        assert starting.memory_megabytes() < 250


def test_models_that_cannot_be_read_leave_an_operator_that_runs_to_the_others(
    plane: ControlPlane, running: OperatorProcess, team: Team, odd: str
) -> None:
    create(plane, deep(odd, "deep"))
    for number in range(4):
        create(plane, wide(odd, f"wide-{number}"))
    team.write(SIMULATED)
    until("the others' children are there", team.has_all)
    until("it is said of the deep one", lambda: "nested" in _why(plane, odd, "deep"))
    until("it is said of the wide one", lambda: "bytes" in _why(plane, odd, "wide-0"))
    assert "InvalidObject" in _why(plane, odd, "deep")
    team.write({**SIMULATED, "batching": {"maxBatchSize": 9}})
    until("an edit is applied", lambda: '"max_batch_size": 9' in team.settings_file())
    assert running.alive()
    assert "watching failed" not in running.log()
    assert running.memory_megabytes() < 250


def test_any_character_that_a_manifest_may_have_reaches_the_pods(
    running: OperatorProcess, team: Team
) -> None:
    # In YAML, which an apply is, JSON's escapes of the first are none.
    text = "\U0001f600 \\ud83d\\ude00 \u0001\u001b\u2028\u00e9"
    team.write({"model": {"handler": "simulated", "env": {"GREETING": text}}})
    until("the others' children are there", team.has_all)
    (container,) = team.get("deployment/minilm")["spec"]["template"]["spec"]["containers"]
    assert {"name": "GREETING", "value": text} in container["env"]


def test_a_strangers_large_object_is_told_to_be_in_the_way(
    plane: ControlPlane, running: OperatorProcess, team: Team
) -> None:
    metadata = {"name": "minilm-batching", "namespace": team.namespace}
    stranger = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    text = json.dumps({**stranger, "data": {f"k{number}": "x" * 1_000 for number in range(900)}})
    create(plane, text)
    team.write(SIMULATED)
    team.until("Reconciled", "False", "NameConflict")


def test_a_deployment_that_became_too_large_is_told_to_be_in_the_way_until_it_is_deleted(
    plane: ControlPlane, running: OperatorProcess, team: Team, tmp_path: Path
) -> None:
    team.write(SIMULATED)
    team.until("Reconciled", "True", "Applied")
    where = f"--namespace={team.namespace}"
    patch = tmp_path / "patch.json"
    large = [{"name": f"N{number}", "value": "x" * 1_000} for number in range(300)]
    path = "/spec/template/spec/containers/0/env"
    patch.write_text(json.dumps([{"op": "add", "path": path, "value": large}]))
    plane.kubectl("patch", "deployment/minilm", where, "--type=json", f"--patch-file={patch}")
    team.until("Reconciled", "False", "NameConflict")
    assert "too large to be read" in _why(plane, team.namespace, "minilm")
    plane.kubectl("delete", "deployment/minilm", where)
    team.until("Reconciled", "True", "Applied")


def _why(plane: ControlPlane, namespace: str, name: str) -> str:
    """Reason and sentence of its condition `Reconciled`."""
    path = r'{.status.conditions[?(@.type=="Reconciled")]}'
    return plane.kubectl(
        *("get", f"batchedmodel/{name}", f"--namespace={namespace}", f"--output=jsonpath={path}")
    )
