"""The kinds of objects that the operator deals with, and the names of a BatchedModel's children."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from batchedmodel_kube.names import CLASS_PLURAL, GROUP, MANAGED_BY, PLURAL, VERSION

FIELD_MANAGER: Final = MANAGED_BY
SEED_MANAGER: Final = f"{FIELD_MANAGER}-seed"
"""Holds a Deployment's `spec.replicas` between the operator, who set them, and the autoscaler."""


class Kind(StrEnum):
    """As `kind` stands in a manifest."""

    BATCHED_MODEL = "BatchedModel"
    MODEL_CLASS = "BatchedModelClass"
    CONFIG_MAP = "ConfigMap"
    SERVICE = "Service"
    DEPLOYMENT = "Deployment"
    AUTOSCALER = "HorizontalPodAutoscaler"
    DISRUPTION_BUDGET = "PodDisruptionBudget"
    POD = "Pod"
    REPLICA_SET = "ReplicaSet"
    CONTROLLER_REVISION = "ControllerRevision"
    EVENT = "Event"
    LEASE = "Lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """Where the objects of a kind are served."""

    group: str
    """Empty: the core group."""
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


RESOURCES: Final = {
    Kind.BATCHED_MODEL: Resource(group=GROUP, version=VERSION, plural=PLURAL),
    Kind.MODEL_CLASS: Resource(group=GROUP, version=VERSION, plural=CLASS_PLURAL),
    Kind.CONFIG_MAP: Resource(group="", version="v1", plural="configmaps"),
    Kind.SERVICE: Resource(group="", version="v1", plural="services"),
    Kind.DEPLOYMENT: Resource(group="apps", version="v1", plural="deployments"),
    Kind.AUTOSCALER: Resource(group="autoscaling", version="v2", plural="horizontalpodautoscalers"),
    Kind.DISRUPTION_BUDGET: Resource(group="policy", version="v1", plural="poddisruptionbudgets"),
    Kind.POD: Resource(group="", version="v1", plural="pods"),
    Kind.REPLICA_SET: Resource(group="apps", version="v1", plural="replicasets"),
    Kind.CONTROLLER_REVISION: Resource(group="apps", version="v1", plural="controllerrevisions"),
    Kind.EVENT: Resource(group="", version="v1", plural="events"),
    Kind.LEASE: Resource(group="coordination.k8s.io", version="v1", plural="leases"),
}

CHILDREN: Final = (
    Kind.CONFIG_MAP,
    Kind.SERVICE,
    Kind.DEPLOYMENT,
    Kind.AUTOSCALER,
    Kind.DISRUPTION_BUDGET,
)
"""In the order in which they are applied: a pod mounts the ConfigMap, an autoscaler scales."""


def child_name(kind: Kind, model: str) -> str:
    """The name of a BatchedModel's child."""
    return f"{model}-batching" if kind is Kind.CONFIG_MAP else model
