"""Operator and autoscaler that look after the models of listed namespaces, with Roles alone."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchedmodel_kube.names import METRICS_GROUP, REQUIRED_REPLICAS_METRIC
from cluster import CommandFailed, ControlPlane
from support.autoscaler_cluster import PretendSidecar, available, make_ready
from support.autoscaler_world import busy
from support.operator_process import OperatorProcess
from support.operator_team import CHILDREN, SIMULATED, Team
from support.plane import CRD_NAME, Running, apply, get, install_crd, sidecar_address, until
from support.release import Release, remove_namespace
from support.rights import asked

_HOME, _LISTED, _OTHER, _OUTSIDE = "few-home", "few-listed", "few-other", "few-outside"
_VALUES = (
    *("--set", f"watchNamespaces={{{_LISTED},{_OTHER}}}"),
    # Somebody whom Kubernetes itself has given no right to read all metrics.
    *("--set", "customMetrics.reader.serviceAccount=reader"),
)
_READER = "--as=system:serviceaccount:kube-system:reader"


@pytest.fixture(scope="module")
def release(control_plane: ControlPlane) -> Iterator[Release]:
    for name in (_LISTED, _OTHER, _OUTSIDE):
        _make(control_plane, name)
    found = Release(control_plane, _HOME)
    found.install(*_VALUES)
    yield found
    found.uninstall()
    for name in (_HOME, _LISTED, _OTHER, _OUTSIDE):
        remove_namespace(control_plane, name)


@pytest.fixture(scope="module")
def operator(
    release: Release, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    with release.operator(tmp_path_factory.mktemp("operator")) as process:
        yield process


@pytest.fixture(scope="module")
def autoscaler(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with release.autoscaler(tmp_path_factory.mktemp("autoscaler")) as running:
        yield running


def _make(plane: ControlPlane, namespace: str) -> None:
    apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})


def _metric(release: Release, namespace: str, *words: str) -> str:
    path = f"/apis/{METRICS_GROUP}/v1beta2/namespaces/{namespace}/batchedmodels.batchedmodel.dev"
    question = ("get", "--raw", f"{path}/minilm/{REQUIRED_REPLICAS_METRIC}")
    try:
        return release.plane.kubectl(*question, *words)
    except CommandFailed as error:
        return str(error)


def _is_one(answer: str) -> bool:
    try:
        (item,) = json.loads(answer)["items"]
    except ValueError:
        return False
    return bool(item["value"] == "1")


def test_models_of_listed_namespaces_are_looked_after_and_no_others(
    release: Release, operator: OperatorProcess, autoscaler: Running
) -> None:
    teams = [Team(release.plane, name) for name in (_LISTED, _OTHER, _OUTSIDE)]
    *listed, outside = teams
    for team in reversed(teams):
        team.write({**SIMULATED, "autoscaling": {"maxReplicas": 3}})
    for team in listed:
        until("its children are there", team.has_all)
        team.until("Reconciled", "True", "Applied")
    assert outside.has_none(*CHILDREN)
    assert "status" not in outside.get("batchedmodel/minilm")


def test_metrics_of_listed_namespaces_are_told_and_nobody_gets_a_right_to_others(
    release: Release, operator: OperatorProcess, autoscaler: Running
) -> None:
    sidecar = PretendSidecar(sidecar_address(release.plane, 2), busy(0.4))
    try:
        make_ready(release.plane, _LISTED, sidecar.address)
        until("the metric is told", lambda: _is_one(_metric(release, _LISTED, _READER)))
        assert "forbidden" in _metric(release, _OUTSIDE, _READER)
        # Whoever has the right to ask learns that the autoscaler knows nothing of them.
        assert "not found" in _metric(release, _OUTSIDE)
    finally:
        sidecar.close()


def test_nothing_was_forbidden_to_either(
    release: Release, operator: OperatorProcess, autoscaler: Running
) -> None:
    for part in ("operator", "autoscaler"):
        assert not asked(release.plane.audit_log, release.user(part)).refused
    assert "orbidden" not in operator.log() + autoscaler.log.read_text()


def test_what_helm_test_runs_finds_all_well_and_says_so(
    release: Release, operator: OperatorProcess, autoscaler: Running, tmp_path: Path
) -> None:
    code, said = release.helm_test(tmp_path)
    assert code == 0
    # Before it the time of day and the level.
    assert sorted(line.split(" ", 2)[2] for line in said.splitlines()) == [
        "ok: batchedmodel.dev/v1alpha1 is served",
        f"ok: {METRICS_GROUP}/v1beta1 answers",
        f"ok: {METRICS_GROUP}/v1beta2 answers",
        "ok: the operator works",
    ]


def test_a_namespace_that_goes_and_comes_back_does_not_disturb_the_others(
    release: Release, operator: OperatorProcess, autoscaler: Running
) -> None:
    remove_namespace(release.plane, _OTHER)
    listed, other = Team(release.plane, _LISTED), Team(release.plane, _OTHER)
    listed.write({**SIMULATED, "batching": {"maxBatchSize": 7}})
    until("an edit is applied", lambda: '"max_batch_size": 7' in listed.settings_file())
    _make(release.plane, _OTHER)
    # Its Roles went with it.
    release.upgrade(*_VALUES)
    other.write(SIMULATED)
    until("it is looked after again", other.has_all, 90)
    assert operator.alive()


def test_a_definition_that_goes_and_comes_back_is_noticed_without_a_right_to_watch_it(
    release: Release, operator: OperatorProcess, autoscaler: Running
) -> None:
    team = Team(release.plane, _LISTED)
    release.plane.kubectl("delete", f"crd/{CRD_NAME}", "--timeout=40s")
    # A garbage collector that has not met the kind yet, which it looks for every half minute, finds
    # it absent only after some tries, ever farther apart.
    until("the children go too", lambda: team.has_none("deployment/minilm"), 150)
    install_crd(release.plane)
    team.write(SIMULATED)
    until("the deployment is there again", lambda: team.has_all("deployment/minilm"), 90)
    assert operator.alive()


def test_what_helm_test_runs_says_what_is_wrong(
    release: Release, operator: OperatorProcess, autoscaler: Running, tmp_path: Path
) -> None:
    operator.stop()
    autoscaler.process.kill()
    code, said = release.helm_test(tmp_path, patience_seconds=3)
    assert code == 1
    assert "not ok: the operator works: nobody holds the operator's Lease" in said
    assert f"not ok: {METRICS_GROUP}/v1beta2 answers: " in said
    assert "ok: batchedmodel.dev/v1alpha1 is served" in said


def test_a_listed_namespace_that_is_not_there_holds_up_nobody(
    release: Release, tmp_path: Path
) -> None:
    plane = release.plane
    # Kubernetes ends no namespace while an API that it knows of has nobody who answers.
    with release.autoscaler(tmp_path / "before"):
        until("the metrics API answers", lambda: available(plane), 60)
        remove_namespace(plane, _OTHER, 120)
    listed, other = Team(plane, _LISTED), Team(plane, _OTHER)
    with (
        release.autoscaler(tmp_path / "autoscaler"),
        release.operator(tmp_path / "operator") as operator,
    ):
        listed.write({**SIMULATED, "batching": {"maxBatchSize": 9}})
        until("an edit is applied", lambda: '"max_batch_size": 9' in listed.settings_file())
        assert f'in the namespace "{_OTHER}"' in operator.log()
        _make(plane, _OTHER)
        release.upgrade(*_VALUES)
        other.write(SIMULATED)
        until("it is looked after", other.has_all, 90)


def test_the_roles_are_there_in_the_listed_namespaces_and_nowhere_else(release: Release) -> None:
    for namespace, there in ((_LISTED, True), (_OTHER, True), (_OUTSIDE, False)):
        found = get(release.plane, namespace, "rolebindings") or {"items": []}
        assert bool(found["items"]) is there
    assert not get(release.plane, "", f"clusterrole/{release.prefix}-operator")
