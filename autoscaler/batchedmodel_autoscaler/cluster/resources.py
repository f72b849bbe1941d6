"""What the autoscaler watches in a cluster, as addresses with selectors; and what a watch tells.

Rights follow from this list: the chart's `autoscaler-rbac.yaml` allows listing and watching these,
and beyond them only patching and deleting the two APIServices, patching the status of BatchedModels
and holding its Lease. A role of Kubernetes' own allows `FRONT_PROXY`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final
from urllib.parse import quote, urlencode

from batchedmodel_autoscaler.cluster.objects import ModelKey, Object
from batchedmodel_contract.kubernetes import capacity
from batchedmodel_contract.kubernetes.names import (
    GROUP,
    METRICS_GROUP,
    NAME_LABEL,
    PLURAL,
    REVISION_LABEL,
    VERSION,
)
from batchedmodel_contract.kubernetes.object_text import LARGEST_OF_MANY, LARGEST_PART, Wanted

METRICS_VERSIONS: Final = ("v1beta2", "v1beta1")
"""Of the metrics API, the preferred one first. A group must never be shared between two servers."""

_METADATA: Final[Wanted] = {
    **dict.fromkeys(("name", "namespace", "uid", "resourceVersion")),
    **dict.fromkeys(("creationTimestamp", "deletionTimestamp", "ownerReferences")),
    "labels": dict.fromkeys((NAME_LABEL, REVISION_LABEL)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A collection of objects, or of one by its name."""

    path: str
    labels: str = ""
    """Label selector."""
    name: str = ""
    """The only object wanted: rights can then be limited to its name."""
    metadata_only: bool = False
    """Whether the rest of the objects, such as a whole pod template, need not be sent."""
    may_be_closed: bool = False
    """Whether nothing of ours is there when it is forbidden: a namespace takes its Role along."""
    wanted: Wanted = field(default_factory=lambda: {"metadata": _METADATA}, compare=False)
    """What is read of each object."""
    largest: int = field(default=LARGEST_OF_MANY, compare=False)
    """Bytes of one of these values. An object with a larger one is left out."""

    def query(self, **more: str | int) -> str:
        """The collection's address with its selectors."""
        selectors: dict[str, str | int] = {}
        if self.labels:
            selectors["labelSelector"] = self.labels
        if self.name:
            selectors["fieldSelector"] = f"metadata.name={self.name}"
        return f"{self.path}?{urlencode(selectors | more)}"

    @property
    def object_path(self) -> str:
        """The address of the only object."""
        return f"{self.path}/{quote(self.name, safe='')}"

    def __str__(self) -> str:
        return self.object_path if self.name else self.path


class EventType(StrEnum):
    """What a watch tells."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One message of a watch."""

    type: EventType
    found: Object
    """Of a bookmark nothing but the version is right."""
    version: str


MODELS: Final = Resource(
    path=f"/apis/{GROUP}/{VERSION}/{PLURAL}",
    wanted={
        "metadata": _METADATA,
        "spec": {
            "autoscaling": dict.fromkeys(
                (
                    "targetUtilizationPercent",
                    "targetQueueLength",
                    "targetOutstanding",
                    "targetQueueWaitMilliseconds",
                )
            ),
            "batching": dict.fromkeys(
                ("maxBatchSize", "maxConcurrentBatches", "targetLatencyMilliseconds")
            ),
        },
        "status": {capacity.FIELD: None},
    },
)
PODS: Final = Resource(
    path="/api/v1/pods",
    labels=NAME_LABEL,
    wanted={
        "metadata": _METADATA,
        "status": dict.fromkeys(("phase", "podIP", "conditions", "startTime")),
    },
)
SIZES: Final = Resource(
    path="/apis/apps/v1/deployments",
    labels=NAME_LABEL,
    wanted={"metadata": _METADATA, "spec": {"replicas": None}},
)
REPLICA_SETS: Final = Resource(
    path="/apis/apps/v1/replicasets", labels=NAME_LABEL, metadata_only=True
)
API_SERVICES: Final = tuple(
    Resource(
        path="/apis/apiregistration.k8s.io/v1/apiservices",
        name=f"{version}.{METRICS_GROUP}",
        wanted={"metadata": _METADATA, "spec": {"service": None, "caBundle": None}},
        largest=LARGEST_PART,
    )
    for version in METRICS_VERSIONS
)
FRONT_PROXY: Final = Resource(
    path="/api/v1/namespaces/kube-system/configmaps",
    name="extension-apiserver-authentication",
    wanted={"metadata": _METADATA, "data": None},
    largest=LARGEST_PART,
)


def status_path(key: ModelKey) -> str:
    """The address of a BatchedModel's status."""
    namespace, name = quote(key.namespace, safe=""), quote(key.name, safe="")
    return f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}/{name}/status"


def lease_path(namespace: str, name: str) -> str:
    """The address of a Lease."""
    where = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}"
    return f"{where}/leases/{quote(name, safe='')}"


def within(resource: Resource, namespaces: Sequence[str]) -> tuple[Resource, ...]:
    """The collections of some namespaces; the one of all of them when none is named."""
    if not namespaces:
        return (resource,)
    head, _, plural = resource.path.rpartition("/")
    return tuple(
        replace(resource, path=f"{head}/namespaces/{namespace}/{plural}", may_be_closed=True)
        for namespace in namespaces
    )


def own_namespace(namespace: str) -> Resource:
    """The namespace that the autoscaler runs in."""
    return Resource(path="/api/v1/namespaces", name=namespace)


def own_deployment(namespace: str, name: str) -> Resource:
    """The Deployment that the autoscaler's pods are of."""
    return Resource(path=f"/apis/apps/v1/namespaces/{namespace}/deployments", name=name)
