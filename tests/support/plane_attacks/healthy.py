"""Ten models of a namespace that nobody attacks: their edits, drift, metrics and sizes."""

import asyncio
import itertools
import json
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from batchedmodel_kube.manifest.manifest import read_manifest
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_kube.names import (
    GROUP,
    METRICS_GROUP,
    NAME_LABEL,
    PLURAL,
    REQUIRED_REPLICAS_METRIC,
    VERSION,
)
from control_plane_api import Api
from support.plane_attacks.node import ready_at
from support.plane_attacks.orders import Helper

SPACE: Final = "healthy"
COUNT: Final = 10
_NAMES: Final = tuple(f"model-{number}" for number in range(COUNT))
_DRIFTING: Final = "drifting"
"""One more, which is not edited: a person's edit would have it looked at anyway."""
_WORK: Final = 0.5
"""Seconds of the device a second that each pod is asked for: one is right for it."""
_MORE_WORK: Final = 1.7
_EDIT_SECONDS: Final = 1.4
"""From an edit to one of the next model; each comes about again when its last edit is forgotten."""
_DRIFT_SECONDS: Final = 6.0
"""Each child has its turn again when two minutes are over, and what was before is forgotten: of one
that is changed more often the operator takes it that somebody contests it."""
_LOOK_SECONDS: Final = 0.05
_ASK_SECONDS: Final = 0.2
_GIVEN_UP_SECONDS: Final = 60.0
_PORT: Final = 80


@dataclass(slots=True, kw_only=True)
class Seen:
    """What became of them since it was asked last; seconds, infinite where it did not come."""

    applied: list[float] = field(default_factory=list)
    """From an edit to the ConfigMap that follows from it."""
    reported: list[float] = field(default_factory=list)
    """From an edit to a status that speaks of it."""
    mended: list[float] = field(default_factory=list)
    """From a Service's change by hand to its being as the model wants it."""
    scaled: list[float] = field(default_factory=list)
    """From more work to more pods being asked for."""
    asked: list[float] = field(default_factory=list)
    """What an HPA waits for a metric."""
    wrong: list[str] = field(default_factory=list)
    """What was said instead of a metric."""
    api: list[float] = field(default_factory=list)
    """What the API server itself took for reading a small object."""


class Healthy:
    """The models, with pods that a pretended node runs at addresses of their own."""

    def __init__(self, api: Api, sidecars: Helper, addresses: list[str]) -> None:
        self._api = api
        self._sidecars = sidecars
        self._free = iter(addresses)
        self._settings: dict[str, str] = {}
        self._work: dict[str, float] = defaultdict(lambda: _WORK)
        self._pods: dict[str, tuple[str, str]] = {}
        """By uid: the model and the address of each pod that runs."""
        self._sizes = itertools.count(33)
        self._to_scale = itertools.cycle(_NAMES)
        self._turn = itertools.cycle(_NAMES)
        names = (*_NAMES, _DRIFTING)
        children = [(f"services/{name}", name) for name in names]
        children += [(f"configmaps/{name}-batching", name) for name in names]
        self._to_drift = itertools.cycle(children)
        self.seen = Seen()

    @property
    def addresses(self) -> list[str]:
        """Of the pods that run."""
        return [address for _, address in self._pods.values()]

    @property
    def scaled_all(self) -> bool:
        """Whether each of them has as much to do as it will have."""
        return all(self._work[name] == _MORE_WORK for name in _NAMES)

    async def create(self) -> None:
        """People write them."""
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
        await self._api.call("POST", "/api/v1/namespaces", space)
        for name in (*_NAMES, _DRIFTING):
            manifest = _manifest(name)
            self._settings[name] = settings_of(manifest)
            await self._api.call("POST", _models(), manifest)

    async def run_pods(self) -> None:
        """What a node does, for ever."""
        while True:
            # The next look makes up for what fails.
            with suppress(RuntimeError, aiohttp.ClientError, TimeoutError):
                await self._run_pods()
            await asyncio.sleep(0.3)

    async def _run_pods(self) -> None:
        pods = await self._api.items(f"/api/v1/namespaces/{SPACE}/pods", NAME_LABEL)
        for pod in pods:
            metadata = pod["metadata"]
            if metadata["uid"] in self._pods or "deletionTimestamp" in metadata:
                continue
            name, address = metadata["labels"][NAME_LABEL], next(self._free)
            self._pods[metadata["uid"]] = name, address
            await self._tell(name)
            path = f"/api/v1/namespaces/{SPACE}/pods/{metadata['name']}/status"
            try:
                await self._api.patch(path, {"status": ready_at(address)})
            except BaseException:
                del self._pods[metadata["uid"]]
                raise

    async def _tell(self, name: str) -> None:
        """The sidecars of a model answer as it stands now."""
        orders = [
            {
                "address": address,
                "model": name,
                "pod": uid,
                "settings": self._settings[name],
                "work": self._work[name],
            }
            for uid, (model, address) in self._pods.items()
            if model == name
        ]
        await self._sidecars.order(orders)

    async def settled(self) -> bool:
        """Whether all are ready, and a metric is served for each."""
        models = await self._api.items(_models())
        ready = [_holds(one, "Ready") for one in models]
        if len(ready) != COUNT + 1 or not all(ready):
            return False
        for name in _NAMES:
            status, _ = await self._api.send("GET", _metric(name), None)
            if status != 200:
                return False
        scalers = await self._api.items(
            f"/apis/autoscaling/v2/namespaces/{SPACE}/horizontalpodautoscalers"
        )
        return len(scalers) == COUNT + 1 and all(_holds(one, "ScalingActive") for one in scalers)

    async def live(self, until: asyncio.Event) -> None:
        """People edit them, hands change their children, HPAs ask, until the time is over."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._edit_on(until))
            group.create_task(self._drift_on(until))
            group.create_task(self._ask_on(until))
            group.create_task(self._scale())

    async def _edit_on(self, until: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            while not until.is_set():
                group.create_task(self._edit(next(self._turn)))
                await _pause(until, _EDIT_SECONDS)

    async def _edit(self, name: str) -> None:
        size = next(self._sizes)
        change = {"spec": {"batching": {"maxBatchSize": size}}}
        edited = await self._api.call(
            "PATCH", f"{_models()}/{name}", change, kind="application/merge-patch+json"
        )
        began, generation = time.monotonic(), edited["metadata"]["generation"]
        path = f"/api/v1/namespaces/{SPACE}/configmaps/{name}-batching"

        async def applied() -> bool:
            asked = time.monotonic()
            found = await self._api.call("GET", path)
            self.seen.api.append(time.monotonic() - asked)
            # Or that of the next edit already.
            return bool(json.loads(found["data"]["batching.json"])["max_batch_size"] >= size)

        self.seen.applied.append(await _took(began, applied))
        self._settings[name] = settings_of(edited)
        await self._tell(name)

        async def reported() -> bool:
            found = await self._api.call("GET", f"{_models()}/{name}")
            return _holds(found, "Reconciled", generation) and _holds(found, "Ready", generation)

        self.seen.reported.append(await _took(began, reported))

    async def _drift_on(self, until: asyncio.Event) -> None:
        while not until.is_set():
            child, name = next(self._to_drift)
            path = f"/api/v1/namespaces/{SPACE}/{child}"
            wrong = {"metadata": {"labels": {NAME_LABEL: "somebody-else"}}}
            await self._api.patch(path, wrong)
            began = time.monotonic()

            async def mended(path: str = path, name: str = name) -> bool:
                found = await self._api.call("GET", path)
                return bool(found["metadata"]["labels"][NAME_LABEL] == name)

            self.seen.mended.append(await _took(began, mended))
            await _pause(until, _DRIFT_SECONDS)

    async def _ask_on(self, until: asyncio.Event) -> None:
        names = itertools.cycle(_NAMES)
        while not until.is_set():
            began = time.monotonic()
            status, text = await self._api.send("GET", _metric(next(names)), None)
            self.seen.asked.append(time.monotonic() - began)
            if status != 200:
                self.seen.wrong.append(f"{status} {text[:200]!r}")
            await _pause(until, _ASK_SECONDS)

    async def _scale(self) -> None:
        """The next model has more to do than its pod can; those that had are left as they are."""
        name = next(self._to_scale)
        if self._work[name] == _MORE_WORK:
            return
        self._work[name] = _MORE_WORK
        await self._tell(name)
        began = time.monotonic()

        async def more() -> bool:
            path = f"/apis/apps/v1/namespaces/{SPACE}/deployments/{name}"
            found = await self._api.call("GET", path)
            return bool(found["spec"]["replicas"] > 1)

        self.seen.scaled.append(await _took(began, more))


async def _took(began: float, holds: Any) -> float:
    """Seconds until it holds; infinite where that takes very long."""
    while time.monotonic() - began < _GIVEN_UP_SECONDS:
        if await holds():
            return time.monotonic() - began
        await asyncio.sleep(_LOOK_SECONDS)
    return float("inf")


async def _pause(until: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await until.wait()
    except TimeoutError:
        return


def _manifest(name: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "BatchedModel",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {
            "model": {"handler": "simulated"},
            "batching": {"maxBatchSize": 32},
            "service": {"port": _PORT},
            "autoscaling": {"minReplicas": 1, "maxReplicas": 3},
        },
    }


def settings_of(manifest: Mapping[str, Any]) -> str:
    """By which a model's pods tell what batch settings they use."""
    return batch_settings(read_manifest(manifest).spec).digest()


def _models() -> str:
    return f"/apis/{GROUP}/{VERSION}/namespaces/{SPACE}/{PLURAL}"


def _metric(name: str) -> str:
    root = f"/apis/{METRICS_GROUP}/v1beta2/namespaces/{SPACE}"
    return f"{root}/{PLURAL}.{GROUP}/{name}/{REQUIRED_REPLICAS_METRIC}"


def _holds(found: Mapping[str, Any], kind: str, generation: int = 0) -> bool:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(
        one["type"] == kind
        and one["status"] == "True"
        and one.get("observedGeneration", 0) >= generation
        for one in conditions
    )
