"""The autoscaler at a real API server: registered, believed, followed by a stock HPA, and gone."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from autoscaling_loop.hpa import Autoscaler, Memory, read_behavior, step
from batchedmodel_autoscaler.telemetry import REGISTERED
from batchedmodel_kube.names import (
    BLIND,
    METRICS_GROUP,
    NAME_LABEL,
    QUEUE_LENGTH_METRIC,
    REQUIRED_REPLICAS_METRIC,
)
from cluster import CommandFailed, ControlPlane
from support.autoscaler_cluster import (
    API_SERVICES,
    HOME,
    REVISION,
    PretendSidecar,
    autoscaler,
    available,
    decoded_bundle,
    deployment,
    field,
    install,
    probed,
    scaled_by_queue,
    watched_model,
)
from support.autoscaler_world import CALM, busy
from support.plane import Manifest, PretendAdminPort, apply, set_pod_status, sidecar_address, until

TEAM = "autoscaled-team"
ARITHMETIC = [
    (1, 11),  # exactly the tolerance
    (1, 12),  # beyond it
    (2, 38),  # 3.8 is rounded up
    (1, 85),  # 9, but five at a time
    (4, 95),  # 10, but nine at most
    (6, 55),  # 8 % below
    (6, 52),  # 13 % below, and 5.2 is rounded up
    (7, 1),  # 1, but half at a time: 3.5 is rounded down
]
"""Replicas there are, and rows that wait where ten are wanted per replica."""
METRIC = f"namespaces/{TEAM}/batchedmodels.batchedmodel.dev/minilm/{REQUIRED_REPLICAS_METRIC}"


@pytest.fixture(scope="module")
def sidecar(control_plane: ControlPlane) -> Iterator[PretendSidecar]:
    pretend = PretendSidecar(sidecar_address(control_plane, 3), busy(0.4))
    yield pretend
    pretend.close()


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane, sidecar: PretendSidecar) -> Iterator[ControlPlane]:
    """A control plane with all that the chart and the operator would have made."""
    with watched_model(control_plane, TEAM, sidecar):
        yield control_plane


def desired(plane: ControlPlane, name: str = "minilm") -> Any:
    return field(plane, TEAM, f"hpa/{name}", "status", "desiredReplicas")


def desires(plane: ControlPlane, name: str, replicas: int) -> bool:
    return bool(desired(plane, name) == replicas)


def remembered(plane: ControlPlane) -> dict[str, Any]:
    return field(plane, TEAM, "bm/minilm", "status", "capacity") or {}


def tells(plane: ControlPlane, rows: int) -> bool:
    """Whether the queue is that long, by what the API server passes on."""
    path = f"/apis/{METRICS_GROUP}/v1beta2/{METRIC}"
    path = path.replace(REQUIRED_REPLICAS_METRIC, QUEUE_LENGTH_METRIC)
    # The API server may still go by the authority of the autoscaler before.
    if not plane.probe.answers(path):
        return False
    (item,) = plane.probe.read(path)["items"]
    return bool(item["value"] == str(rows))


def test_it_registers_itself_and_is_asked_in_both_versions(
    plane: ControlPlane, tmp_path: Path
) -> None:
    with autoscaler(plane, tmp_path) as process:
        bases = [f"/apis/{METRICS_GROUP}/{version}" for version in ("v1beta1", "v1beta2")]
        # The APIServices may still be called available after the autoscaler of an earlier test.
        until("both versions are answered", lambda: all(map(plane.probe.answers, bases)))
        assert available(plane)
        for base in bases:
            found = json.loads(plane.kubectl("get", "--raw", base))
            names = {resource["name"] for resource in found["resources"]}
            assert f"batchedmodels.batchedmodel.dev/{REQUIRED_REPLICAS_METRIC}" in names
            (item,) = json.loads(plane.kubectl("get", "--raw", f"{base}/{METRIC}"))["items"]
            assert item["value"] == "1"
        with pytest.raises(CommandFailed, match="NotFound"):
            plane.kubectl("get", "--raw", f"{base}/{METRIC.replace('minilm', 'other')}")
        for wrong, status in (
            (METRIC.replace(REQUIRED_REPLICAS_METRIC, "other"), 'the metric "other" is not known'),
            (f"{METRIC}?metricLabelSelector=a%3Db", "has no labels"),
        ):
            with pytest.raises(CommandFailed, match=status):
                plane.kubectl("get", "--raw", f"{base}/{wrong}")
        answers = 'batchedmodel_autoscaler_answers_total{metric="%s",reason="InBand"}'
        assert answers % REQUIRED_REPLICAS_METRIC in probed(plane, "/metrics")
        until("it says so", lambda: f"\n{REGISTERED} 2.0\n" in probed(plane, "/metrics"))
        process.terminate()
        assert process.wait(10) == 0


def test_a_pod_with_only_the_label_is_not_asked(
    plane: ControlPlane, sidecar: PretendSidecar, tmp_path: Path
) -> None:
    asked: list[str] = []

    def notes(path: str) -> None:
        asked.append(path)

    stranger = PretendAdminPort(sidecar_address(plane, 7), notes)
    other = deployment(TEAM, "others", {NAME_LABEL: "minilm", "app": "others"}, replicas=9)
    apply(plane, other)
    owner = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "others",
        "uid": field(plane, TEAM, "deploy/others", "metadata", "uid"),
        "controller": True,
    }
    metadata = {"name": "stranger", "namespace": TEAM, "labels": {NAME_LABEL: "minilm"}}
    containers = [{"name": "model", "image": "none"}]
    apply(
        plane,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**metadata, "ownerReferences": [owner]},
            "spec": {"containers": containers},
        },
    )
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"phase": "Running", "podIP": stranger.address, "conditions": [ready]}
    set_pod_status(plane, TEAM, "stranger", status)
    try:
        with autoscaler(plane, tmp_path):
            until("the model's own is asked often", lambda: answered(plane) >= 20)
            assert not asked
            assert "\nbatchedmodel_autoscaler_pods 1.0\n" in probed(plane, "/metrics")
    finally:
        stranger.close()
        # The Deployment takes its pod along, now or later.
        plane.kubectl("delete", "deploy/others", f"-n={TEAM}", "--wait=false")


def answered(plane: ControlPlane) -> float:
    """Questions to sidecars that were answered."""
    found = re.search(
        r'batchedmodel_autoscaler_polls_total{result="answered"} (\S+)', probed(plane, "/metrics")
    )
    return float(found[1]) if found else 0.0


def test_a_stock_hpa_follows_the_work_up_and_down_and_holds_when_blind(
    plane: ControlPlane, sidecar: PretendSidecar, tmp_path: Path
) -> None:
    with autoscaler(plane, tmp_path) as process:
        sidecar.stats = busy(2.0)
        until("three replicas for 2.0 devices' work", lambda: desired(plane) == 3, 60)
        until(
            "the Deployment has them",
            lambda: field(plane, TEAM, "deploy/minilm", "spec", "replicas") == 3,
        )
        sidecar.stats = None
        active = ("status", "conditions", "ScalingActive")
        until(
            "the HPA says that it is not told",
            lambda: field(plane, TEAM, "hpa/minilm", *active, "status") == "False",
        )
        said = field(plane, TEAM, "hpa/minilm", *active, "message")
        assert f"{BLIND}: none of its" in said, "by it the operator knows"
        assert desired(plane) == 3
        sidecar.stats = busy(0.1)
        until("one replica is enough", lambda: desired(plane) == 1, 60)
        sidecar.stats = busy(2.0)
        until("three replicas again", lambda: desired(plane) == 3, 60)
        process.kill()
        until(
            "the HPA misses the killed autoscaler",
            lambda: field(plane, TEAM, "hpa/minilm", *active, "status") == "False",
        )
        assert desired(plane) == 3


def test_what_it_learns_is_remembered_in_the_status_beside_the_operators(
    plane: ControlPlane, sidecar: PretendSidecar, tmp_path: Path
) -> None:
    sidecar.stats = replace(busy(0.4), rows_per_second=410.0, shortest_latency_seconds=0.0315)
    with autoscaler(plane, tmp_path):
        until("it is remembered", lambda: remembered(plane).get("rowsPerSecond") == 410)
    found = remembered(plane)
    assert (found["revision"], found["shortestLatencyMilliseconds"]) == (REVISION, 31.5)
    assert found["startupSeconds"] >= 30
    # The operator applies its own fields, and those of others stay.
    operators: Manifest = {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "metadata": {"name": "minilm", "namespace": TEAM},
        "status": {"replicas": 1},
    }
    plane.kubectl(
        *("apply", "--server-side", "--force-conflicts", "--subresource=status"),
        *("--field-manager=batchedmodel-operator", "--filename=-"),
        stdin=json.dumps(operators),
    )
    assert remembered(plane) == found


@pytest.mark.nightly
def test_what_is_little_else_than_what_is_remembered_is_not_written(
    plane: ControlPlane, sidecar: PretendSidecar, tmp_path: Path
) -> None:
    sidecar.stats = replace(busy(0.4), rows_per_second=510.0, shortest_latency_seconds=0.0315)
    with autoscaler(plane, tmp_path):
        until("it is remembered", lambda: remembered(plane).get("rowsPerSecond") == 510, 60)
    found = remembered(plane)
    sidecar.stats = replace(busy(0.4), rows_per_second=530.0, shortest_latency_seconds=0.0315)
    with autoscaler(plane, tmp_path) as process:
        # It looks for something to write every fifteen seconds.
        time.sleep(25)
        process.terminate()
        assert process.wait(10) == 0
    assert remembered(plane) == found


def test_a_running_controller_does_the_arithmetic_that_the_simulator_does(
    plane: ControlPlane, sidecar: PretendSidecar, tmp_path: Path
) -> None:
    """Tolerance, rounding, policies of pods and of percent, bounds; the windows are left at 0."""
    behavior = {
        "scaleUp": {
            "stabilizationWindowSeconds": 0,
            "policies": [{"type": "Pods", "value": 5, "periodSeconds": 60}],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": 0,
            "policies": [{"type": "Percent", "value": 50, "periodSeconds": 60}],
        },
    }
    ours = Autoscaler(
        min_replicas=1, max_replicas=9, average_value=10, behavior=read_behavior(behavior)
    )
    with autoscaler(plane, tmp_path):
        for number, (start, rows) in enumerate(ARITHMETIC):
            # A name of its own each time: the controller remembers nothing of it.
            name = f"arithmetic-{number}"
            # Another run of the sidecar, so that no average of before is told.
            sidecar.stats = replace(CALM, instance=name, queue_length=rows)
            until("the queue is told", partial(tells, plane, rows))
            apply(plane, *scaled_by_queue(TEAM, name, "minilm", start, ours, behavior))
            made = step(ours, Memory(), value=rows, present=start, now=0.0).replicas
            until(f"{rows} rows make {made} of {start}", partial(desires, plane, name, made), 60)
            plane.kubectl("delete", "hpa,deploy", name, f"--namespace={TEAM}", "--wait=false")


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
            assert field(plane, "", f"apiservice/{name}", "metadata") == ""
    plane.kubectl("delete", "namespace", TEAM, "--timeout=50s")
