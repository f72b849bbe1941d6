"""The sections of `spec` that say how pods are counted, replaced, protected, placed and reached.

Only a cluster has a use for them. Part of `spec`, which holds them with the others.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from batchedmodel_contract.schema.reading import setting
from batchedmodel_contract.schema.rules import Choice, Text, Truth, Whole, object_name
from batchedmodel_contract.schema.shapes import ListOf, Names
from batchedmodel_kube.schema.kubernetes_types import (
    AFFINITY,
    BEHAVIOR,
    CONTAINER,
    TOLERATION,
    TOPOLOGY_SPREAD_CONSTRAINT,
    VOLUME,
)
from batchedmodel_kube.schema.quantities import CountOrPercent
from batchedmodel_kube.schema.shapes import ANNOTATIONS, LABELS, NamedEntries

DEFAULT_TARGET_UTILIZATION_PERCENT: Final = 80
DEFAULT_TARGET_QUEUE_WAIT_MILLISECONDS: Final = 500
_LABEL: Final = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
_LABEL_VALUES: Final = Names(
    each=Text(pattern=_LABEL, form="a label value", at_most=63), called="label value"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """The device that each pod's model container needs."""

    resource: str = setting(
        Text(
            pattern=r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?",
            form="an extended resource such as nvidia.com/gpu",
        ),
        default="nvidia.com/gpu",
    )
    """Extended resource of the node."""
    count: int = setting(Whole(minimum=1, maximum=16), default=1)
    """Devices per pod."""
    product_labels: tuple[str, ...] = setting(_LABEL_VALUES, default=())
    """Products that will do, by the values of the nodes' label nvidia.com/gpu.product. Empty: all.
    """
    tolerate: bool = setting(Truth(), default=True)
    """Whether pods tolerate a taint that has the resource's name for a key and keeps others off
    (NoSchedule); for NVIDIA's resources that of nvidia.com/gpu, too."""


class ScalingMetric(StrEnum):
    """What the number of pods follows; see `Autoscaling.metric`."""

    LOAD = "Load"
    QUEUE_LENGTH = "QueueLength"
    CONCURRENCY = "Concurrency"
    QUEUE_TIME = "QueueTime"
    CPU = "CPU"


class ScalingVia(StrEnum):
    """From which API the HPA reads; see `Autoscaling.via`."""

    CUSTOM_METRICS = "CustomMetrics"
    EXTERNAL_METRICS = "ExternalMetrics"


class ScalingProfile(StrEnum):
    """How eagerly the number of pods follows the metric."""

    BALANCED = "Balanced"
    FAST = "Fast"
    CONSERVATIVE = "Conservative"


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """How a stock HorizontalPodAutoscaler sizes the model."""

    min_replicas: int = setting(Whole(minimum=1, maximum=1000), default=1)
    """Fewest pods."""
    max_replicas: int = setting(Whole(minimum=1, maximum=1000), required=True)
    """Most pods."""
    metric: ScalingMetric = setting(Choice(of=ScalingMetric), default=ScalingMetric.LOAD)
    """`Load` follows the work that is offered, `QueueLength` the rows that wait, `Concurrency`
    those under way too, `QueueTime` how long rows wait, `CPU` what the model's container uses of
    the cpu that it asks for."""
    via: ScalingVia | None = setting(Choice(of=ScalingVia), effective="what the chart says")
    """From which API the HPA reads the metric: `CustomMetrics` is custom.metrics.k8s.io,
    `ExternalMetrics` external.metrics.k8s.io. Metric `CPU` is from neither."""
    target_utilization_percent: int | None = setting(
        Whole(minimum=20, maximum=95),
        effective=f"{DEFAULT_TARGET_UTILIZATION_PERCENT} with metric `Load` or `CPU`",
    )
    """Share that is to be used: of a pod's capacity with metric `Load`, of the requested cpu with
    metric `CPU`."""
    target_queue_length: int | None = setting(
        Whole(minimum=1, maximum=1_000_000), effective="`maxBatchSize` with metric `QueueLength`"
    )
    """Rows that may wait per pod; for metric `QueueLength`."""
    target_concurrency: int | None = setting(
        Whole(minimum=1, maximum=1_000_000),
        effective="`maxBatchSize` x `maxConcurrentBatches` with metric `Concurrency`",
    )
    """Rows that may wait or be under way per pod; for metric `Concurrency`."""
    target_queue_time_milliseconds: int | None = setting(
        Whole(minimum=1, maximum=3_600_000),
        effective="with metric `QueueTime` half of `targetLatencyMilliseconds`, or "
        f"{DEFAULT_TARGET_QUEUE_WAIT_MILLISECONDS} without one",
    )
    """How long a row may wait on average until its batch begins; for metric `QueueTime`."""
    profile: ScalingProfile = setting(Choice(of=ScalingProfile), default=ScalingProfile.BALANCED)
    """`Balanced` doubles within a minute and takes pods away slowly after five calm minutes, `Fast`
    trebles within 15 s and gives up pods after two, `Conservative` adds one pod a minute and gives
    up one in five after a quarter of an hour."""
    behavior: dict[str, object] | None = setting(BEHAVIOR)
    """Scaling behaviour in the form of autoscaling/v2; its `scaleUp` and its `scaleDown` stand
    above the profile's."""


class RolloutStrategy(StrEnum):
    """Which pods go first; see `Rollout.strategy`."""

    AUTO = "Auto"
    SURGE = "Surge"
    IN_PLACE = "InPlace"


class UpgradeMode(StrEnum):
    """Whether pods get the images of another operator; see `Sidecar.upgrade`."""

    PINNED = "Pinned"
    ROLLING = "Rolling"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How pods are replaced by those of a new revision."""

    strategy: RolloutStrategy = setting(Choice(of=RolloutStrategy), default=RolloutStrategy.AUTO)
    """`Surge` puts new pods beside the old ones, `InPlace` takes old pods away first, `Auto` is
    `Surge` unless a pod lacks an accelerator, and changes to `InPlace` where none comes."""
    switch_after_seconds: int = setting(Whole(minimum=0, maximum=86_400), default=600)
    """How long a new pod may lack an accelerator until `Auto` changes to `InPlace`: as long as a
    new node may take to come."""
    auto_rollback: bool = setting(Truth(), default=True)
    """Whether the last good revision comes back when containers of a new one start and fail."""
    max_surge: int | str | None = setting(
        CountOrPercent(), effective="25%, 1 with an accelerator; 0 where old pods go first"
    )
    """Pods that may be there beside those that are wanted."""
    max_unavailable: int | str | None = setting(
        CountOrPercent(), effective="0; 1 where old pods go first"
    )
    """Pods that may be missing meanwhile."""
    min_ready_seconds: int = setting(Whole(minimum=0, maximum=3600), default=0)
    """How long a new pod must have been ready until the next is replaced."""
    revision_history_limit: int = setting(Whole(minimum=1, maximum=20), default=3)
    """Earlier revisions that the Deployment keeps."""


class ServiceType(StrEnum):
    """How the Service is reached."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class IpFamilyPolicy(StrEnum):
    """Whether the Service has addresses of one family or of both."""

    SINGLE_STACK = "SingleStack"
    PREFER_DUAL_STACK = "PreferDualStack"
    REQUIRE_DUAL_STACK = "RequireDualStack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The Service in front of the pods."""

    type: ServiceType = setting(Choice(of=ServiceType), default=ServiceType.CLUSTER_IP)
    """How it is reached."""
    port: int = setting(Whole(minimum=1, maximum=65535), default=80)
    """Its port."""
    ip_family_policy: IpFamilyPolicy | None = setting(Choice(of=IpFamilyPolicy), default=None)
    """Whether it has addresses of one family or of both, on clusters that have both. A new Service
    for which this is not said has one, of the cluster's first family."""
    annotations: tuple[tuple[str, str], ...] = setting(ANNOTATIONS, default=())
    """Its annotations, for load balancers and others."""


class BudgetMode(StrEnum):
    """When a PodDisruptionBudget is made; see `Disruption.pod_disruption_budget`."""

    AUTO = "Auto"
    NEVER = "Never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disruption:
    """What those may do who drain nodes."""

    pod_disruption_budget: BudgetMode = setting(Choice(of=BudgetMode), default=BudgetMode.AUTO)
    """`Auto` makes a PodDisruptionBudget where there may be two pods or more, `Never` makes none.
    Pods that are not ready are never protected."""
    max_unavailable: int | str = setting(CountOrPercent(minimum=1), default=1)
    """Pods that may be evicted at the same time."""


class SecurityProfile(StrEnum):
    """Which of Kubernetes' pod security standards the pods meet."""

    RESTRICTED = "Restricted"
    BASELINE = "Baseline"


class UserIds(StrEnum):
    """Who says as which user and group pods run; see `Security.ids`."""

    FIXED = "Fixed"
    FROM_CLUSTER = "FromCluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What the pods' containers may do."""

    profile: SecurityProfile = setting(
        Choice(of=SecurityProfile), default=SecurityProfile.RESTRICTED
    )
    """Pod security standard that the pods meet. `Restricted` runs all containers as a user without
    rights; `Baseline` runs that of the model as the user its image names, root too."""
    ids: UserIds | None = setting(Choice(of=UserIds), effective="what the chart says")
    """`Fixed` runs pods as user and group 65532, `FromCluster` names no number: the cluster gives
    them, as OpenShift's restricted-v2 does, or the images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """Where pods run and what they carry."""

    labels: tuple[tuple[str, str], ...] = setting(LABELS, default=())
    """Labels of the pods; none of them selects pods."""
    annotations: tuple[tuple[str, str], ...] = setting(ANNOTATIONS, default=())
    """Annotations of the pods."""
    node_selector: tuple[tuple[str, str], ...] = setting(LABELS, default=())
    """Labels that a node must have."""
    tolerations: list[object] | None = setting(
        ListOf(each=TOLERATION, form="a list of core/v1 tolerations")
    )
    """Taints that are tolerated, beside that of the accelerator."""
    affinity: dict[str, object] | None = setting(AFFINITY)
    """Node and pod affinity."""
    topology_spread_constraints: list[object] | None = setting(
        ListOf(
            each=TOPOLOGY_SPREAD_CONSTRAINT, form="a list of core/v1 topology spread constraints"
        )
    )
    """How pods are spread; one without a selector is about the model's pods. Absent: over zones and
    nodes, as far as that is possible. An empty list: no constraint."""
    priority_class_name: str | None = setting(object_name("a name of a PriorityClass"))
    """Priority class of the pods."""
    runtime_class_name: str | None = setting(object_name("a name of a RuntimeClass"))
    """Runtime class of the pods."""
    scheduler_name: str | None = setting(Text(at_most=253))
    """Who places the pods; absent: the cluster's scheduler."""
    service_account_name: str | None = setting(object_name("a name of a ServiceAccount"))
    """Service account of the pods."""
    automount_service_account_token: bool = setting(Truth(), default=False)
    """Whether the containers get the service account's token."""
    image_pull_secrets: tuple[str, ...] = setting(
        Names(each=object_name("a name of a Secret")), default=()
    )
    """Secrets with which images are pulled."""
    volumes: list[object] | None = setting(
        NamedEntries(each=VOLUME, form="a list of core/v1 volumes")
    )
    """Volumes beside the operator's own; `model.volumeMounts` says where they are seen."""
    init_containers: list[object] | None = setting(
        NamedEntries(each=CONTAINER, form="a list of core/v1 containers", at_most=16)
    )
    """What runs before the model, one after the other, when the sidecar is up and the model's files
    are fetched. They may see `pod.volumes` and the model's own, `cache` and `model-files`;
    `security.profile` holds for them, and their own security contexts above."""
