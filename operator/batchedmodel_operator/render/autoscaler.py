"""The stock HorizontalPodAutoscaler, fed by one metric.

That is an Object metric of the BatchedModel, which the autoscaler serves, or the cpu of the model's
container, which the cluster's own metrics server does.
"""

from batchedmodel_contract.kubernetes.capacity import capacity_of
from batchedmodel_contract.kubernetes.names import (
    MODEL_CONTAINER,
    OUTSTANDING_METRIC,
    QUEUE_LENGTH_METRIC,
    QUEUE_WAIT_METRIC,
    REQUIRED_REPLICAS_METRIC,
)
from batchedmodel_contract.manifest.spec import Spec
from batchedmodel_contract.manifest.workload import Autoscaling, ScalingMetric
from batchedmodel_operator.kinds import RESOURCES, Kind, child_name
from batchedmodel_operator.reconcile import effective
from batchedmodel_operator.reconcile.state import Model
from batchedmodel_operator.render.behavior import behavior
from batchedmodel_operator.render.common import Manifest, child


def autoscaler(model: Model, spec: Spec, scaling: Autoscaling) -> Manifest:
    """The autoscaler of the Deployment."""
    body: Manifest = {
        "scaleTargetRef": {
            "apiVersion": RESOURCES[Kind.DEPLOYMENT].api_version,
            "kind": Kind.DEPLOYMENT.value,
            "name": child_name(Kind.DEPLOYMENT, model.key.name),
        },
        "minReplicas": scaling.min_replicas,
        "maxReplicas": scaling.max_replicas,
        "metrics": [_metric(model, spec, scaling)],
    }
    learnt = capacity_of(model.status)
    startup = None if learnt is None else learnt.startup_seconds
    given = {name: _whole(one) for name, one in (scaling.behavior or {}).items()}
    body["behavior"] = behavior(scaling.profile, scaling.metric, startup) | given
    return child(model, Kind.AUTOSCALER, spec=body)


def _whole(direction: object) -> object:
    """With the default of what a person's edit of the HPA would otherwise change for good."""
    return {"selectPolicy": "Max"} | direction if isinstance(direction, dict) else direction


def _metric(model: Model, spec: Spec, scaling: Autoscaling) -> Manifest:
    _, target = effective.scaling_target(spec, scaling)
    match scaling.metric:
        case ScalingMetric.LOAD:
            # The metric is the number of replicas itself, hence one unit each.
            return _of_the_model(model, REQUIRED_REPLICAS_METRIC, "1")
        case ScalingMetric.QUEUE_LENGTH:
            return _of_the_model(model, QUEUE_LENGTH_METRIC, f"{target}")
        case ScalingMetric.OUTSTANDING:
            return _of_the_model(model, OUTSTANDING_METRIC, f"{target}")
        case ScalingMetric.QUEUE_WAIT:
            return _of_the_model(model, QUEUE_WAIT_METRIC, _seconds(target))
        case ScalingMetric.CPU:
            # Of this container: what the sidecar does for a row is no measure of the model.
            used = {"type": "Utilization", "averageUtilization": target}
            source = {"name": "cpu", "container": MODEL_CONTAINER, "target": used}
            return {"type": "ContainerResource", "containerResource": source}


def _of_the_model(model: Model, name: str, average: str) -> Manifest:
    described = {
        "apiVersion": RESOURCES[Kind.BATCHED_MODEL].api_version,
        "kind": Kind.BATCHED_MODEL.value,
        "name": model.key.name,
    }
    # Of type Value it would be multiplied by the pods that are ready, which may be none.
    target = {"type": "AverageValue", "averageValue": average}
    source = {"describedObject": described, "metric": {"name": name}, "target": target}
    return {"type": "Object", "object": source}


def _seconds(milliseconds: int) -> str:
    """As the API server writes it back: whole where it can be."""
    seconds, rest = divmod(milliseconds, 1000)
    return f"{milliseconds}m" if rest else f"{seconds}"
