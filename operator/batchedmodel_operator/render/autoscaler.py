"""The stock HorizontalPodAutoscaler, fed by one Object metric of the BatchedModel."""

from typing import Final

from batchedmodel_contract.kubernetes_names import QUEUE_LENGTH_METRIC, REQUIRED_REPLICAS_METRIC
from batchedmodel_contract.spec import Spec
from batchedmodel_contract.workload import Autoscaling, ScalingMetric, ScalingProfile
from batchedmodel_operator import effective
from batchedmodel_operator.kinds import RESOURCES, Kind, child_name
from batchedmodel_operator.observed import Model
from batchedmodel_operator.render.common import Manifest, child


def _policy(kind: str, value: int, period_seconds: int) -> Manifest:
    return {"type": kind, "value": value, "periodSeconds": period_seconds}


def _direction(window_seconds: int, *policies: Manifest) -> Manifest:
    # Of several policies the one that changes most is taken.
    return {"stabilizationWindowSeconds": window_seconds, "policies": [*policies]}


_BEHAVIORS: Final[dict[ScalingProfile, Manifest]] = {
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


def autoscaler(model: Model, spec: Spec, scaling: Autoscaling) -> Manifest:
    """The autoscaler of the Deployment."""
    described = {
        "apiVersion": RESOURCES[Kind.BATCHED_MODEL].api_version,
        "kind": Kind.BATCHED_MODEL.value,
        "name": model.key.name,
    }
    if scaling.metric is ScalingMetric.LOAD:
        # The metric is the number of replicas itself, hence one unit each.
        name, average = REQUIRED_REPLICAS_METRIC, 1
    else:
        name, average = QUEUE_LENGTH_METRIC, effective.target_queue_length(spec)
    metric = {
        "type": "Object",
        "object": {
            "describedObject": described,
            "metric": {"name": name},
            "target": {"type": "AverageValue", "averageValue": str(average)},
        },
    }
    body: Manifest = {
        "scaleTargetRef": {
            "apiVersion": RESOURCES[Kind.DEPLOYMENT].api_version,
            "kind": Kind.DEPLOYMENT.value,
            "name": child_name(Kind.DEPLOYMENT, model.key.name),
        },
        "minReplicas": scaling.min_replicas,
        "maxReplicas": scaling.max_replicas,
        "metrics": [metric],
    }
    body["behavior"] = _BEHAVIORS[scaling.profile] | (scaling.behavior or {})
    return child(model, Kind.AUTOSCALER, spec=body)
