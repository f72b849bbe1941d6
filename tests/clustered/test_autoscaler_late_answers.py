"""An autoscaler whom the API server answers later than a Lease lasts goes on with what it knows."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchedmodel_autoscaler.telemetry import LEADER, MODELS
from batchedmodel_kube.names import METRICS_GROUP, REQUIRED_REPLICAS_METRIC
from cluster import ControlPlane
from support.autoscaler_cluster import (
    PretendSidecar,
    autoscaler,
    available,
    model,
    probed,
    watched_model,
)
from support.autoscaler_world import busy
from support.faulty_proxy import Fault, FaultyProxy
from support.plane import apply, sidecar_address, until

TEAM = "late-answers-team"
METRIC = (
    f"/apis/{METRICS_GROUP}/v1beta2/namespaces/{TEAM}/batchedmodels.batchedmodel.dev/minilm"
    f"/{REQUIRED_REPLICAS_METRIC}"
)


@pytest.fixture
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    sidecar = PretendSidecar(sidecar_address(control_plane, 9), busy(0.4))
    with watched_model(control_plane, TEAM, sidecar):
        yield control_plane
    sidecar.close()


@pytest.mark.nightly
@pytest.mark.parametrize("late_by", [8.0, 22.0])
def test_it_serves_its_metrics_meanwhile_and_catches_up(
    plane: ControlPlane, tmp_path: Path, late_by: float
) -> None:
    with (
        FaultyProxy(plane).running() as proxy,
        autoscaler(plane, tmp_path, server=proxy.url) as process,
    ):
        until("it leads", lambda: f"{LEADER} 1.0" in probed(plane, "/metrics"))
        until("the API server finds it", lambda: available(plane))
        began = time.monotonic()
        with proxy.fault(Fault(late_by=late_by, leases_too=True)):
            until("it leads no more", lambda: f"{LEADER} 0.0" in probed(plane, "/metrics"), 15)
            while time.monotonic() < began + 30:
                (item,) = json.loads(plane.kubectl("get", "--raw", METRIC))["items"]
                assert item["value"] == "1"
                assert probed(plane, "/readyz") == "ready\n"
                time.sleep(1)
            apply(plane, *model(TEAM, "later"))
        until("it leads again", lambda: f"{LEADER} 1.0" in probed(plane, "/metrics"), 30)
        until("the new one is seen", lambda: _models(plane) == _there(plane), 60)
        assert process.poll() is None


def _models(plane: ControlPlane) -> float:
    lines = probed(plane, "/metrics").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{MODELS} "))


def _there(plane: ControlPlane) -> int:
    """Other tests' models may still be on their way out."""
    names = plane.kubectl("get", "batchedmodels", "--all-namespaces", "--output=name")
    return len(names.splitlines())
