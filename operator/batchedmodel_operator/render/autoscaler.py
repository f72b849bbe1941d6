"""The stock HorizontalPodAutoscaler, fed by one Object metric of the BatchedModel."""

from batchedmodel_contract.kubernetes_names import QUEUE_LENGTH_METRIC, REQUIRED_REPLICAS_METRIC
from batchedmodel_contract.spec import Autoscaling, ScalingMetric, Spec
from batchedmodel_operator import effective
from batchedmodel_operator.kinds import RESOURCES, Kind, child_name
from batchedmodel_operator.observed import Model
from batchedmodel_operator.render.common import Manifest, child


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
    if scaling.behavior:
        body["behavior"] = scaling.behavior
    return child(model, Kind.AUTOSCALER, spec=body)
