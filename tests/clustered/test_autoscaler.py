"""The autoscaler at a real API server: registered, believed, followed by a stock HPA, and gone."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchedmodel_autoscaler.metrics import REGISTERED
from batchedmodel_contract.kubernetes_names import METRICS_GROUP, REQUIRED_REPLICAS_METRIC
from cluster import CommandFailed, ControlPlane
from support.autoscaler_cluster import (
    API_SERVICES,
    HOME,
    PretendSidecar,
    autoscaler,
    decoded_bundle,
    field,
    install,
    make_ready,
    model,
    probed,
)
from support.autoscaler_world import busy
from support.plane import apply, install_crd, until

TEAM = "autoscaled-team"
METRIC = f"namespaces/{TEAM}/batchedmodels.batchedmodel.dev/minilm/{REQUIRED_REPLICAS_METRIC}"


@pytest.fixture(scope="module")
def sidecar() -> Iterator[PretendSidecar]:
    pretend = PretendSidecar("127.0.64.1", busy(0.4))
    yield pretend
    pretend.close()


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane, sidecar: PretendSidecar) -> Iterator[ControlPlane]:
    """A control plane with all that the chart and the operator would have made."""
    install_crd(control_plane)
    team = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}}
    apply(control_plane, team)
    install(control_plane)
    apply(control_plane, *model(TEAM, "minilm"))
    make_ready(control_plane, TEAM, sidecar.address)
    yield control_plane
    for name in API_SERVICES:
        control_plane.kubectl("delete", "apiservice", name, "--ignore-not-found")
    for namespace in (TEAM, HOME):
        control_plane.kubectl(
            "delete", "namespace", namespace, "--ignore-not-found", "--wait=false"
        )


def available(plane: ControlPlane) -> bool:
    path = '.status.conditions[?(@.type=="Available")].status'
    return all(field(plane, "apiservice", name, path=path) == "True" for name in API_SERVICES)


def desired(plane: ControlPlane) -> str:
    return field(plane, "hpa", "minilm", f"--namespace={TEAM}", path=".status.desiredReplicas")


def test_it_registers_itself_and_is_asked_in_both_versions(
    plane: ControlPlane, tmp_path: Path
) -> None:
    with autoscaler(plane, tmp_path) as process:
        until("both APIServices are available", lambda: available(plane))
        for version in ("v1beta1", "v1beta2"):
            base = f"/apis/{METRICS_GROUP}/{version}"
            found = json.loads(plane.kubectl("get", "--raw", base))
            names = {resource["name"] for resource in found["resources"]}
            assert f"batchedmodels.batchedmodel.dev/{REQUIRED_REPLICAS_METRIC}" in names
            (item,) = json.loads(plane.kubectl("get", "--raw", f"{base}/{METRIC}"))["items"]
            assert item["value"] == "1"
        with pytest.raises(CommandFailed, match="NotFound"):
            plane.kubectl("get", "--raw", f"{base}/{METRIC.replace('minilm', 'other')}")
        answers = 'batchedmodel_autoscaler_answers_total{metric="%s",reason="InBand"}'
        assert answers % REQUIRED_REPLICAS_METRIC in probed(plane, "/metrics")
        until("it says so", lambda: f"\n{REGISTERED} 2.0\n" in probed(plane, "/metrics"))
        process.terminate()
        assert process.wait(10) == 0


def test_a_stock_hpa_follows_the_work_up_and_down_and_holds_when_blind(
    plane: ControlPlane, sidecar: PretendSidecar, tmp_path: Path
) -> None:
    with autoscaler(plane, tmp_path) as process:
        sidecar.stats = busy(2.0)
        until("three replicas for 2.0 devices' work", lambda: desired(plane) == "3", 60)
        until(
            "the Deployment has them",
            lambda: (
                field(plane, "deploy", "minilm", f"--namespace={TEAM}", path=".spec.replicas")
                == "3"
            ),
        )
        sidecar.stats = None
        active = '.status.conditions[?(@.type=="ScalingActive")].status'
        until(
            "the HPA says that it is not told",
            lambda: field(plane, "hpa", "minilm", f"--namespace={TEAM}", path=active) == "False",
        )
        assert desired(plane) == "3"
        sidecar.stats = busy(0.1)
        until("one replica is enough", lambda: desired(plane) == "1", 60)
        sidecar.stats = busy(2.0)
        until("three replicas again", lambda: desired(plane) == "3", 60)
        process.kill()
        until(
            "the HPA misses the killed autoscaler",
            lambda: field(plane, "hpa", "minilm", f"--namespace={TEAM}", path=active) == "False",
        )
        assert desired(plane) == "3"


def test_before_it_is_ready_again_its_new_authority_stands_beside_the_old_one(
    plane: ControlPlane, sidecar: PretendSidecar, tmp_path: Path
) -> None:
    before = [decoded_bundle(plane, name) for name in API_SERVICES]
    with autoscaler(plane, tmp_path):
        after = [decoded_bundle(plane, name) for name in API_SERVICES]
        for old, new in zip(before, after, strict=True):
            assert new.count(b"BEGIN CERTIFICATE") == old.count(b"BEGIN CERTIFICATE") + 1
            assert old in new
        until("both APIServices are available", lambda: available(plane))


def test_a_bundle_that_somebody_spoils_is_made_right(plane: ControlPlane, tmp_path: Path) -> None:
    with autoscaler(plane, tmp_path):
        until("both APIServices are available", lambda: available(plane))
        patch = json.dumps({"spec": {"caBundle": None}})
        plane.kubectl("patch", "apiservice", API_SERVICES[0], "--type=merge", "--patch", patch)
        until("the bundle is back", lambda: decoded_bundle(plane, API_SERVICES[0]) != b"")
        until("both APIServices are available", lambda: available(plane))


def test_it_is_ready_where_the_apis_are_absent_or_anothers(
    plane: ControlPlane, tmp_path: Path
) -> None:
    absent, anothers = API_SERVICES
    plane.kubectl("delete", "apiservice", absent)
    patch = json.dumps({"spec": {"service": {"name": "adapter"}}})
    plane.kubectl("patch", "apiservice", anothers, "--type=merge", "--patch", patch)
    bundle = decoded_bundle(plane, anothers)
    with autoscaler(plane, tmp_path):
        assert decoded_bundle(plane, anothers) == bundle
    install(plane)


def test_deleting_its_namespace_leaves_nothing_terminating(
    plane: ControlPlane, tmp_path: Path
) -> None:
    with autoscaler(plane, tmp_path):
        until("both APIServices are available", lambda: available(plane))
        plane.kubectl("delete", "namespace", HOME, "--timeout=50s")
        for name in API_SERVICES:
            assert field(plane, "apiservice", name, path=".metadata.name") == ""
    plane.kubectl("delete", "namespace", TEAM, "--timeout=50s")
