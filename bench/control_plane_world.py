"""A real control plane with many BatchedModels: what people, nodes and sidecars do in it.

Called by `control_plane` and `scaling_trace`. There is no kubelet: pods get the status that one
would report, and one process answers at all of their addresses. Knows nothing of figures.
"""

import asyncio
import ipaddress
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from control_plane_api import Api, administrator, each
from pretended_stats import steady_stats

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("tests", "images")]

from batchedmodel_contract.processes import sidecar_api
from batchedmodel_kube.manifest.manifest import read_manifest
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_kube.names import (
    BATCHER_CONTAINER,
    GROUP,
    METRICS_GROUP,
    MODEL_CONTAINER,
    NAME_LABEL,
    PLURAL,
    REQUIRED_REPLICAS_METRIC,
    VERSION,
)
from cluster import ControlPlane, Options, Settings, Unavailable, running_control_plane
from cluster.commands import run
from support import autoscaler_cluster, operator_process
from support.operator_process import OperatorProcess
from support.plane import install_crd
from support.process_memory import peak_bytes

__all__ = [
    "AUTOSCALER",
    "AUTOSCALERS",
    "EDITOR",
    "HPA_SECONDS",
    "LIFTED",
    "MODELS",
    "OPERATOR",
    "PODS_EACH",
    "Name",
    "OperatorProcess",
    "Sidecars",
    "Unavailable",
    "World",
    "edit_of",
    "holds",
    "manifest_of",
    "merged",
    "names_of",
    "peak_bytes",
    "running_at",
    "running_world",
    "settings_of",
]
"""What comes from the tests' packages too, which a script beside this one cannot import itself."""

AUTOSCALERS: Final = "/apis/autoscaling/v2/horizontalpodautoscalers"
MODELS: Final = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
PODS_EACH: Final = 3
NAMESPACES: Final = 20
EDITOR: Final = "admin"
OPERATOR: Final = f"system:serviceaccount:{operator_process.HOME}:{operator_process.ACCOUNT}"
AUTOSCALER: Final = f"system:serviceaccount:{autoscaler_cluster.HOME}:{autoscaler_cluster.SERVICE}"
_ADDRESSES: Final = ipaddress.ip_network("198.18.192.0/18")
"""Of pods: a part of the test range in which clusters on this machine have nothing."""
_STARTED: Final = "2026-01-01T00:00:00Z"
LIFTED: Final = 500
"""Requests a second of each of Kubernetes' controllers, instead of its own default of 20."""
HPA_SECONDS: Final = 15
"""As everywhere but in tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """One BatchedModel of many."""

    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Of the object."""
        return f"/apis/{GROUP}/{VERSION}/namespaces/{self.namespace}/{PLURAL}/{self.name}"

    @property
    def metric_path(self) -> str:
        """Where the HPA asks for the number of its pods."""
        return (
            f"/apis/{METRICS_GROUP}/v1beta2/namespaces/{self.namespace}"
            f"/{PLURAL}.{GROUP}/{self.name}/{REQUIRED_REPLICAS_METRIC}"
        )


def names_of(count: int) -> list[Name]:
    """So many, spread over namespaces."""
    return [
        Name(namespace=f"team-{number % NAMESPACES:02}", name=f"model-{number:04}")
        for number in range(count)
    ]


def manifest_of(name: Name) -> dict[str, Any]:
    """A model whose children are of every kind that there is."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "BatchedModel",
        "metadata": {"name": name.name, "namespace": name.namespace},
        "spec": {
            "model": {"handler": "simulated", "env": {"EDITS": "0"}},
            "batching": {"maxBatchSize": 32},
            "autoscaling": {"minReplicas": PODS_EACH, "maxReplicas": 8},
        },
    }


def edit_of(number: int) -> dict[str, Any]:
    """A change that the ConfigMap, Service, Deployment, HPA and kept template all follow."""
    return {
        "spec": {
            "model": {"env": {"EDITS": str(number)}},
            "batching": {"maxBatchSize": 33},
            "autoscaling": {"maxReplicas": 9},
            "service": {"port": 8080},
        }
    }


class World:
    """The control plane, and who else there is."""

    def __init__(self, plane: ControlPlane, api: Api, folder: Path, names: Sequence[Name]) -> None:
        self.plane = plane
        self.api = api
        self.names = names
        self.free_addresses = _ADDRESSES.hosts()
        """Of pods to come."""
        self._folder = folder
        self._addresses: dict[Name, list[str]] = defaultdict(list)

    async def create(self, manifest: Callable[[Name], Mapping[str, Any]] = manifest_of) -> None:
        """People write their models."""
        spaces = sorted({name.namespace for name in self.names})
        head = {"apiVersion": "v1", "kind": "Namespace"}
        await each(
            spaces,
            lambda space: self.api.call(
                "POST", "/api/v1/namespaces", {**head, "metadata": {"name": space}}
            ),
        )
        await each(
            self.names,
            lambda name: self.api.call("POST", name.path.rpartition("/")[0], manifest(name)),
        )

    async def has_metrics(self) -> bool:
        """Whether somebody answers for the first model's."""
        try:
            await self.api.call("GET", self.names[0].metric_path)
        except RuntimeError:
            return False
        return True

    async def settled(self) -> int:
        """How many models say of their present manifest that all is applied."""
        return sum(map(_is_settled, await self.api.items(MODELS)))

    async def run_pods(self) -> int:
        """What nodes would do: every pod that is there runs. Returns how many."""
        pods = await self.api.items("/api/v1/pods", NAME_LABEL)
        placed = [(pod["metadata"], str(next(self.free_addresses))) for pod in pods]
        for metadata, address in placed:
            name = metadata["labels"][NAME_LABEL]
            self._addresses[Name(namespace=metadata["namespace"], name=name)].append(address)
        await each(placed, lambda one: self._run_pod(*one))
        return len(pods)

    async def edit(self, name: Name, number: int, sidecars: "Sidecars") -> None:
        """Somebody edits a model; its pods have read their new settings before anybody asks."""
        sidecars.edited(self._addresses[name])
        await self.api.patch(name.path, edit_of(number))

    async def _run_pod(self, metadata: Mapping[str, Any], address: str) -> None:
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        await self.api.patch(path, {"status": running_at(address)})

    @contextmanager
    def operator(
        self, name: str, may_end_with: tuple[int, ...] = (0,)
    ) -> Iterator[OperatorProcess]:
        """An operator; those that run at the same time share a Lease."""
        folder = self._folder / name
        folder.mkdir()
        with operator_process.operator(self.plane, folder, may_end_with=may_end_with) as process:
            yield process

    @contextmanager
    def autoscaler(self) -> Iterator[subprocess.Popen[bytes]]:
        """An autoscaler with the settings that it comes with."""
        folder = self._folder / "autoscaler"
        folder.mkdir()
        with autoscaler_cluster.autoscaler(
            self.plane, folder, poll_seconds=2.0, log_level="info"
        ) as process:
            yield process

    @contextmanager
    def sidecars(self) -> Iterator["Sidecars"]:
        """The process that answers for pods that are all alike."""
        settings, edited = map(settings_of, _before_and_after())
        answers = {
            sidecar_api.SETTINGS: ("200 OK", json.dumps({"hash": settings, "startup": "ready"})),
            sidecar_api.STATS: ("200 OK", json.dumps(steady_stats(settings).to_mapping())),
        }
        differing = {
            sidecar_api.SETTINGS: ("200 OK", json.dumps({"hash": edited, "startup": "ready"}))
        }
        arguments = (json.dumps(answers), json.dumps(differing), sidecar_api.STATS)
        with self.answering("many_sidecars.py", *arguments) as sidecars:
            yield sidecars

    @contextmanager
    def answering(self, script: str, *arguments: str) -> Iterator["Sidecars"]:
        """A process that answers at all pods' addresses, from a script beside this one."""
        namespace = self.plane.namespace
        namespace.run("ip", "route", "add", "local", str(_ADDRESSES), "dev", "lo")
        slot = namespace.slot
        # It goes with the cable that it leads through.
        run(
            [
                *("ip", "route", "add", str(_ADDRESSES)),
                *("via", slot.first.node_address, "dev", slot.interface),
            ]
        )
        with subprocess.Popen(
            [
                *("nsenter", "--target", str(namespace.init), "--net", "--"),
                *(sys.executable, str(Path(__file__).with_name(script)), *arguments),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            try:
                assert process.stdout is not None
                if process.stdout.readline() != b"listening\n":
                    raise RuntimeError("the sidecars' process did not start")
                yield Sidecars(process)
            finally:
                process.kill()


class Sidecars:
    """The process that answers for all pods."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def longest_gap(self) -> tuple[float, int]:
        """Seconds between two answers of the same pod, since the last call; and how many pods."""
        return self.edited([])

    def edited(self, addresses: Sequence[str]) -> tuple[float, int]:
        """Pods use the settings of the edit; the same as of `longest_gap`."""
        seconds, pods = self.order(addresses)
        return seconds, pods

    def order(self, order: object) -> Any:
        """What it answers to an order that its script knows."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@asynccontextmanager
async def running_world(
    folder: Path,
    names: Sequence[Name],
    *,
    requests_per_second: int | None = LIFTED,
    hpa_seconds: int = HPA_SECONDS,
    audit_reads: bool = False,
) -> AsyncIterator[World]:
    """A new control plane and the rights of both processes; the models are not there yet.

    `requests_per_second`: of each of Kubernetes' controllers; None is its own default.
    `hpa_seconds`: between two looks of the HPA. `audit_reads`: what service accounts read stands in
    the audit log, too.

    Raises:
        cluster.Unavailable: this machine cannot; the message says why.
    """
    settings = Settings.from_environment(os.environ)
    options = Options(
        autoscaler_sync=f"{hpa_seconds}s",
        audit=True,
        audit_reads=audit_reads,
        requests_per_second=requests_per_second,
    )
    with ExitStack() as stack:
        plane = stack.enter_context(running_control_plane(settings, options=options))
        install_crd(plane)
        async with asyncio.TaskGroup() as group:
            for make in (
                _restart_controllers,
                operator_process.grant_rights,
                autoscaler_cluster.install,
            ):
                group.create_task(asyncio.to_thread(make, plane))
        async with administrator(plane, folder) as api:
            yield World(plane, api, folder, names)


def _restart_controllers(plane: ControlPlane) -> None:
    """Or their HPAs would hear of a new kind of object only after half a minute."""
    plane.stop_program("kube-controller-manager")
    plane.start_program("kube-controller-manager")


def _is_settled(model: Mapping[str, Any]) -> bool:
    generation = model["metadata"]["generation"]
    conditions = (model.get("status") or {}).get("conditions") or ()
    return any(
        one["type"] == "Reconciled"
        and one["status"] == "True"
        and one.get("observedGeneration") == generation
        for one in conditions
    )


def holds(found: Mapping[str, Any], kind: str) -> bool:
    """Whether an object says that a condition is true."""
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)


def merged(manifest: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """As the API server merges a change of a few fields."""
    found = dict(manifest)
    for name, value in change.items():
        inner = found.get(name)
        found[name] = merged(inner or {}, value) if isinstance(value, Mapping) else value
    return found


def _before_and_after() -> tuple[dict[str, Any], dict[str, Any]]:
    before = manifest_of(names_of(1)[0])
    return before, merged(before, edit_of(1))


def settings_of(manifest: Mapping[str, Any]) -> str:
    """By which pods tell what batch settings they use."""
    return batch_settings(read_manifest(manifest).spec).digest()


def running_at(address: str, *, ready: bool = True, since: str | None = None) -> dict[str, Any]:
    """A pod's status where its containers run, or its model still starts; `since`: as RFC 3339."""
    holds = {"PodScheduled": True, "Initialized": True, "ContainersReady": ready, "Ready": ready}
    time = {} if since is None else {"lastTransitionTime": since}
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": kind, "status": str(it), **time} for kind, it in holds.items()],
        "initContainerStatuses": [_container(BATCHER_CONTAINER)],
        "containerStatuses": [_container(MODEL_CONTAINER, ready=ready)],
    }


def _container(name: str, *, ready: bool = True) -> dict[str, Any]:
    return {
        "name": name,
        "started": ready,
        "ready": ready,
        "restartCount": 0,
        "image": "registry.example/image:1",
        "imageID": "",
        "state": {"running": {"startedAt": _STARTED}},
    }
