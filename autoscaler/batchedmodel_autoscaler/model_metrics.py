"""The metrics that each model has, in Prometheus' text format.

What counters of sidecars say, such as refusals, is not told again here: Prometheus adds it up. A
model's series end with the model, and their number is bounded: nine and its conditions.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from batchedmodel_autoscaler.cluster.objects import Model, ModelKey
from batchedmodel_autoscaler.replicas.formula import ModelObservation, Unseen, required_replicas
from batchedmodel_autoscaler.state.cluster_state import ClusterState
from batchedmodel_contract.processes.sidecar_metrics import PREFIX
from batchedmodel_kube.names import REQUIRED_REPLICAS_METRIC

REQUIRED_REPLICAS: Final = REQUIRED_REPLICAS_METRIC
CONDITION: Final = f"{PREFIX}_model_condition"  # type
REPLICAS: Final = f"{PREFIX}_model_replicas"
READY_REPLICAS: Final = f"{PREFIX}_model_ready_replicas"
SILENT_REPLICAS: Final = f"{PREFIX}_model_silent_replicas"
MAX_REPLICAS: Final = f"{PREFIX}_model_max_replicas"
QUEUE_LENGTH: Final = f"{PREFIX}_model_queue_length"
OUTSTANDING: Final = f"{PREFIX}_model_outstanding"
UTILIZATION: Final = f"{PREFIX}_model_utilization_ratio"
TARGET_UTILIZATION: Final = f"{PREFIX}_model_target_utilization_ratio"

FAMILIES: Final[Mapping[str, str]] = {
    REQUIRED_REPLICAS: "Replicas that the load asks for; absent while the model cannot be seen",
    CONDITION: "1 while a condition of the status is True",
    REPLICAS: "Replicas that the Deployment is to have",
    READY_REPLICAS: "Pods that are ready and stay",
    SILENT_REPLICAS: "Of these, pods whose sidecars do not answer the autoscaler",
    MAX_REPLICAS: "Replicas that the model may have; absent where nothing scales it",
    QUEUE_LENGTH: "Rows that wait in all pods, average of half a minute",
    OUTSTANDING: "Rows that wait or are under way in all pods, average of half a minute",
    UTILIZATION: "Work offered in the last minute, as a share of what the ready pods can do; "
    "absent while that is not known",
    TARGET_UTILIZATION: "The share of their time that the manifest wants used",
}
"""All gauges, and what they say."""


async def exposition(state: ClusterState, clock: Callable[[], float]) -> str:
    """The text. Other work goes on between two models, so one may leave meanwhile."""
    lines: dict[str, list[str]] = {
        name: [f"# HELP {name} {text}\n", f"# TYPE {name} gauge\n"]
        for name, text in FAMILIES.items()
    }
    for model in state.models():
        # An HPA that asks does not wait for a thousand models.
        await asyncio.sleep(0)
        namespace, name = model.key
        for family, more, value in _samples(model, state, clock()):
            labels = f'namespace="{namespace}",model="{name}"{more}'
            lines[family].append(f"{family}{{{labels}}} {value:.10g}\n")
    return "".join(line for family in lines.values() for line in family)


def _samples(model: Model, state: ClusterState, now: float) -> Iterator[tuple[str, str, float]]:
    """Each with the labels that it has besides the model's."""
    for kind, holds in model.conditions:
        yield CONDITION, f',type="{kind}"', holds
    if model.max_replicas is not None:
        yield MAX_REPLICAS, "", model.max_replicas
    yield TARGET_UTILIZATION, "", model.target.utilization
    sight = state.observation(model.key, now)
    expected = [pod for pod in sight.pods if pod.expected]
    yield READY_REPLICAS, "", len(expected)
    yield SILENT_REPLICAS, "", sum(not pod.answers for pod in expected)
    yield QUEUE_LENGTH, "", sum(pod.now.queue_length for pod in sight.pods)
    yield OUTSTANDING, "", sum(pod.now.outstanding for pod in sight.pods)
    if sight.present is not None:
        yield REPLICAS, "", sight.present
    if (share := _utilization(model.key, sight, state)) is not None:
        yield UTILIZATION, "", share
    try:
        yield REQUIRED_REPLICAS, "", required_replicas(sight, model.target).value
    except Unseen:
        return


def _utilization(key: ModelKey, sight: ModelObservation, state: ClusterState) -> float | None:
    if not state.work_is_known(key):
        return None
    ready = sum(pod.expected for pod in sight.pods)
    return (sight.departed_rate + sum(pod.now.work_rate for pod in sight.pods)) / ready
