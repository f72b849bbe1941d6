"""A node that runs nothing: its pods get, in time, the states that a kubelet would report.

Called by `scaling_trace`; `replayed_pods` knows when a pod has ended. Each look does what is
missing by then, so that the next one makes up for whatever failed. The node says by itself that it
lives: Kubernetes would else give it up after some 50 s, its pods would not be ready any more, and
five minutes later they would be evicted.
"""

import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import aiohttp

from batchedmodel_kube.names import NAME_LABEL
from control_plane_api import each, until
from control_plane_world import Sidecars, World, running_at

_NAME: Final = "pretended"
_NODES: Final = "/api/v1/nodes"
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_BEAT_SECONDS: Final = 10.0
"""As often as a kubelet says that its node lives."""
_TAKEN_SECONDS: Final = 60.0
"""By when the controllers, which may just have started, have seen a new node."""


class NodeApi(Protocol):
    """What a node asks of the API server for itself."""

    async def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """The JSON answer."""
        ...

    async def patch(self, path: str, change: Mapping[str, Any]) -> None:
        """Merge a change into an object."""
        ...


class NodeLost(Exception):
    """Kubernetes does not take the node for one that lives: nothing that follows is right."""


@asynccontextmanager
async def joined(api: NodeApi) -> AsyncIterator[None]:
    """A node that is there, ready, and says so in time as long as the block lasts.

    Raises:
        ExceptionGroup: of a `NodeLost`; the block is cancelled.
    """
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": _NAME},
        "status": {"conditions": [ready]},
    }
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": _NAME},
        "spec": {"holderIdentity": _NAME, "leaseDurationSeconds": 40, "renewTime": _now()},
    }
    await api.call("POST", _NODES, node)
    await api.call("POST", _LEASES, lease)

    async def taken() -> bool:
        return not await _amiss(api)

    # A new one is tainted until the controllers have seen it.
    await until("the node is taken for ready", taken, limit_seconds=_TAKEN_SECONDS)
    async with asyncio.TaskGroup() as group:
        beating = group.create_task(_beat(api))
        yield
        if amiss := await _amiss(api):
            raise NodeLost(amiss)
        beating.cancel()


async def _beat(api: NodeApi) -> None:
    while True:
        try:
            # Before it says anything that could heal what was amiss.
            if amiss := await _amiss(api):
                raise NodeLost(amiss)
            await api.patch(f"{_LEASES}/{_NAME}", {"spec": {"renewTime": _now()}})
        except (RuntimeError, aiohttp.ClientError, TimeoutError) as error:
            # As a kubelet does: there is time for three more before Kubernetes misses it.
            sys.stderr.write(f"a beat of the node failed: {error!r}\n")
        await asyncio.sleep(_BEAT_SECONDS)


async def _amiss(api: NodeApi) -> str:
    """What Kubernetes has against the node; nothing as long as it lives."""
    node = await api.call("GET", f"{_NODES}/{_NAME}")
    found = [
        f"{one['type']} is {one['status']}"
        for one in node["status"]["conditions"]
        if one["type"] == "Ready" and one["status"] != "True"
    ]
    found += [f"{taint['key']}:{taint['effect']}" for taint in node["spec"].get("taints") or ()]
    return ", ".join(found)


class Node:
    """One for all pods, which has `joined`. Times are seconds that only go forward."""

    def __init__(self, world: World, *, startup_seconds: float) -> None:
        self._world = world
        self._api = world.api
        self._startup_seconds = startup_seconds
        self._addresses: dict[str, str] = {}
        self._due: dict[str, float] = {}
        """Of each pod, by uid: its address, and when it is ready."""
        self._ended: set[str] = set()

    async def take_up_first(self) -> dict[str, list[str]]:
        """Places those that are there, to be ready at the first look: addresses by model."""
        found = defaultdict(list)
        pods = await self._pods()
        for pod in pods:
            found[_model(pod)].append(self._place(pod, due=0.0))
        await each(pods, self._bind)
        return found

    async def look(self, sidecars: Sidecars, now: float) -> Counter[str]:
        """Do what is due. Returns how many pods each model has, leaving ones included."""
        pods = await self._pods()
        born = [pod for pod in pods if _uid(pod) not in self._addresses]
        due = now + self._startup_seconds
        told = sidecars.order(
            {
                "born": [
                    (_model(pod), self._place(pod, due=due), self._startup_seconds) for pod in born
                ],
                "leaving": [self._addresses[_uid(pod)] for pod in pods if _is_leaving(pod)],
            }
        )
        self._ended.update(told["ended"])
        await each([pod for pod in pods if not pod["spec"].get("nodeName")], self._take_up)
        await each([pod for pod in pods if self._gets_ready(pod, now)], self._make_ready)
        await each([pod for pod in pods if self._addresses[_uid(pod)] in self._ended], self._remove)
        return Counter(map(_model, pods))

    async def _pods(self) -> list[dict[str, Any]]:
        return await self._api.items("/api/v1/pods", NAME_LABEL)

    def _place(self, pod: Mapping[str, Any], *, due: float) -> str:
        address = str(next(self._world.free_addresses))
        self._addresses[_uid(pod)], self._due[_uid(pod)] = address, due
        return address

    def _gets_ready(self, pod: Mapping[str, Any], now: float) -> bool:
        conditions = pod["status"].get("conditions") or ()
        is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
        return not is_ready and not _is_leaving(pod) and self._due[_uid(pod)] <= now

    async def _bind(self, pod: Mapping[str, Any]) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": _NAME}
        binding = {"apiVersion": "v1", "kind": "Binding", "target": target}
        name = {"metadata": {"name": pod["metadata"]["name"]}}
        await self._api.call("POST", f"{_path(pod)}/binding", binding | name)

    async def _take_up(self, pod: Mapping[str, Any]) -> None:
        # It may have gone since it was seen, here and below.
        with suppress(RuntimeError):
            await self._bind(pod)
            address = self._addresses[_uid(pod)]
            status = running_at(address, ready=False, since=pod["metadata"]["creationTimestamp"])
            await self._api.patch(f"{_path(pod)}/status", {"status": status})

    async def _make_ready(self, pod: Mapping[str, Any]) -> None:
        """As long after its creation as a start takes, whenever that is said."""
        created = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
        since = (created + timedelta(seconds=self._startup_seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = running_at(self._addresses[_uid(pod)], since=since)
        with suppress(RuntimeError):
            await self._api.patch(f"{_path(pod)}/status", {"status": status})

    async def _remove(self, pod: Mapping[str, Any]) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": _uid(pod)}}
        with suppress(RuntimeError):
            await self._api.call("DELETE", _path(pod), options)


def _uid(pod: Mapping[str, Any]) -> str:
    uid: str = pod["metadata"]["uid"]
    return uid


def _model(pod: Mapping[str, Any]) -> str:
    name: str = pod["metadata"]["labels"][NAME_LABEL]
    return name


def _is_leaving(pod: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _path(pod: Mapping[str, Any]) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
