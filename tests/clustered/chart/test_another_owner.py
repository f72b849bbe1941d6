"""Where somebody else serves `custom.metrics.k8s.io`, models are scaled by external metrics."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchedmodel_kube.names import EXTERNAL_METRICS_GROUP, METRICS_GROUP, REQUIRED_REPLICAS_METRIC
from cluster import CommandFailed, ControlPlane
from support.autoscaler_cluster import PretendSidecar, make_ready
from support.autoscaler_world import busy
from support.operator_team import SIMULATED, Team
from support.plane import apply, sidecar_address, until
from support.release import Release, is_there, remove_namespace

_HOME, _TEAM = "second-owner", "second-owner-team"
_EXTERNAL = (
    *("--set", "customMetrics.register=false"),
    *("--set", "externalMetrics.register=true"),
    *("--set", "autoscaler.via=ExternalMetrics"),
    # Somebody whom Kubernetes itself has given no right to read all metrics.
    *("--set", "customMetrics.reader.serviceAccount=reader"),
)
_READER = "--as=system:serviceaccount:kube-system:reader"
_ADAPTER = f"v1beta1.{METRICS_GROUP}"


@pytest.fixture
def release(control_plane: ControlPlane) -> Iterator[Release]:
    """Not installed yet, in a cluster whose custom metrics are another adapter's."""
    adapter = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": _ADAPTER},
        "spec": {
            "group": METRICS_GROUP,
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {"name": "adapter", "namespace": "monitoring"},
        },
    }
    apply(control_plane, adapter)
    apply(control_plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _TEAM}})
    found = Release(control_plane, _HOME)
    yield found
    found.uninstall()
    # First, or the namespaces could not end: nobody answers for the API.
    control_plane.kubectl("delete", "apiservice", _ADAPTER)
    for name in (_HOME, _TEAM):
        remove_namespace(control_plane, name)


def test_the_installation_names_the_owner_and_goes_on_with_the_other_api(
    release: Release, tmp_path: Path
) -> None:
    plane, team = release.plane, Team(release.plane, _TEAM)
    with pytest.raises(CommandFailed, match=f"{_ADAPTER} is served by Service monitoring/adapter"):
        release.install()
    assert not is_there(plane, "clusterrole/bm-batchedmodel-operator")

    said = release.install(*_EXTERNAL)
    assert f"kubectl get apiservices | grep {EXTERNAL_METRICS_GROUP}" in said
    sidecar = PretendSidecar(sidecar_address(plane, 11), busy(2.0))
    try:
        with release.operator(tmp_path / "operator"), release.autoscaler(tmp_path / "autoscaler"):
            team.write({**SIMULATED, "autoscaling": {"maxReplicas": 3}})
            until("it is scaled", lambda: team.has_all("hpa/minilm"))
            make_ready(plane, _TEAM, sidecar.address)
            until("what the load needs is told", lambda: _told(plane, _TEAM) == "3")
            assert _told(plane, _HOME) == ""
            team.until("AutoscalingActive", "True", "MetricValid")
            until("there are more pods", lambda: _replicas(team) > 1)
            code, words = release.helm_test(tmp_path)
            assert code == 0
            assert f"ok: {EXTERNAL_METRICS_GROUP}/v1beta1 answers" in words
    finally:
        sidecar.close()


def _told(plane: ControlPlane, namespace: str) -> str:
    """The model's metric to who may read it; empty where there is none."""
    path = f"/apis/{EXTERNAL_METRICS_GROUP}/v1beta1/namespaces/{namespace}"
    question = f"{path}/{REQUIRED_REPLICAS_METRIC}?labelSelector=model%3Dminilm"
    try:
        (item,) = json.loads(plane.kubectl("get", "--raw", question, _READER))["items"]
    except CommandFailed:
        return ""
    return str(item["value"])


def _replicas(team: Team) -> int:
    return int(team.get("deployment/minilm")["spec"]["replicas"])
