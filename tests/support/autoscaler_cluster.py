"""An autoscaler as a process beside a control plane, with pretend sidecars in place of pods.

There is no node: pods stay as the API server got them, and their addresses are this machine's.
"""

import base64
import http.client
import json
import signal
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from autoscaling_loop.hpa import Autoscaler
from batchedmodel_contract.processes.sidecar_api import STATS
from batchedmodel_contract.processes.stats import SidecarStats
from batchedmodel_kube.names import (
    METRICS_GROUP,
    NAME_LABEL,
    QUEUE_LENGTH_METRIC,
    REQUIRED_REPLICAS_METRIC,
    REVISION_LABEL,
)
from cluster import ControlPlane
from support.chart import chart_objects
from support.plane import (
    Account,
    Answer,
    Manifest,
    PretendAdminPort,
    apply,
    get,
    install_crd,
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
"""Of the first replica; each one has the next, as all run on one machine."""
PROBES = 8080
"""The same."""
_BETWEEN_QUESTIONS = 0.02


def field(plane: ControlPlane, namespace: str, what: str, *keys: str) -> Any:
    """A field of an object; empty when there is none. A condition is named by its type."""
    found: Any = get(plane, namespace, what)
    for key in keys:
        if isinstance(found, list):
            found = next((one for one in found if one["type"] == key), None)
        else:
            found = (found or {}).get(key)
    return "" if found is None else found


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
    apply(plane, *chart_objects(plane, HOME, "autoscaler-rbac.yaml", "metrics-apis.yaml"))
    apply(plane, *_own_pods(plane.host_address))


@contextmanager
def watched_model(plane: ControlPlane, team: str, sidecar: PretendSidecar) -> Iterator[None]:
    """All that chart and operator would have made for one model of a team, but the autoscaler."""
    install_crd(plane)
    apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}})
    install(plane)
    made, workload, hpa = model(team, "minilm")
    apply(plane, made)
    # Its pods are the model's by this alone.
    uid = field(plane, team, "batchedmodel/minilm", "metadata", "uid")
    workload["metadata"]["ownerReferences"] = [
        {
            "apiVersion": made["apiVersion"],
            "kind": made["kind"],
            "name": "minilm",
            "uid": uid,
            "controller": True,
        }
    ]
    apply(plane, workload, hpa)
    make_ready(plane, team, sidecar.address)
    yield
    # First, or the namespaces could not end: nobody answers for the API any more.
    for name in API_SERVICES:
        plane.kubectl("delete", "apiservice", name, "--ignore-not-found")
    for namespace in (team, HOME):
        plane.kubectl("delete", "namespace", namespace, "--ignore-not-found", "--timeout=50s")


def available(plane: ControlPlane) -> bool:
    """Whether the API server finds the autoscaler behind both versions."""
    path = ("status", "conditions", "Available", "status")
    return all(field(plane, "", f"apiservice/{name}", *path) == "True" for name in API_SERVICES)


@contextmanager
def autoscaler(
    plane: ControlPlane,
    folder: Path,
    *,
    replica: int = 0,
    poll_seconds: float = 0.5,
    log_level: str = "debug",
    server: str = "",
) -> Iterator[subprocess.Popen[bytes]]:
    """The process once it is ready, with the rights of its service account; killed at the end.

    `server`: where it finds the API server, if not where everybody does.
    """
    kubeconfig = Account(namespace=HOME, name=SERVICE).kubeconfig(plane, folder, server=server)
    environment = {
        "BATCHEDMODEL_NAMESPACE": HOME,
        "BATCHEDMODEL_SERVICE_NAME": SERVICE,
        "BATCHEDMODEL_DEPLOYMENT_NAME": SERVICE,
        "BATCHEDMODEL_HOST": plane.host_address,
        "BATCHEDMODEL_PORT": str(PORT + replica),
        "BATCHEDMODEL_ADMIN_PORT": str(PROBES + replica),
        "BATCHEDMODEL_POLL_SECONDS": str(poll_seconds),
        "BATCHEDMODEL_LOG_LEVEL": log_level,
    }
    with running_module(
        "batchedmodel_autoscaler", kubeconfig, environment, may_end_with=(0, -signal.SIGKILL)
    ) as running:
        until("the autoscaler is ready", lambda: _ready(plane, running.process, replica))
        yield running.process


def probed(plane: ControlPlane, path: str, replica: int = 0) -> str:
    """What the admin port answers; empty while it answers nothing or an error."""
    url = f"http://{plane.host_address}:{PROBES + replica}{path}"
    try:
        with urllib.request.urlopen(url) as answer:
            return str(answer.read(), "utf-8")
    except OSError:
        return ""


def _ready(plane: ControlPlane, process: subprocess.Popen[bytes], replica: int) -> bool:
    assert process.poll() is None, "it ended"
    return probed(plane, "/readyz", replica) == "ready\n"


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
        endpoint(address),
    ]


def endpoint(address: str, *, replica: int = 0, ready: bool = True) -> Manifest:
    """Whether questions are sent to a replica, as Kubernetes would have it from its pod."""
    labels = {"kubernetes.io/service-name": SERVICE}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{SERVICE}-{replica}", "namespace": HOME, "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": PORT + replica}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": ready}}],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What an asker was told within some time."""

    answers: int
    wrong: list[str]
    """What was said where the status was not 200, or why nothing was."""
    longest_gap: float
    """Seconds without an answer: between two, before the first or after the last."""


class Asker:
    """Somebody who asks the API server for one thing again and again, in a thread of its own.

    What it was told is kept until somebody wants to know; no answer is lost or told twice.
    """

    def __init__(self, plane: ControlPlane, path: str, folder: Path) -> None:
        """`folder`: for a credential."""
        config = json.loads(plane.kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)
        pair = folder / "asker.pem"
        pair.touch(mode=0o600)
        pair.write_bytes(
            base64.b64decode(user["client-certificate-data"])
            + base64.b64decode(user["client-key-data"])
        )
        self._tls.load_cert_chain(pair)
        self._server = cluster["server"].removeprefix("https://")
        self._path = path
        self._answers: SimpleQueue[tuple[float, int, str]] = SimpleQueue()
        self._told_at = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> "Asker":
        self._told_at = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def since_last(self) -> Heard:
        """What it heard since the last call, or since it began."""
        # Only what is there by now: more may come while it is taken.
        answers = [self._answers.get() for _ in range(self._answers.qsize())]
        times = [self._told_at, *(at for at, _, _ in answers), time.monotonic()]
        self._told_at = times[-1]
        return Heard(
            answers=len(answers),
            wrong=[f"{status} {text}" for _, status, text in answers if status != 200],
            longest_gap=max(later - sooner for sooner, later in pairwise(times)),
        )

    def _ask(self) -> None:
        connection = http.client.HTTPSConnection(self._server, timeout=10, context=self._tls)
        while not self._ended.is_set():
            try:
                connection.request("GET", self._path)
                answer = connection.getresponse()
                status, text = answer.status, answer.read().decode()
            except (OSError, http.client.HTTPException) as error:
                # The next question opens another.
                connection.close()
                status, text = 0, repr(error)
            self._answers.put((time.monotonic(), status, text))
            time.sleep(_BETWEEN_QUESTIONS)
        connection.close()


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
        pods = (get(plane, namespace, "pods") or {"items": []})["items"]
        made = ((one["metadata"]["creationTimestamp"], one["metadata"]["name"]) for one in pods)
        _, name = min(made, default=("", ""))
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
    return base64.b64decode(field(plane, "", f"apiservice/{name}", "spec", "caBundle"))
