"""An autoscaler as a process beside a control plane, with pretend sidecars in place of pods.

There is no node: pods stay as the API server got them, and their addresses are this machine's.
"""

import base64
import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from batchedmodel_contract.kubernetes_names import (
    METRICS_GROUP,
    NAME_LABEL,
    QUEUE_LENGTH_METRIC,
    REQUIRED_REPLICAS_METRIC,
    REVISION_LABEL,
)
from batchedmodel_contract.sidecar_api import STATS
from batchedmodel_contract.stats import SidecarStats
from batchedmodel_scheduling.scaling.hpa import Autoscaler
from cluster import CommandFailed, ControlPlane
from support.chart import chart_objects
from support.plane import (
    Account,
    Answer,
    Manifest,
    PretendAdminPort,
    apply,
    running_module,
    set_pod_status,
    until,
)

HOME = "autoscaler-home"
SERVICE = "batchedmodel-autoscaler"
REVISION = "first"
"""Of the models' pods."""
API_SERVICES = tuple(f"{version}.{METRICS_GROUP}" for version in ("v1beta1", "v1beta2"))
PORT = 10250
PROBES = 8080


def field(plane: ControlPlane, *words: str, path: str) -> str:
    """A field of an object; empty when there is none."""
    try:
        return plane.kubectl("get", *words, f"--output=jsonpath={{{path}}}").strip()
    except CommandFailed:
        return ""


class PretendSidecar(PretendAdminPort):
    """Answers `/v1/stats`; can be told what to say."""

    def __init__(self, address: str, stats: SidecarStats) -> None:
        self.stats: SidecarStats | None = stats
        super().__init__(address, self._answer)

    def _answer(self, path: str) -> Answer | None:
        if path != STATS or self.stats is None:
            return None
        return Answer(status=200, body=json.dumps(self.stats.to_mapping()).encode())


def install(plane: ControlPlane) -> None:
    """What the chart makes, as far as the autoscaler alone needs it, with the same rights."""
    apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    apply(plane, *chart_objects(plane, HOME, "autoscaler-rbac.yaml", "custom-metrics.yaml"))
    apply(plane, *_own_pods(plane.host_address))


@contextmanager
def autoscaler(
    plane: ControlPlane, folder: Path, *, poll_seconds: float = 0.5, log_level: str = "debug"
) -> Iterator[subprocess.Popen[bytes]]:
    """The process once it is ready, with the rights of its service account; killed at the end."""
    kubeconfig = Account(namespace=HOME, name=SERVICE).kubeconfig(plane, folder)
    environment = {
        "BATCHEDMODEL_NAMESPACE": HOME,
        "BATCHEDMODEL_SERVICE_NAME": SERVICE,
        "BATCHEDMODEL_DEPLOYMENT_NAME": SERVICE,
        "BATCHEDMODEL_HOST": plane.host_address,
        "BATCHEDMODEL_PORT": str(PORT),
        "BATCHEDMODEL_ADMIN_PORT": str(PROBES),
        "BATCHEDMODEL_POLL_SECONDS": str(poll_seconds),
        "BATCHEDMODEL_LOG_LEVEL": log_level,
    }
    with running_module(
        "batchedmodel_autoscaler", kubeconfig, environment, may_end_with=(0, -signal.SIGKILL)
    ) as running:
        until("the autoscaler is ready", lambda: _ready(plane, running.process))
        yield running.process


def probed(plane: ControlPlane, path: str) -> str:
    """What the admin port answers; empty while it answers nothing or an error."""
    try:
        with urllib.request.urlopen(f"http://{plane.host_address}:{PROBES}{path}") as answer:
            return str(answer.read(), "utf-8")
    except OSError:
        return ""


def _ready(plane: ControlPlane, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "it ended"
    return probed(plane, "/readyz") == "ready\n"


def _own_pods(address: str) -> list[Manifest]:
    """What leads to the process, as if it ran in a pod."""
    metadata = {"name": SERVICE, "namespace": HOME}
    return [
        deployment(HOME, SERVICE, {"app": SERVICE}, replicas=0),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": PORT}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": metadata | {"labels": {"kubernetes.io/service-name": SERVICE}},
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": PORT}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        },
    ]


def deployment(namespace: str, name: str, labels: dict[str, str], *, replicas: int) -> Manifest:
    """A Deployment whose pods nobody runs."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "model", "image": "none"}]},
            },
        },
    }


def model(namespace: str, name: str) -> list[Manifest]:
    """A BatchedModel with what the operator would make of it: a Deployment and a stock HPA."""
    metadata = {"name": name, "namespace": namespace}
    return [
        {
            "apiVersion": "batchedmodel.dev/v1alpha1",
            "kind": "BatchedModel",
            "metadata": metadata,
            "spec": {"model": {"handler": "simulated"}, "autoscaling": {"maxReplicas": 8}},
        },
        deployment(namespace, name, {NAME_LABEL: name, REVISION_LABEL: REVISION}, replicas=1),
        _hpa(
            metadata,
            scaled=name,
            described=name,
            metric=REQUIRED_REPLICAS_METRIC,
            autoscaler=Autoscaler(min_replicas=1, max_replicas=8),
            behavior={"scaleDown": {"stabilizationWindowSeconds": 0}},
        ),
    ]


def scaled_by_queue(
    namespace: str,
    name: str,
    described: str,
    replicas: int,
    autoscaler: Autoscaler,
    behavior: Manifest,
) -> list[Manifest]:
    """A Deployment of nobody's, scaled on the queue of a BatchedModel."""
    return [
        deployment(namespace, name, {"app": name}, replicas=replicas),
        _hpa(
            {"name": name, "namespace": namespace},
            scaled=name,
            described=described,
            metric=QUEUE_LENGTH_METRIC,
            autoscaler=autoscaler,
            behavior=behavior,
        ),
    ]


def _hpa(
    metadata: Manifest,
    *,
    scaled: str,
    described: str,
    metric: str,
    autoscaler: Autoscaler,
    behavior: Manifest,
) -> Manifest:
    source = {
        "describedObject": {
            "apiVersion": "batchedmodel.dev/v1alpha1",
            "kind": "BatchedModel",
            "name": described,
        },
        "metric": {"name": metric},
        "target": {"type": "AverageValue", "averageValue": str(autoscaler.average_value)},
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata,
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": scaled},
            "minReplicas": autoscaler.min_replicas,
            "maxReplicas": autoscaler.max_replicas,
            "behavior": behavior,
            "metrics": [{"type": "Object", "object": source}],
        },
    }


def make_ready(plane: ControlPlane, namespace: str, address: str) -> None:
    """Lets the oldest pod of a namespace look as a kubelet would show it, at an address."""
    name = ""

    def there() -> bool:
        nonlocal name
        name = field(
            plane, "pods", f"--namespace={namespace}", "--sort-by=.metadata.creationTimestamp",
            path=".items[0].metadata.name",
        )  # fmt: skip
        return bool(name)

    until("a pod was made", there)
    # As if it had taken half a minute.
    at = datetime.now(tz=UTC) + timedelta(seconds=30)
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": f"{at:%Y-%m-%dT%H:%M:%SZ}"}
    status = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [ready],
    }
    set_pod_status(plane, namespace, name, status)


def decoded_bundle(plane: ControlPlane, name: str) -> bytes:
    """The caBundle of an APIService, PEM."""
    return base64.b64decode(field(plane, "apiservice", name, path=".spec.caBundle"))
