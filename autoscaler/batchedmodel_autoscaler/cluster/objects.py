"""What the autoscaler needs to know of Kubernetes' objects, read from their JSON. Pure."""

import base64
import binascii
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final, NamedTuple

from batchedmodel_autoscaler.replicas.formula import Target
from batchedmodel_contract.processes.logs import about
from batchedmodel_kube.capacity import Capacity, capacity_of
from batchedmodel_kube.manifest.batching import Batching
from batchedmodel_kube.manifest.spec import (
    target_concurrency,
    target_queue_length,
    target_queue_time_milliseconds,
    target_utilization_percent,
)
from batchedmodel_kube.names import NAME_LABEL, REVISION_LABEL
from batchedmodel_kube.reading import Object

MOST_CONDITIONS: Final = 16
_CONDITION_TYPE: Final = re.compile(r"[A-Za-z]{1,64}")
"""A model's status may be written by more than the operator, and every type is a series."""
_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_TAKEN_UP_SECONDS: Final = 5.0


class ModelKey(NamedTuple):
    """Names one BatchedModel."""

    namespace: str
    name: str

    def fields(self, *, pod_uid: str = "", reason: str = "") -> dict[str, object]:
        """`extra` of a log's line about it, and about a pod of it."""
        return about(namespace=self.namespace, model=self.name, pod_uid=pod_uid, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A BatchedModel's wishes."""

    key: ModelKey
    uid: str
    target: Target
    capacity: Capacity | None
    """What its status remembers."""
    max_replicas: int | None = None
    """Pods that it may have; None where nothing scales it."""
    conditions: tuple[tuple[str, bool], ...] = ()
    """Types in its status, and whether they hold; the first `MOST_CONDITIONS` that are words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of a BatchedModel."""

    uid: str
    model: ModelKey
    address: str
    """Empty until it has one, and once its containers have ended."""
    ready: bool
    leaving: bool
    startup_seconds: float | None
    """From its creation to the last time that it got ready; None while it is not ready."""
    fresh: bool
    """Whether it has never been ready."""
    created: str
    """When, as RFC 3339 writes it."""
    revision: str
    """Empty for a pod that the operator did not make."""
    owner: str
    """Uid of its controller, a ReplicaSet; empty where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """What stands between a BatchedModel and its pods: a Deployment or a ReplicaSet."""

    uid: str
    model: ModelKey
    """Whose label it has, which is no proof that it is that one's."""
    owner: str
    """Uid of its controller; empty where it has none."""
    replicas: int | None = None
    """How many pods a Deployment should have; None for a ReplicaSet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiService:
    """One of the registrations at the aggregation layer."""

    name: str
    uid: str
    version: str
    """Its resourceVersion."""
    namespace: str
    service: str
    """Whom it points at; empty when the API server itself serves the group."""
    bundle: bytes
    """PEM."""
    leaving: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontProxy:
    """How the API server identifies itself when it passes a request on."""

    authority: str = ""
    """PEM; empty where the aggregation layer is off."""
    allowed_names: tuple[str, ...] = ()
    """Common names of its certificate; empty: any that the authority vouches for."""
    user_headers: tuple[str, ...] = ()


def read_model(found: Object) -> Model:
    """A BatchedModel. The schema has checked ranges; an absent field has its default here."""
    spec = found.get("spec") or {}
    scaling, batching = spec.get("autoscaling") or {}, spec.get("batching") or {}
    if spec.get("className"):
        # What the class says of batching shows in what the operator made of both.
        in_force = (found.get("status") or {}).get("effective") or {}
        scaling = {**(in_force.get("autoscaling") or {}), **scaling}
    batch = batching.get("maxBatchSize") or Batching().max_batch_size
    wait = target_queue_time_milliseconds(
        scaling.get("targetQueueTimeMilliseconds"),
        target_latency_milliseconds=batching.get("targetLatencyMilliseconds"),
    )
    return Model(
        key=ModelKey(found["metadata"]["namespace"], found["metadata"]["name"]),
        uid=found["metadata"]["uid"],
        capacity=capacity_of(found.get("status") or {}),
        target=Target(
            utilization=target_utilization_percent(scaling.get("targetUtilizationPercent")) / 100,
            queue_length=target_queue_length(
                scaling.get("targetQueueLength"), max_batch_size=batch
            ),
            outstanding=target_concurrency(
                scaling.get("targetConcurrency"),
                max_batch_size=batch,
                max_concurrent_batches=batching.get("maxConcurrentBatches")
                or Batching().max_concurrent_batches,
            ),
            queue_wait_seconds=wait / 1000,
        ),
        max_replicas=scaling.get("maxReplicas"),
        conditions=_conditions((found.get("status") or {}).get("conditions") or ()),
    )


def _conditions(listed: Iterable[Object]) -> tuple[tuple[str, bool], ...]:
    found = {
        one["type"]: one.get("status") == "True"
        for one in islice(listed, MOST_CONDITIONS)
        if _CONDITION_TYPE.fullmatch(one.get("type") or "")
    }
    return tuple(found.items())


def read_pod(found: Object) -> Pod:
    """A pod that the label selects."""
    metadata, status = found["metadata"], found.get("status") or {}
    finished = status.get("phase") in _FINISHED
    ready = next((c for c in status.get("conditions") or () if c["type"] == "Ready"), None)
    is_ready = ready is not None and ready["status"] == "True"
    since = ready.get("lastTransitionTime") if ready and is_ready else None
    return Pod(
        uid=metadata["uid"],
        model=ModelKey(metadata["namespace"], metadata["labels"][NAME_LABEL]),
        address="" if finished else status.get("podIP", ""),
        ready=is_ready,
        leaving="deletionTimestamp" in metadata,
        startup_seconds=_startup_seconds(metadata, status, since) if since else None,
        fresh=not is_ready and _is_fresh(ready, status),
        created=metadata["creationTimestamp"],
        revision=metadata["labels"].get(REVISION_LABEL, ""),
        owner=_controller(metadata),
    )


def _startup_seconds(metadata: Object, status: Object, ready_since: str) -> float:
    """From its creation to its readiness.

    The wait for a node is measured by the API server's clock, the rest by that node's. The two
    clocks may differ by an hour.
    """
    created, taken_up = metadata["creationTimestamp"], status.get("startTime")
    placed = next(
        (
            one.get("lastTransitionTime")
            for one in status.get("conditions") or ()
            if (one["type"], one["status"]) == ("PodScheduled", "True")
        ),
        None,
    )
    if placed is None or taken_up is None:
        return _seconds_between(created, ready_since)
    waited = max(0.0, _seconds_between(created, placed))
    return waited + _seconds_between(taken_up, ready_since)


def _is_fresh(ready: Object | None, status: Object) -> bool:
    since, started = (ready or {}).get("lastTransitionTime"), status.get("startTime")
    # A kubelet says that a pod is not ready as soon as it takes it up.
    return since is None or started is None or _seconds_between(started, since) <= _TAKEN_UP_SECONDS


def read_owned(found: Object) -> Owned:
    """A Deployment or a ReplicaSet that the label selects."""
    metadata = found["metadata"]
    return Owned(
        uid=metadata["uid"],
        model=ModelKey(metadata["namespace"], metadata["labels"][NAME_LABEL]),
        owner=_controller(metadata),
        # Of ReplicaSets nothing but metadata is asked for.
        replicas=found["spec"].get("replicas", 1) if "spec" in found else None,
    )


def read_api_service(found: Object) -> ApiService:
    """An APIService."""
    metadata, spec = found["metadata"], found["spec"]
    service = spec.get("service") or {}
    try:
        bundle = base64.b64decode(spec.get("caBundle") or "")
    except binascii.Error:
        bundle = b""
    return ApiService(
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        namespace=service.get("namespace", ""),
        service=service.get("name", ""),
        bundle=bundle,
        leaving="deletionTimestamp" in metadata,
    )


def read_leaving(found: Object) -> bool:
    """Whether any object is being deleted."""
    return "deletionTimestamp" in found["metadata"]


def read_front_proxy(found: Object) -> FrontProxy:
    """The ConfigMap `extension-apiserver-authentication`."""
    data = found.get("data") or {}
    return FrontProxy(
        authority=data.get("requestheader-client-ca-file", ""),
        allowed_names=_names(data.get("requestheader-allowed-names")),
        user_headers=_names(data.get("requestheader-username-headers")),
    )


def _controller(metadata: Object) -> str:
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner.get("uid") or "")
    return ""


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(str(name) for name in json.loads(text)) if text else ()


def _seconds_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
