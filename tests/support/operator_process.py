"""The operator as a process beside a control plane, with the rights of its service account.

There is no node: pods stay as the API server got them, and tests write their status.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from batchedmodel_contract.kubernetes_names import (
    ADMIN_PORT,
    BATCHER_CONTAINER,
    GROUP,
    MODEL_CONTAINER,
    PLURAL,
)
from batchedmodel_contract.sidecar_api import MODEL_STARTUP, SETTINGS
from cluster import CommandFailed, ControlPlane

Manifest = dict[str, Any]

HOME = "operator-home"
ACCOUNT = "batchedmodel-operator"
PROBE_PORT = 18081
CRD = Path(__file__).parents[2] / "crds" / "batchedmodels.yaml"
CRD_NAME = f"{PLURAL}.{GROUP}"


def apply(plane: ControlPlane, *manifests: Mapping[str, Any]) -> None:
    """Applies objects as a person would."""
    items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
    plane.kubectl("apply", "--filename=-", stdin=json.dumps(items))


def install_crd(plane: ControlPlane) -> None:
    plane.kubectl("apply", "--server-side", "--force-conflicts", "--filename", CRD)
    plane.kubectl("wait", "--for=condition=Established", f"crd/{CRD_NAME}")


def until(what: str, holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Waits for something that happens in its own time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.1)


def get(plane: ControlPlane, namespace: str, *words: str) -> Manifest | None:
    """An object or a list as JSON; None when it or its kind is not there."""
    try:
        text = plane.kubectl("get", *words, f"--namespace={namespace}", "--output=json")
    except CommandFailed:
        return None
    found: Manifest = json.loads(text)
    return found


class PretendSidecar:
    """Answers as a sidecar's admin port does, at an address of its own."""

    def __init__(self, address: str, settings_hash: str = "") -> None:
        self.address = address
        self.settings_hash = settings_hash
        self.model_startup = "the model is LOADING"
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == SETTINGS:
                    body = json.dumps({"hash": owner.settings_hash}).encode()
                    self.send_response(200)
                elif self.path == MODEL_STARTUP:
                    body = f"{owner.model_startup}\n".encode()
                    self.send_response(503)
                else:
                    self.send_error(404)
                    return
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


class OperatorProcess:
    """A running operator."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def log(self) -> str:
        return self._log.read_text()

    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> int:
        """Ask it to end; its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(20)

    def memory_megabytes(self) -> float:
        """Resident memory at its highest."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("the process has ended")


@contextmanager
def operator(plane: ControlPlane, folder: Path) -> Iterator[OperatorProcess]:
    """The process; stopped at the end of the block, unless the test has done it."""
    log = folder / "operator.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "batchedmodel_operator"],
            env=os.environ
            | {
                "KUBECONFIG": str(_kubeconfig(plane, folder)),
                "BATCHEDMODEL_SIDECAR_IMAGE": "registry.example/sidecar:1",
                "BATCHEDMODEL_MODEL_SERVER_IMAGE": "registry.example/model-server:1",
                "BATCHEDMODEL_PROBE_PORT": str(PROBE_PORT),
            },
            stdout=output,
            stderr=output,
        )
    running = OperatorProcess(process, log)
    try:
        yield running
        assert process.poll() in (None, 0), running.log()[-4000:]
    finally:
        process.kill()
        process.wait()


def grant_rights(plane: ControlPlane) -> None:
    """The service account with exactly the rights that the operator needs."""
    every = ["get", "list", "watch", "create", "patch", "delete"]
    definitions = {
        "apiGroups": ["apiextensions.k8s.io"],
        "resources": ["customresourcedefinitions"],
        "resourceNames": [CRD_NAME],
        "verbs": ["list", "watch"],
    }
    rules = [
        definitions,
        {"apiGroups": [GROUP], "resources": [PLURAL], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [GROUP], "resources": [f"{PLURAL}/status"], "verbs": ["patch"]},
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": every},
        {"apiGroups": [""], "resources": ["services", "configmaps"], "verbs": every},
        {"apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"], "verbs": every},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},
    ]
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": ACCOUNT}}
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": HOME}
    group = "rbac.authorization.k8s.io"
    role = {"apiGroup": group, "kind": "ClusterRole", "name": ACCOUNT}
    account = {"name": ACCOUNT, "namespace": HOME}
    apply(
        plane,
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {**rbac, "kind": "ClusterRole", "rules": rules},
        {**rbac, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]},
    )


def withdraw_rights(plane: ControlPlane) -> None:
    for kind in ("clusterrole", "clusterrolebinding"):
        plane.kubectl("delete", kind, ACCOUNT, "--ignore-not-found")
    plane.kubectl("delete", "namespace", HOME, "--ignore-not-found", "--wait=false")


def _kubeconfig(plane: ControlPlane, folder: Path) -> Path:
    config = json.loads(plane.kubeconfig.read_text())
    token = plane.kubectl("create", "token", ACCOUNT, f"--namespace={HOME}").strip()
    config["users"][0]["user"] = {"token": token}
    path = folder / "operator.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(config))
    return path


def run_pods(
    plane: ControlPlane, namespace: str, sidecar: PretendSidecar, *, loading: bool = False
) -> list[str]:
    """What a node would do: all pods of the namespace run at the sidecar's address.

    They are ready, unless their models are `loading`.

    Returns their names.
    """
    found = get(plane, namespace, "pods")
    names = [] if found is None else [pod["metadata"]["name"] for pod in found["items"]]
    conditions = {"PodScheduled": "True", "Ready": "False" if loading else "True"}
    for name in names:
        status = {
            "phase": "Running",
            "podIP": sidecar.address,
            "podIPs": [{"ip": sidecar.address}],
            "conditions": [{"type": kind, "status": holds} for kind, holds in conditions.items()],
            "initContainerStatuses": [_container(BATCHER_CONTAINER)],
            "containerStatuses": [_container(MODEL_CONTAINER, ready=not loading)],
        }
        set_pod_status(plane, namespace, name, status)
    return names


def set_pod_status(
    plane: ControlPlane, namespace: str, name: str, status: Mapping[str, Any]
) -> None:
    """What a node would report."""
    plane.kubectl(
        *("patch", "pod", name, f"--namespace={namespace}", "--subresource=status"),
        *("--type=merge", "--patch", json.dumps({"status": status})),
    )


def _container(name: str, *, ready: bool = True) -> Manifest:
    now = "2026-01-01T00:00:00Z"
    return {
        "name": name,
        "started": ready,
        "ready": ready,
        "restartCount": 0,
        "image": "registry.example/image:1",
        "imageID": "",
        "state": {"running": {"startedAt": now}},
    }
