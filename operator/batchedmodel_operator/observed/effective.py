"""What a manifest means: values of fields whose default depends on others, and what it says beyond
the defaults. Pure.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from batchedmodel_kube.manifest import spec as rules
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_kube.manifest.spec import DEFAULT_MODEL_PORT, Spec
from batchedmodel_kube.manifest.workload import Autoscaling, BudgetMode, ScalingMetric
from batchedmodel_operator.rollout import Mode

OfChart = Mapping[str, dict[str, str]]
"""Values in force of fields that the chart says something of, in the nesting of the manifest."""


def replicas(spec: Spec) -> int:
    """Pods at the beginning with an autoscaler, and always without one."""
    if spec.autoscaling is not None:
        return spec.autoscaling.min_replicas
    return 1 if spec.replicas is None else spec.replicas


def pods(spec: Spec) -> int:
    """Pods that the operator asks for where it has the say."""
    return 0 if spec.suspend else replicas(spec)


def rolling_update(spec: Spec, mode: Mode) -> dict[str, int | str]:
    """How many pods may be too many and too few while others take their place."""
    surge, missing = spec.rollout.max_surge, spec.rollout.max_unavailable
    if mode is Mode.IN_PLACE:
        return {"maxSurge": 0, "maxUnavailable": 1 if missing is None else missing}
    if surge is None:
        surge = "25%" if spec.accelerator is None else 1
    return {"maxSurge": surge, "maxUnavailable": 0 if missing is None else missing}


def most_replicas(spec: Spec) -> int:
    """Pods that there may be."""
    return replicas(spec) if spec.autoscaling is None else spec.autoscaling.max_replicas


def needs_disruption_budget(spec: Spec) -> bool:
    """Whether there may be pods enough for some of them to be kept while others go."""
    wanted = spec.disruption.pod_disruption_budget is BudgetMode.AUTO
    return wanted and most_replicas(spec) >= 2


def drain_timeout_seconds(spec: Spec) -> int:
    """How long accepted requests may take once a pod was told to stop."""
    timeout = spec.batching.request_timeout_seconds
    return rules.drain_timeout_seconds(spec.drain.timeout_seconds, request_timeout_seconds=timeout)


def model_port(spec: Spec) -> int:
    """Port of a container of one's own."""
    return DEFAULT_MODEL_PORT if spec.model.port is None else spec.model.port


def scaling_target(spec: Spec, scaling: Autoscaling) -> tuple[str, int]:
    """What the metric is to be, and the field of `autoscaling` that says so."""
    batch = spec.batching.max_batch_size
    match scaling.metric:
        case ScalingMetric.LOAD | ScalingMetric.CPU:
            percent = rules.target_utilization_percent(scaling.target_utilization_percent)
            return "targetUtilizationPercent", percent
        case ScalingMetric.QUEUE_LENGTH:
            rows = rules.target_queue_length(scaling.target_queue_length, max_batch_size=batch)
            return "targetQueueLength", rows
        case ScalingMetric.CONCURRENCY:
            rows = rules.target_concurrency(
                scaling.target_concurrency,
                max_batch_size=batch,
                max_concurrent_batches=spec.batching.max_concurrent_batches,
            )
            return "targetConcurrency", rows
        case ScalingMetric.QUEUE_TIME:
            wait = rules.target_queue_time_milliseconds(
                scaling.target_queue_time_milliseconds,
                target_latency_milliseconds=spec.batching.target_latency_milliseconds,
            )
            return "targetQueueTimeMilliseconds", wait


def effective(spec: Spec, model_image: str, mode: Mode, of_chart: OfChart) -> dict[str, Any]:
    """All of them, under the names and in the nesting of the manifest.

    `model_image`: what the pods run, which an earlier operator may have chosen. `mode`: how they
    are replaced. `of_chart`: those of fields that the chart says something of.
    """
    model: dict[str, Any] = {"image": model_image}
    if spec.model.protocol is not None:
        model["port"] = model_port(spec)
    settings = batch_settings(spec)
    found: dict[str, Any] = {
        "model": model,
        "batching": {
            "maxBatchSize": settings.max_batch_size,
            "maxQueueSize": settings.max_queue_size,
        },
        "drain": {"timeoutSeconds": drain_timeout_seconds(spec)},
        "rollout": rolling_update(spec, mode),
    }
    scaling = spec.autoscaling
    if scaling is None:
        found["replicas"] = replicas(spec)
    else:
        name, target = scaling_target(spec, scaling)
        found["autoscaling"] = {name: target}
    return found | {name: found.get(name, {}) | given for name, given in of_chart.items()}


def beyond_defaults(value: Any) -> Any:
    """The value as JSON, without what is as the contract has it anyway.

    Digests of it outlast an operator and a definition of BatchedModel: a field that is added later
    changes nothing for those who do not use it, nor does a default that is written out.
    """
    if dataclasses.is_dataclass(value):
        return {
            field.name: beyond_defaults(given)
            for field in dataclasses.fields(value)
            if (given := getattr(value, field.name)) != default_of(field)
        }
    if isinstance(value, Mapping):
        return {str(name): beyond_defaults(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [beyond_defaults(inner) for inner in value]
    return value


def default_of(field: "dataclasses.Field[Any]") -> Any:
    """What the field has where nothing is said."""
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()
