"""The chart installed at a control plane by Helm, and its processes.

There is no node, so that the pods of its Deployments never run. What would run in them runs beside
the control plane instead: with the environment that the Deployment gives it, and the rights of its
service account.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster import CommandFailed, ControlPlane
from support.autoscaler_cluster import probed
from support.chart import CHART, environment
from support.operator_process import OperatorProcess
from support.plane import Account, Running, apply, read, running_module, until
from support.ports import unused_port


class Release:
    """One release of the chart in a namespace of its own."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.namespace = namespace
        self.name = "bm"
        self.prefix = f"{self.name}-batchedmodel"

    def install(self, *values: str, chart: Path = CHART) -> str:
        """What Helm says; another test may have brought the definition already."""
        apply(
            self.plane,
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}},
        )
        said = self._helm("install", "--take-ownership", *values, chart=chart)
        apply(self.plane, self._endpoint())
        return said

    def upgrade(self, *values: str) -> str:
        return self._helm("upgrade", *values, chart=CHART)

    def uninstall(self) -> None:
        place = f"--namespace={self.namespace}"
        self.plane.helm("uninstall", self.name, place, "--ignore-not-found", "--wait")

    def user(self, part: str) -> str:
        """As whom the API server knows `operator` or `autoscaler`."""
        return f"system:serviceaccount:{self.namespace}:{self.prefix}-{part}"

    def rules(self, part: str) -> list[dict[str, Any]]:
        """What the chart's roles allow it, wherever; Kubernetes' own roles are left aside."""
        found = []
        for kind in ("clusterrole", "role"):
            bindings = self._all(f"{kind}bindings")
            roles = {_place(one): one for one in self._all(f"{kind}s")}
            for binding in bindings:
                names = [one["name"] for one in binding.get("subjects", ())]
                place = binding["metadata"].get("namespace", ""), binding["roleRef"]["name"]
                if f"{self.prefix}-{part}" in names and place in roles:
                    found += roles[place]["rules"]
        return found

    @contextmanager
    def operator(
        self, folder: Path, *, told: Mapping[str, str] | None = None, server: str = ""
    ) -> Iterator[OperatorProcess]:
        """An operator that leads or waits; stopped at the end.

        `told`: variables besides. `server`: as `Account.kubeconfig` has it.
        """
        port = unused_port()
        variables = {"BATCHEDMODEL_PROBE_PORT": str(port), **(told or {})}
        with self._running("operator", folder, variables, server) as running:
            process = OperatorProcess(running.process, running.log, port)
            try:
                until("it answers", lambda: process.leads() is not None)
                yield process
            finally:
                if process.alive():
                    process.stop()

    @contextmanager
    def autoscaler(self, folder: Path) -> Iterator[Running]:
        """An autoscaler that is ready; killed at the end."""
        variables = {"BATCHEDMODEL_HOST": self.plane.host_address}
        with self._running("autoscaler", folder, variables) as running:

            def ready() -> bool:
                assert running.process.poll() is None, running.log.read_text()[-4000:]
                return probed(self.plane, "/readyz") == "ready\n"

            until("the autoscaler is ready", ready)
            yield running

    def helm_test(self, folder: Path, *, patience_seconds: float = 60) -> tuple[int, str]:
        """Runs what `helm test` runs, as it would: the exit code, and what it says."""
        text = self.plane.helm("get", "hooks", self.name, f"--namespace={self.namespace}")
        self.plane.kubectl("apply", "--filename=-", stdin=text)
        try:
            pod = self._one("pod", f"{self.prefix}-helm-test")
            account = Account(namespace=self.namespace, name=pod["spec"]["serviceAccountName"])
            (container,) = pod["spec"]["containers"]
            _, *words = container["command"]
            ended = subprocess.run(
                [sys.executable, *words],
                env={
                    "PYTHONPATH": ":".join(sys.path),
                    "KUBECONFIG": str(account.kubeconfig(self.plane, folder)),
                    **environment(container, self.namespace),
                    "BATCHEDMODEL_PATIENCE_SECONDS": str(patience_seconds),
                },
                stderr=subprocess.PIPE,
                text=True,
                timeout=patience_seconds + 30,
                check=False,
            )
        finally:
            self.plane.kubectl("delete", "--wait=false", "--filename=-", stdin=text)
        return ended.returncode, ended.stderr

    @contextmanager
    def _running(
        self, part: str, folder: Path, variables: Mapping[str, str], server: str = ""
    ) -> Iterator[Running]:
        folder.mkdir(exist_ok=True)
        name = f"{self.prefix}-{part}"
        template = self._one("deployment", name)["spec"]["template"]
        (container,) = template["spec"]["containers"]
        account = Account(namespace=self.namespace, name=template["spec"]["serviceAccountName"])
        told = environment(container, self.namespace) | dict(variables)
        with running_module(
            f"batchedmodel_{part}",
            account.kubeconfig(self.plane, folder, server=server),
            told,
            # 3: its Lease was lost, as when the namespace of the release is deleted.
            may_end_with=(0, 3, -signal.SIGKILL),
        ) as running:
            yield running

    def _endpoint(self) -> dict[str, Any]:
        """Beside what Kubernetes makes of the pods, which have no addresses."""
        service = f"{self.prefix}-autoscaler"
        labels = {"kubernetes.io/service-name": service}
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "here", "namespace": self.namespace, "labels": labels},
            "addressType": "IPv4",
            "ports": [{"name": "metrics-api", "port": 10250}],
            "endpoints": [{"addresses": [self.plane.host_address], "conditions": {"ready": True}}],
        }

    def _one(self, kind: str, name: str) -> dict[str, Any]:
        place = f"--namespace={self.namespace}"
        found: dict[str, Any] = json.loads(
            self.plane.kubectl("get", kind, name, place, "--output=json")
        )
        return found

    def _all(self, kind: str) -> list[dict[str, Any]]:
        mine = f"--selector=app.kubernetes.io/instance={self.name}"
        words = ("get", kind, "--all-namespaces", mine, "--output=json")
        found: list[dict[str, Any]] = json.loads(self.plane.kubectl(*words))["items"]
        return found

    def _helm(self, verb: str, *values: str, chart: Path) -> str:
        return self.plane.helm(verb, self.name, chart, f"--namespace={self.namespace}", *values)


def remove_namespace(plane: ControlPlane, name: str, seconds: float = 50) -> None:
    """Deletes a namespace and waits until it is gone.

    Raises:
        CommandFailed: it is still there then.
    """
    plane.kubectl(
        *("delete", "namespace", name, "--ignore-not-found", f"--timeout={seconds:.0f}s"),
        timeout_s=seconds + 10,
    )


def is_there(plane: ControlPlane, what: str) -> bool:
    """Whether an object is there."""
    try:
        return read(plane, "", what) is not None
    except CommandFailed:
        return False


def _place(found: Mapping[str, Any]) -> tuple[str, str]:
    metadata = found["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
