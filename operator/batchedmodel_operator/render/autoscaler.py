"""The stock HorizontalPodAutoscaler: its one metric, and how eagerly it follows.

The metric is one of the BatchedModel, which the autoscaler serves by either API, or the CPU of the
model's container, which the cluster's own metrics server serves.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from batchedmodel_kube.capacity import capacity_of
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.manifest.workload import (
    Autoscaling,
    ScalingMetric,
    ScalingProfile,
    ScalingVia,
)
from batchedmodel_kube.names import (
    CONCURRENCY_METRIC,
    MODEL_CONTAINER,
    MODEL_METRIC_LABEL,
    QUEUE_LENGTH_METRIC,
    QUEUE_TIME_METRIC,
    REQUIRED_REPLICAS_METRIC,
)
from batchedmodel_operator.kinds import RESOURCES, Kind, child_name
from batchedmodel_operator.observed import effective
from batchedmodel_operator.observed.state import Model
from batchedmodel_operator.render.common import Manifest, child

_SEEN_SECONDS: Final = 17.0
"""From a change of load to the HPA's look at it: its own period, and that of the autoscaler."""
_LONGEST_WINDOW_SECONDS: Final = 3600
"""That an HPA takes."""
_LEAST_DOWN_PERIOD_SECONDS: Final = 60
_LONGEST_UP_PERIOD_SECONDS: Final = 300
_ROUNDED_TO_SECONDS: Final = 30
"""Pods' starts differ, and the HPA need not be written anew for each."""
_METRICS: Final[Mapping[ScalingMetric, str]] = {
    ScalingMetric.LOAD: REQUIRED_REPLICAS_METRIC,
    ScalingMetric.QUEUE_LENGTH: QUEUE_LENGTH_METRIC,
    ScalingMetric.CONCURRENCY: CONCURRENCY_METRIC,
    ScalingMetric.QUEUE_TIME: QUEUE_TIME_METRIC,
}
"""Names of those that the autoscaler serves."""
_BY_QUEUE: Final = _METRICS.keys() - {ScalingMetric.LOAD}
"""Metrics that go on calling for pods while those that they called for start."""


def _policy(kind: str, value: int, period_seconds: int) -> Manifest:
    return {"type": kind, "value": value, "periodSeconds": period_seconds}


def _direction(window_seconds: int, *policies: Manifest) -> Manifest:
    return {
        "stabilizationWindowSeconds": window_seconds,
        # The one that changes most. Said, for what is left out stays as anybody sets it.
        "selectPolicy": "Max",
        "policies": [*policies],
    }


_PROFILES: Final[Mapping[ScalingProfile, Manifest]] = {
    ScalingProfile.BALANCED: {
        "scaleUp": _direction(0, _policy("Percent", 100, 60), _policy("Pods", 2, 60)),
        "scaleDown": _direction(300, _policy("Percent", 10, 60), _policy("Pods", 1, 60)),
    },
    ScalingProfile.FAST: {
        "scaleUp": _direction(0, _policy("Percent", 200, 15), _policy("Pods", 4, 15)),
        "scaleDown": _direction(120, _policy("Percent", 25, 30), _policy("Pods", 1, 30)),
    },
    ScalingProfile.CONSERVATIVE: {
        "scaleUp": _direction(60, _policy("Pods", 1, 60)),
        "scaleDown": _direction(900, _policy("Pods", 1, 300)),
    },
}
"""What one step of the load may change, and how long a need must have lasted."""


def autoscaler(
    model: Model,
    spec: Spec,
    scaling: Autoscaling,
    via: ScalingVia = ScalingVia.CUSTOM_METRICS,
) -> Manifest:
    """The autoscaler of the Deployment. `via`: what holds where the manifest does not say it."""
    body: Manifest = {
        "scaleTargetRef": {
            "apiVersion": RESOURCES[Kind.DEPLOYMENT].api_version,
            "kind": Kind.DEPLOYMENT.value,
            "name": child_name(Kind.DEPLOYMENT, model.key.name),
        },
        "minReplicas": scaling.min_replicas,
        "maxReplicas": scaling.max_replicas,
        "metrics": [_metric(model, spec, scaling, scaling.via or via)],
    }
    learnt = capacity_of(model.status)
    startup = None if learnt is None else learnt.startup_seconds
    given = {name: _whole(one) for name, one in (scaling.behavior or {}).items()}
    body["behavior"] = behavior(scaling.profile, scaling.metric, startup) | given
    return child(model, Kind.AUTOSCALER, spec=body)


def behavior(
    profile: ScalingProfile, metric: ScalingMetric, startup_seconds: float | None
) -> Manifest:
    """In the form of autoscaling/v2; `startup_seconds` is what was learnt of the model's pods.

    A pod must not be missed before another could serve in its place. So fewer pods must have been
    enough for twice the time that more pods take to come, and then a quarter of them, or one, goes
    each minute. A queue grows while pods start. So by a queue nothing more is ordered before the
    pods of the last order can have shortened it.
    """
    chosen = _PROFILES[profile]
    if startup_seconds is None:
        return chosen
    up, down = chosen["scaleUp"], chosen["scaleDown"]
    calm = min(_LONGEST_WINDOW_SECONDS, _rounded(2 * (startup_seconds + _SEEN_SECONDS)))
    if metric in _BY_QUEUE:
        up = _paced(up, min(_LONGEST_UP_PERIOD_SECONDS, _rounded(startup_seconds)))
    window = max(down["stabilizationWindowSeconds"], calm)
    down = _paced(down, _LEAST_DOWN_PERIOD_SECONDS) | {"stabilizationWindowSeconds": window}
    return {"scaleUp": up, "scaleDown": down}


def _whole(direction: object) -> object:
    """With the default of what a person's edit of the HPA would otherwise change for good."""
    return {"selectPolicy": "Max"} | direction if isinstance(direction, dict) else direction


def _metric(model: Model, spec: Spec, scaling: Autoscaling, via: ScalingVia) -> Manifest:
    _, wanted = effective.scaling_target(spec, scaling)
    if scaling.metric is ScalingMetric.CPU:
        # Of this container: what the sidecar does for a row is no measure of the model.
        used = {"type": "Utilization", "averageUtilization": wanted}
        source = {"name": "cpu", "container": MODEL_CONTAINER, "target": used}
        return {"type": "ContainerResource", "containerResource": source}
    name, average = _METRICS[scaling.metric], str(wanted)
    if scaling.metric is ScalingMetric.LOAD:
        average = "1"  # the metric is the number of replicas itself
    elif scaling.metric is ScalingMetric.QUEUE_TIME:
        average = _seconds(wanted)
    # Of type Value it would be multiplied by the pods that are ready, which may be none.
    target = {"type": "AverageValue", "averageValue": average}
    if via is ScalingVia.EXTERNAL_METRICS:
        # Of the HPA's own namespace, as are all external metrics.
        one = {"matchLabels": {MODEL_METRIC_LABEL: model.key.name}}
        metric = {"name": name, "selector": one}
        return {"type": "External", "external": {"metric": metric, "target": target}}
    described = {
        "apiVersion": RESOURCES[Kind.BATCHED_MODEL].api_version,
        "kind": Kind.BATCHED_MODEL.value,
        "name": model.key.name,
    }
    source = {"describedObject": described, "metric": {"name": name}, "target": target}
    return {"type": "Object", "object": source}


def _seconds(milliseconds: int) -> str:
    """As the API server writes it back: whole where it can be."""
    seconds, rest = divmod(milliseconds, 1000)
    return f"{milliseconds}m" if rest else f"{seconds}"


def _paced(direction: Manifest, period_seconds: int) -> Manifest:
    """The same steps, none of them more often than once in so many seconds."""
    policies: list[dict[str, Any]] = [
        policy | {"periodSeconds": max(policy["periodSeconds"], period_seconds)}
        for policy in direction["policies"]
    ]
    return direction | {"policies": policies}


def _rounded(seconds: float) -> int:
    return math.ceil(seconds / _ROUNDED_TO_SECONDS) * _ROUNDED_TO_SECONDS
