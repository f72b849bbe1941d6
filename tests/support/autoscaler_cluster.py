"""An autoscaler as a process beside a control plane, with pretend sidecars in place of pods.

There is no node: pods stay as the API server got them, and their addresses are this machine's.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from batchedmodel_contract.kubernetes_names import (
    ADMIN_PORT,
    GROUP,
    METRICS_GROUP,
    NAME_LABEL,
    REQUIRED_REPLICAS_METRIC,
)
from batchedmodel_contract.sidecar_api import STATS
from batchedmodel_contract.stats import SidecarStats
from cluster import CommandFailed, ControlPlane

Manifest = dict[str, Any]

HOME = "autoscaler-home"
SERVICE = "batchedmodel-autoscaler"
API_SERVICES = tuple(f"{version}.{METRICS_GROUP}" for version in ("v1beta1", "v1beta2"))
PORT = 10250
PROBES = 8080


def apply(plane: ControlPlane, *manifests: Manifest) -> None:
    """Applies objects."""
    items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
    plane.kubectl("apply", "--filename=-", stdin=json.dumps(items))


def until(what: str, holds: Callable[[], bool], seconds: float = 40.0) -> None:
    """Waits for something that the control plane does in its own time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.2)


def field(plane: ControlPlane, *words: str, path: str) -> str:
    """A field of an object; empty when there is none."""
    try:
        return plane.kubectl("get", *words, f"--output=jsonpath={{{path}}}").strip()
    except CommandFailed:
        return ""


class PretendSidecar:
    """Answers `/v1/stats` at an address of its own; can be told what to say."""

    def __init__(self, address: str, stats: SidecarStats) -> None:
        self.address = address
        self.stats: SidecarStats | None = stats
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path != STATS or owner.stats is None:
                    self.send_error(503)
                    return
                body = json.dumps(owner.stats.to_mapping()).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: object) -> None:
                pass

        self._server = ThreadingHTTPServer((address, ADMIN_PORT), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def install(plane: ControlPlane) -> None:
    """What the chart makes, as far as the autoscaler alone needs it, with the same rights."""
    apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    apply(plane, *_rights(), *_registration(plane.host_address))


@contextmanager
def autoscaler(plane: ControlPlane, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process once it is ready, with the rights of its service account; killed at the end."""
    log = folder / "autoscaler.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "batchedmodel_autoscaler"],
            env=os.environ
            | {
                "KUBECONFIG": str(_kubeconfig(plane, folder)),
                "BATCHEDMODEL_NAMESPACE": HOME,
                "BATCHEDMODEL_SERVICE_NAME": SERVICE,
                "BATCHEDMODEL_DEPLOYMENT_NAME": SERVICE,
                "BATCHEDMODEL_HOST": plane.host_address,
                "BATCHEDMODEL_PORT": str(PORT),
                "BATCHEDMODEL_ADMIN_PORT": str(PROBES),
                "BATCHEDMODEL_POLL_SECONDS": "0.5",
                "BATCHEDMODEL_LOG_LEVEL": "debug",
            },
            stdout=output,
            stderr=output,
        )
    try:
        until("the autoscaler is ready", lambda: _ready(plane, process))
        yield process
        assert process.poll() in (None, 0, -signal.SIGKILL), log.read_text()[-4000:]
    finally:
        process.kill()
        process.wait()


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


def _kubeconfig(plane: ControlPlane, folder: Path) -> Path:
    config = json.loads(plane.kubeconfig.read_text())
    token = plane.kubectl("create", "token", SERVICE, f"--namespace={HOME}").strip()
    config["users"][0]["user"] = {"token": token}
    path = folder / "autoscaler.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(config))
    return path


def _rights() -> list[Manifest]:
    watch = ["get", "list", "watch"]
    metadata = {"name": SERVICE, "namespace": HOME}
    subjects = [{"kind": "ServiceAccount", "name": SERVICE, "namespace": HOME}]
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    role_api = "rbac.authorization.k8s.io"
    everywhere = [
        {"apiGroups": [GROUP], "resources": ["batchedmodels"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["list", "watch"]},
        {
            "apiGroups": [""],
            "resources": ["namespaces"],
            "resourceNames": [HOME],
            "verbs": ["list", "watch"],
        },
        {
            "apiGroups": ["apiregistration.k8s.io"],
            "resources": ["apiservices"],
            "resourceNames": list(API_SERVICES),
            "verbs": ["list", "watch", "patch", "delete"],
        },
    ]
    hpa = {
        "kind": "ServiceAccount",
        "name": "horizontal-pod-autoscaler",
        "namespace": "kube-system",
    }
    read = [{"apiGroups": [METRICS_GROUP], "resources": ["*"], "verbs": watch[:1]}]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {**rbac, "kind": "ClusterRole", "metadata": {"name": SERVICE}, "rules": everywhere},
        {
            **rbac,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": SERVICE},
            "roleRef": {"apiGroup": role_api, "kind": "ClusterRole", "name": SERVICE},
            "subjects": subjects,
        },
        {
            **rbac,
            "kind": "RoleBinding",
            "metadata": {"name": SERVICE, "namespace": "kube-system"},
            "roleRef": {
                "apiGroup": role_api,
                "kind": "Role",
                "name": "extension-apiserver-authentication-reader",
            },
            "subjects": subjects,
        },
        {**rbac, "kind": "ClusterRole", "metadata": {"name": f"{SERVICE}-hpa"}, "rules": read},
        {
            **rbac,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"{SERVICE}-hpa"},
            "roleRef": {"apiGroup": role_api, "kind": "ClusterRole", "name": f"{SERVICE}-hpa"},
            "subjects": [hpa],
        },
    ]


def _registration(address: str) -> list[Manifest]:
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
        *(_api_service(name) for name in API_SERVICES),
    ]


def _api_service(name: str) -> Manifest:
    version = name.partition(".")[0]
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": name},
        "spec": {
            "group": METRICS_GROUP,
            "version": version,
            "service": {"name": SERVICE, "namespace": HOME, "port": 443},
            "groupPriorityMinimum": 100,
            "versionPriority": {"v1beta1": 100, "v1beta2": 200}[version],
        },
    }


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
        deployment(namespace, name, {NAME_LABEL: name}, replicas=1),
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": metadata,
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "minReplicas": 1,
                "maxReplicas": 8,
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
                "metrics": [
                    {
                        "type": "Object",
                        "object": {
                            "describedObject": {
                                "apiVersion": "batchedmodel.dev/v1alpha1",
                                "kind": "BatchedModel",
                                "name": name,
                            },
                            "metric": {"name": REQUIRED_REPLICAS_METRIC},
                            "target": {"type": "AverageValue", "averageValue": "1"},
                        },
                    }
                ],
            },
        },
    ]


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
    status = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    plane.kubectl(
        *("patch", "pod", name, f"--namespace={namespace}", "--subresource=status"),
        *("--type=merge", "--patch", json.dumps({"status": status})),
    )


def decoded_bundle(plane: ControlPlane, name: str) -> bytes:
    """The caBundle of an APIService, PEM."""
    return base64.b64decode(field(plane, "apiservice", name, path=".spec.caBundle"))
