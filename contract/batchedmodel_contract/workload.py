"""The sections of `spec` that say how pods are replaced, protected, placed and reached.

Only a cluster has a use for them. Part of `spec`, which holds them with the others.
"""

from dataclasses import dataclass
from enum import StrEnum

from batchedmodel_contract.object_rules import CountOrPercent, NamedEntries
from batchedmodel_contract.reading import setting
from batchedmodel_contract.rules import Choice, Names, Text, TextMap, Truth, Verbatim, Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How pods are replaced by those of a new revision."""

    max_surge: int | str | None = setting(
        "maxSurge",
        CountOrPercent(),
        "Pods that may be there beside those that are wanted.",
        effective="25%; 0 with an accelerator, of which none may be to spare",
    )
    max_unavailable: int | str | None = setting(
        "maxUnavailable",
        CountOrPercent(),
        "Pods that may be missing meanwhile.",
        effective="0 where there may be pods to spare, otherwise 1",
    )
    min_ready_seconds: int = setting(
        "minReadySeconds",
        Whole(minimum=0, maximum=3600),
        "How long a new pod must have been ready until the next is replaced.",
        default=0,
    )
    revision_history_limit: int = setting(
        "revisionHistoryLimit",
        Whole(minimum=1, maximum=20),
        "Earlier revisions that the Deployment keeps.",
        default=3,
    )


class ServiceType(StrEnum):
    """How the Service is reached."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The Service in front of the pods."""

    type: ServiceType = setting(
        "type", Choice(of=ServiceType), "How it is reached.", default=ServiceType.CLUSTER_IP
    )
    port: int = setting("port", Whole(minimum=1, maximum=65535), "Its port.", default=80)
    annotations: tuple[tuple[str, str], ...] = setting(
        "annotations", TextMap(), "Its annotations, for load balancers and others.", default=()
    )


class BudgetMode(StrEnum):
    """When a PodDisruptionBudget is made."""

    AUTO = "Auto"
    """Where there may be two pods or more."""
    NEVER = "Never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disruption:
    """What those may do who drain nodes."""

    pod_disruption_budget: BudgetMode = setting(
        "podDisruptionBudget",
        Choice(of=BudgetMode),
        "`Auto` makes a PodDisruptionBudget where there may be two pods or more, `Never` makes "
        "none. Pods that are not ready are never protected.",
        default=BudgetMode.AUTO,
    )
    max_unavailable: int | str = setting(
        "maxUnavailable",
        CountOrPercent(minimum=1),
        "Pods that may be evicted at the same time.",
        default=1,
    )


class SecurityProfile(StrEnum):
    """Which of Kubernetes' pod security standards the pods meet."""

    RESTRICTED = "Restricted"
    BASELINE = "Baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What the pods' containers may do."""

    profile: SecurityProfile = setting(
        "profile",
        Choice(of=SecurityProfile),
        "Pod security standard that the pods meet. `Restricted` runs all containers as a user "
        "without rights; `Baseline` runs that of the model as the user its image names, root too.",
        default=SecurityProfile.RESTRICTED,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """Where pods run and what they carry."""

    labels: tuple[tuple[str, str], ...] = setting(
        "labels", TextMap(), "Labels of the pods; none of them selects pods.", default=()
    )
    annotations: tuple[tuple[str, str], ...] = setting(
        "annotations", TextMap(), "Annotations of the pods.", default=()
    )
    node_selector: tuple[tuple[str, str], ...] = setting(
        "nodeSelector", TextMap(), "Labels that a node must have.", default=()
    )
    tolerations: list[object] | None = setting(
        "tolerations",
        Verbatim(of=list, form="a list of core/v1 tolerations"),
        "Taints that are tolerated, beside that of the accelerator.",
    )
    affinity: dict[str, object] | None = setting(
        "affinity", Verbatim(of=dict, form="a core/v1 affinity"), "Node and pod affinity."
    )
    topology_spread_constraints: list[object] | None = setting(
        "topologySpreadConstraints",
        Verbatim(of=list, form="a list of core/v1 topology spread constraints"),
        "How pods are spread; one without a selector is about the model's pods. Absent: over "
        "zones and nodes, as far as that is possible. An empty list: no constraint.",
    )
    priority_class_name: str | None = setting(
        "priorityClassName", Text(at_most=253), "Priority class of the pods."
    )
    runtime_class_name: str | None = setting(
        "runtimeClassName", Text(at_most=253), "Runtime class of the pods."
    )
    scheduler_name: str | None = setting(
        "schedulerName", Text(at_most=253), "Who places the pods; absent: the cluster's scheduler."
    )
    service_account_name: str | None = setting(
        "serviceAccountName", Text(at_most=253), "Service account of the pods."
    )
    automount_service_account_token: bool = setting(
        "automountServiceAccountToken",
        Truth(),
        "Whether the containers get the service account's token.",
        default=False,
    )
    image_pull_secrets: tuple[str, ...] = setting(
        "imagePullSecrets", Names(), "Secrets with which images are pulled.", default=()
    )
    volumes: list[object] | None = setting(
        "volumes",
        NamedEntries(form="a list of core/v1 volumes"),
        "Volumes beside the operator's own; `model.volumeMounts` says where they are seen.",
    )
