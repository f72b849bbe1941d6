"""The operator as a process beside a control plane, with the rights of its service account.

There is no node: pods stay as the API server got them, and tests write their status.
"""

import json
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from batchedmodel_contract.processes.sidecar_api import SETTINGS
from batchedmodel_kube.names import BATCHER_CONTAINER, MODEL_CONTAINER
from cluster import ControlPlane
from support.chart import chart_objects
from support.plane import (
    Account,
    Answer,
    Manifest,
    PretendAdminPort,
    apply,
    get,
    running_module,
    set_pod_status,
)
from support.ports import unused_port
from support.process_memory import peak_bytes

HOME = "operator-home"
ACCOUNT = "batchedmodel-operator"
OTHER_LEASE = "batchedmodel-operator-other"
"""For an operator that is to work beside the one of the tests' fixture."""


CRASHING: Manifest = {
    "phase": "Running",
    "conditions": [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": "False"},
    ],
    "containerStatuses": [
        {
            "name": "model",
            "image": "registry.example/image:1",
            "imageID": "",
            "ready": False,
            "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {
                "terminated": {
                    "reason": "Error",
                    "exitCode": 3,
                    "message": "no such weights, although token=abc123 was right",
                }
            },
        }
    ],
}
"""The status of a pod whose model ends again and again."""


class PretendSidecar(PretendAdminPort):
    """Says which settings it uses, and how its model starts."""

    def __init__(self, address: str, settings_hash: str = "") -> None:
        self.settings_hash = settings_hash
        self.model_startup = "the model is LOADING"
        super().__init__(address, self._answer)

    def _answer(self, path: str) -> Answer | None:
        if path == SETTINGS:
            state = {"hash": self.settings_hash, "startup": self.model_startup, "adapters": []}
            return Answer(status=200, body=json.dumps(state).encode())
        return None


class OperatorProcess:
    """A running operator."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, probe_port: int) -> None:
        self._process = process
        self._log = log
        self._probe_port = probe_port

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def probe_url(self) -> str:
        """Where it answers probes."""
        return f"http://127.0.0.1:{self._probe_port}"

    def told(self, path: str) -> str:
        """What it says to probes and to Prometheus; raises `OSError` where it says nothing."""
        url = f"{self.probe_url}/{path}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            text: str = answer.read().decode()
        return text

    def leads(self) -> bool | None:
        """Whether it says that it leads; None when it says nothing."""
        try:
            return json.loads(self.told("healthz"))["leads"] is True
        except OSError:
            return None

    def log(self) -> str:
        return self._log.read_text()

    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> int:
        """Ask it to end, and wait as a kubelet does, longer on a slow machine; its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(90)

    def kill(self) -> None:
        """End it as a node that dies does."""
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Take the processor away from it."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on where it was."""
        self._process.send_signal(signal.SIGCONT)

    def ended(self, seconds: float) -> int:
        """Its exit code, once it has ended by itself."""
        return self._process.wait(seconds)

    def memory_megabytes(self) -> float:
        """Resident memory at its highest."""
        return peak_bytes(self._process.pid) / 2**20


@contextmanager
def operator(
    plane: ControlPlane,
    folder: Path,
    *,
    lease: str = ACCOUNT,
    tag: str = "1",
    server: str = "",
    variables: Mapping[str, str] | None = None,
    may_end_with: tuple[int, ...] = (0,),
) -> Iterator[OperatorProcess]:
    """The process; stopped at the end of the block, unless the test has done it.

    `tag`: of the images that it is told of. `server`: where it finds the API server, if not where
    everybody does. Those that share a `lease` work one after the other.
    """
    probe_port = unused_port()
    kubeconfig = Account(namespace=HOME, name=ACCOUNT).kubeconfig(plane, folder, server=server)
    environment = {
        "BATCHEDMODEL_SIDECAR_IMAGE": f"registry.example/sidecar:{tag}",
        "BATCHEDMODEL_MODEL_SERVER_IMAGE": f"registry.example/model-server:{tag}",
        "BATCHEDMODEL_PROBE_PORT": str(probe_port),
        "BATCHEDMODEL_NAMESPACE": HOME,
        "BATCHEDMODEL_LEASE_NAME": lease,
        **(variables or {}),
    }
    with running_module(
        "batchedmodel_operator", kubeconfig, environment, may_end_with=may_end_with
    ) as running:
        process = OperatorProcess(running.process, running.log, probe_port)
        try:
            yield process
        finally:
            # One that is killed keeps its Lease for a while from the next test's.
            if process.alive():
                process.stop()


def grant_rights(plane: ControlPlane) -> None:
    """The service account with exactly the rights that the chart gives it."""
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}}
    apply(plane, home)
    apply(plane, *chart_objects(plane, HOME, "operator-rbac.yaml"))
    # A chart's operators share one Lease; the tests' work beside each other, too.
    rule = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [OTHER_LEASE],
        "verbs": ["get", "create", "update"],
    }
    group, metadata = "rbac.authorization.k8s.io", {"name": OTHER_LEASE, "namespace": HOME}
    rbac = {"apiVersion": f"{group}/v1", "metadata": metadata}
    role = {"apiGroup": group, "kind": "Role", "name": OTHER_LEASE}
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": HOME}
    apply(
        plane,
        {**rbac, "kind": "Role", "rules": [rule]},
        {**rbac, "kind": "RoleBinding", "roleRef": role, "subjects": [subject]},
    )


def run_pods(
    plane: ControlPlane,
    namespace: str,
    sidecar: PretendSidecar,
    *,
    loading: bool = False,
    of: Callable[[Manifest], bool] = lambda pod: True,
) -> list[str]:
    """What a node would do: pods of the namespace run at the sidecar's address.

    They are ready, unless their models are `loading`. `of`: which of them.

    Returns their names.
    """
    found = get(plane, namespace, "pods")
    names = [] if found is None else [pod["metadata"]["name"] for pod in found["items"] if of(pod)]
    # Later than they were made, whose time has no fractions.
    at = (datetime.now(UTC) + timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = {"PodScheduled": "True", "Ready": "False" if loading else "True"}
    for name in names:
        status = {
            "phase": "Running",
            "podIP": sidecar.address,
            "podIPs": [{"ip": sidecar.address}],
            "conditions": [
                {"type": kind, "status": holds, "lastTransitionTime": at}
                for kind, holds in conditions.items()
            ],
            "initContainerStatuses": [_container(BATCHER_CONTAINER)],
            "containerStatuses": [_container(MODEL_CONTAINER, ready=not loading)],
        }
        set_pod_status(plane, namespace, name, status)
    return names


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
