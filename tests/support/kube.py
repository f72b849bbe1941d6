"""What the end-to-end tests ask of a cluster, in their words."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from batchedmodel_contract.processes import sidecar_api
from batchedmodel_contract.processes.listening import authority
from batchedmodel_contract.processes.sidecar_api import ADMIN_PORT
from batchedmodel_kube.names import NAME_LABEL
from cluster.errors import CommandFailed
from cluster.kubernetes import Cluster
from cluster.waiting import waited
from support.plane import read

Found = TypeVar("Found")

_SLOWER = 2.5
"""Times that a shared machine was seen to be slower than one on which waits were measured."""


class Kube:
    """One namespace of a cluster."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def kubectl(self, *words: str, stdin: str | None = None, timeout_s: float = 180) -> str:
        """kubectl in this namespace."""
        return self.cluster.kubectl(
            f"--namespace={self.namespace}", *words, stdin=stdin, timeout_s=timeout_s
        )

    def apply(self, manifest: dict[str, Any]) -> None:
        """kubectl apply of one object."""
        self.kubectl("apply", "--filename=-", stdin=json.dumps(manifest))

    def patch(self, name: str, patch: dict[str, Any]) -> None:
        """Merge a patch into a BatchedModel."""
        self.kubectl("patch", "batchedmodel", name, "--type=merge", f"--patch={json.dumps(patch)}")

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """One object; raises `CommandFailed` where there is none."""
        found = self._read(f"{kind}/{name}")
        if found is None:
            raise CommandFailed(f"{kind}/{name}: not found")
        return found

    def _read(self, what: str, *, label: str = "") -> dict[str, Any] | None:
        plane = self.cluster.control_plane
        if plane is not None:
            return read(plane, self.namespace, what, **({"label": label} if label else {}))
        words = [f"--selector={label}"] if label else []
        text = self.kubectl("get", what, *words, "--ignore-not-found", "--output=json")
        found: dict[str, Any] | None = json.loads(text) if text else None
        return found

    def listed(self, kinds: str) -> list[dict[str, Any]]:
        """All objects of a kind, such as `deployments`."""
        found: list[dict[str, Any]] = (self._read(kinds) or {"items": []})["items"]
        return found

    def pods(self, name: str) -> list[dict[str, Any]]:
        """The pods of a BatchedModel that nobody has asked to go."""
        found = self._read("pods", label=f"{NAME_LABEL}={name}") or {"items": []}
        pods: list[dict[str, Any]] = found["items"]
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def ready_pods(self, name: str) -> list[dict[str, Any]]:
        """Those of them that are ready."""
        return [pod for pod in self.pods(name) if _is_true(pod["status"], "Ready")]

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """A condition of a BatchedModel; empty when it has none of that kind."""
        status = self.get("batchedmodel", name).get("status", {})
        for condition in status.get("conditions", []):
            if condition["type"] == kind:
                return dict(condition)
        return {}

    def children(self, name: str) -> list[str]:
        """Everything in the namespace that carries the BatchedModel's label."""
        kinds = "deployments,replicasets,pods,services,configmaps,horizontalpodautoscalers,pdb"
        selector = f"--selector={NAME_LABEL}={name}"
        return self.kubectl("get", kinds, selector, "--output=name").split()

    def service_url(self, name: str) -> str:
        """Where the Service answers, by its address."""
        service = self.get("service", name)["spec"]
        return f"http://{authority(service['clusterIP'], service['ports'][0]['port'])}"

    async def eventually(
        self, what: str, look: Callable[[], Found | None], *, within: float
    ) -> Found:
        """The first truthy look; an error of the API server is looked past.

        `within`: seconds on a quick machine.
        """
        deadline = time.monotonic() + _SLOWER * within
        seen: object = None
        with waited.counted():
            while time.monotonic() < deadline:
                try:
                    seen = await asyncio.to_thread(look)
                    if seen:
                        return seen  # type: ignore[return-value]  # truthy, so not None
                except CommandFailed as error:
                    seen = error
                await asyncio.sleep(0.4)
        raise AssertionError(
            f"not within {_SLOWER * within} s: {what}; last seen: {seen}\n{self._picture()}"
        )

    async def ready(self, name: str, *, within: float = 240) -> None:
        """The BatchedModel says that it is ready."""
        await self.eventually(
            f"{name} is ready",
            lambda: self.condition(name, "Ready").get("status") == "True",
            within=within,
        )

    async def serves(self, name: str, *, within: float = 240) -> None:
        """It is ready, and its Service's address leads to it, which kube-proxy sees to in a while.

        What is sent there before goes astray, and so does whatever follows on that connection.
        """
        await self.ready(name, within=within)
        service = self.get("service", name)["spec"]
        address = (service["clusterIP"], service["ports"][0]["port"])

        def connects() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=1.0):
                return True
            return False

        await self.eventually(f"{name} is reached by its Service", connects, within=30)

    def _picture(self) -> str:
        """The namespace as it stands, for the reader of a failed test."""
        texts = []
        for words in (
            ("get", "batchedmodels,deployments,pods,hpa", "--output=wide"),
            ("get", "batchedmodels", "--output=jsonpath={.items[*].status.conditions}"),
            ("get", "events", "--sort-by=.lastTimestamp"),
        ):
            try:
                texts.append(self.kubectl(*words))
            except CommandFailed as error:
                texts.append(str(error))
        return "\n".join(texts)[-6000:]


Namespaces = Callable[[str], AbstractContextManager[Kube]]
"""Makes one of a name, which goes at the end of the block."""


async def admin(session: aiohttp.ClientSession, pod: dict[str, Any], path: str) -> str:
    """A GET on the admin port of a pod's sidecar."""
    url = f"http://{authority(pod['status']['podIP'], ADMIN_PORT)}{path}"
    async with session.get(url) as response:
        return await response.text()


async def settings_hash(session: aiohttp.ClientSession, pod: dict[str, Any]) -> str:
    """The hash of the batch settings that a pod has in force."""
    return str(json.loads(await admin(session, pod, sidecar_api.SETTINGS))["hash"])


async def metric(session: aiohttp.ClientSession, pod: dict[str, Any], name: str) -> float:
    """An unlabelled sample of a pod's metrics."""
    for line in (await admin(session, pod, sidecar_api.METRICS)).splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise AssertionError(f"no {name}")


def restarts(pod: dict[str, Any]) -> dict[str, int]:
    """How often each container of a pod was restarted."""
    status = pod["status"]
    listed = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return {container["name"]: container["restartCount"] for container in listed}


def killed_process(pod: dict[str, Any], module: str) -> bool:
    """SIGKILL to the process of a pod that runs a module: its namespace lies within ours.

    False where none runs just now.
    """
    uid = pod["metadata"]["uid"]
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            command = (folder / "cmdline").read_bytes().decode("utf-8", "replace")
            groups = (folder / "cgroup").read_text()
        except OSError:
            continue
        if module in command and (uid in groups or uid.replace("-", "_") in groups):
            os.kill(int(folder.name), signal.SIGKILL)
            return True
    return False


def _is_true(status: dict[str, Any], kind: str) -> bool:
    return any(c["type"] == kind and c["status"] == "True" for c in status.get("conditions", []))
