"""What the autoscaler watches in a cluster.

Rights follow from this list: the chart's `autoscaler-rbac.yaml` allows listing and watching these,
and beyond them only patching and deleting its APIServices, patching the status of BatchedModels
and holding its Lease. A role of Kubernetes' own allows `FRONT_PROXY`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from batchedmodel_kube import capacity
from batchedmodel_kube.client import Collection, path_of
from batchedmodel_kube.names import (
    EXTERNAL_METRICS_GROUP,
    GROUP,
    METRICS_GROUP,
    NAME_LABEL,
    PLURAL,
    REVISION_LABEL,
    VERSION,
)
from batchedmodel_kube.object_text import (
    LARGEST_OF_MANY,
    LARGEST_PART,
    Unreadable,
    Wanted,
    pick_owned,
)
from batchedmodel_kube.reading import Object

METRICS_VERSIONS: Final[Mapping[str, Sequence[str]]] = {
    METRICS_GROUP: ("v1beta2", "v1beta1"),
    EXTERNAL_METRICS_GROUP: ("v1beta1",),
}
"""Of each group that is served, the preferred one first. Two servers must never share a group."""

_METADATA: Final[Wanted] = {
    **dict.fromkeys(("name", "namespace", "uid", "resourceVersion")),
    **dict.fromkeys(("creationTimestamp", "deletionTimestamp", "ownerReferences")),
    "labels": dict.fromkeys((NAME_LABEL, REVISION_LABEL)),
}


def _reader(largest: int = LARGEST_OF_MANY, **wanted: Wanted | None) -> Callable[[bytes], Object]:
    """Reads the metadata above and the wanted fields. An object with a larger one is left out."""
    return partial(pick_owned, wanted={"metadata": _METADATA, **wanted}, largest=largest)


_SPEC: Final[Wanted] = {
    "className": None,
    "autoscaling": dict.fromkeys(
        (
            "maxReplicas",
            "targetUtilizationPercent",
            "targetQueueLength",
            "targetConcurrency",
            "targetQueueTimeMilliseconds",
        )
    ),
    "batching": dict.fromkeys(
        ("maxBatchSize", "maxConcurrentBatches", "targetLatencyMilliseconds")
    ),
}
_STATUS: Final[Wanted] = {capacity.FIELD: None, "effective": {"autoscaling": None}}
_with_conditions: Final = _reader(spec=_SPEC, status={**_STATUS, "conditions": None})
_without_conditions: Final = _reader(spec=_SPEC, status=_STATUS)


def _read_model(text: bytes) -> Object:
    """A BatchedModel. Conditions only make series: large ones must not cost it its metrics."""
    try:
        return _with_conditions(text)
    except Unreadable:
        return _without_conditions(text)


MODELS: Final = Collection(path=path_of(GROUP, VERSION, PLURAL), read=_read_model)
PODS: Final = Collection(
    path="/api/v1/pods",
    labels=NAME_LABEL,
    read=_reader(status=dict.fromkeys(("phase", "podIP", "conditions", "startTime"))),
)
SIZES: Final = Collection(
    path="/apis/apps/v1/deployments", labels=NAME_LABEL, read=_reader(spec={"replicas": None})
)
REPLICA_SETS: Final = Collection(
    path="/apis/apps/v1/replicasets", labels=NAME_LABEL, metadata_only=True, read=_reader()
)
API_SERVICES: Final[Mapping[str, Sequence[Collection]]] = {
    group: tuple(
        Collection(
            path="/apis/apiregistration.k8s.io/v1/apiservices",
            name=f"{version}.{group}",
            read=_reader(LARGEST_PART, spec={"service": None, "caBundle": None}),
        )
        for version in versions
    )
    for group, versions in METRICS_VERSIONS.items()
}
"""By group; the autoscaler looks after those that the chart registers."""
FRONT_PROXY: Final = Collection(
    path="/api/v1/namespaces/kube-system/configmaps",
    name="extension-apiserver-authentication",
    read=_reader(LARGEST_PART, data=None),
)


def within(collection: Collection, namespaces: Sequence[str]) -> tuple[Collection, ...]:
    """The collections of some namespaces; the one of all of them when none is named."""
    if not namespaces:
        return (collection,)
    head, _, plural = collection.path.rpartition("/")
    return tuple(
        replace(collection, path=f"{head}/namespaces/{namespace}/{plural}", may_be_closed=True)
        for namespace in namespaces
    )


def own_namespace(namespace: str) -> Collection:
    """The namespace that the autoscaler runs in."""
    return Collection(path="/api/v1/namespaces", name=namespace, read=_reader())


def own_deployment(namespace: str, name: str) -> Collection:
    """The Deployment that the autoscaler's pods are of."""
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    return Collection(path=path, name=name, read=_reader())
