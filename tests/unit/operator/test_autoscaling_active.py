"""What the HPA says of itself, in the words of a BatchedModel's condition."""

from typing import Any

import pytest

from batchedmodel_autoscaler.replicas.formula import (
    ModelObservation,
    Target,
    Unseen,
    required_replicas,
)
from batchedmodel_kube.names import BLIND
from batchedmodel_operator.kinds import Kind
from support.operator_world import SIMULATED, World

SCALED: dict[str, Any] = {**SIMULATED, "autoscaling": {"minReplicas": 2, "maxReplicas": 5}}
ABLE = {"type": "AbleToScale", "status": "True", "reason": "ReadyForNewScale"}
VALID = {"type": "ScalingActive", "status": "True", "reason": "ValidMetricFound"}
_UNSERVED = (
    "the HPA was unable to compute the replica count: unable to get metric "
    "batchedmodel_required_replicas: BatchedModel on team minilm/unable to fetch metrics from "
    "custom metrics API: the server is currently unable to handle the request"
)
UNSERVED = {
    "type": "ScalingActive",
    "status": "False",
    "reason": "FailedGetObjectMetric",
    "message": _UNSERVED,
}
BLINDED = {
    **UNSERVED,
    "message": _UNSERVED.replace(
        "the server is currently unable to handle the request",
        "the model cannot be seen: none of its 3 ready pods answers",
    ),
}
_EXTERNAL = (
    "the HPA was unable to compute the replica count: unable to get external metric "
    "team/batchedmodel_required_replicas/&LabelSelector{MatchLabels:map[string]string{model: "
    "minilm,},MatchExpressions:[]LabelSelectorRequirement{},}: unable to fetch metrics from "
    "external metrics API: "
)
EXTERNAL = {**UNSERVED, "reason": "FailedGetExternalMetric"}
EXTERNAL_UNREGISTERED = {
    **EXTERNAL,
    "message": f"{_EXTERNAL}the server could not find the requested resource (get "
    "batchedmodel_required_replicas.external.metrics.k8s.io)",
}
EXTERNAL_BLINDED = {
    **EXTERNAL,
    "message": f"{_EXTERNAL}the model cannot be seen: none of its 3 ready pods answers",
}
NONE_READY = {**BLINDED, "message": BLINDED["message"].replace("its 3", "its 0")}
UNTOLD = {
    **UNSERVED,
    "reason": "FailedGetResourceMetric",
    "message": "unable to get metrics for resource cpu: no metrics returned from resource metrics "
    "API",
}
UNTOLD_YET = {**UNTOLD, "message": "did not receive metrics for targeted pods"}
UNREAD = {**UNSERVED, "message": "something else"}
UNABLE = {
    "type": "AbleToScale",
    "status": "False",
    "reason": "FailedGetScale",
    "message": "the HPA controller was unable to get the target's current scale",
}
CROWDED = {
    **UNSERVED,
    "reason": "AmbiguousSelector",
    "message": "pods by selector batchedmodel.dev/name=minilm are controlled by multiple HPAs: "
    "[team/other team/minilm]",
}
LIMITED = {"type": "ScalingLimited", "status": "True", "reason": "TooManyReplicas"}
LEAST = {**LIMITED, "reason": "TooFewReplicas"}


async def _with(
    conditions: list[dict[str, Any]], spec: dict[str, Any] | None = None, *, ready: bool = True
) -> World:
    """A world with one pod."""
    world = World(SCALED if spec is None else spec)
    await world.settle()
    world.start_pod("1", **({} if ready else {"conditions": []}))
    await world.settle()
    if world.has(Kind.AUTOSCALER):
        world.edit(Kind.AUTOSCALER, {"status": {"conditions": conditions}})
    await world.look()
    return world


@pytest.mark.parametrize(
    ("conditions", "status", "reason"),
    [
        ([], "Unknown", "NotLookedYet"),
        ([ABLE, VALID], "True", "MetricValid"),
        ([ABLE, VALID, LIMITED], "True", "AtMaximum"),
        ([ABLE, VALID, LEAST], "True", "MetricValid"),
        ([ABLE, UNSERVED], "False", "MetricsAPIMissing"),
        ([ABLE, BLINDED], "False", "MetricsStale"),
        ([ABLE, EXTERNAL_UNREGISTERED], "False", "MetricsAPIMissing"),
        ([ABLE, EXTERNAL_BLINDED], "False", "MetricsStale"),
        ([ABLE, UNREAD], "False", "HPAFailing"),
        ([ABLE, CROWDED], "False", "SeveralAutoscalers"),
        ([UNABLE, VALID], "False", "HPAFailing"),
    ],
)
async def test_what_the_autoscaler_says_is_passed_on(
    conditions: list[dict[str, Any]], status: str, reason: str
) -> None:
    world = await _with(conditions)
    assert world.verdict("AutoscalingActive") == (status, reason)


@pytest.mark.parametrize("said", [NONE_READY, BLINDED, UNTOLD, UNTOLD_YET])
async def test_that_no_pod_tells_while_none_is_ready_is_no_warning(said: dict[str, Any]) -> None:
    world = await _with([ABLE], ready=False)
    assert world.verdict("AutoscalingActive") == ("Unknown", "NotLookedYet")
    world.edit(Kind.AUTOSCALER, {"status": {"conditions": [ABLE, said]}})
    await world.look()
    assert world.verdict("AutoscalingActive") == ("Unknown", "NoReadyReplicas")
    assert [event for event in world.events() if event[0] == "Warning"] == []


async def test_pods_that_became_ready_since_the_hpa_asked_are_no_warning_either() -> None:
    world = await _with([ABLE, NONE_READY])
    assert world.verdict("AutoscalingActive") == ("Unknown", "NoReadyReplicas")
    assert [event for event in world.events() if event[0] == "Warning"] == []
    world.edit(Kind.AUTOSCALER, {"status": {"conditions": [ABLE, VALID]}})
    await world.look()
    assert world.verdict("AutoscalingActive") == ("True", "MetricValid")


def test_what_the_autoscaler_says_where_no_pod_is_ready_is_known_to_the_operator() -> None:
    nobody = ModelObservation(
        present=2, pods=(), departed_rate=0.0, departed_panic_rate=0.0, reaction_seconds=1.0
    )
    target = Target(utilization=0.8, queue_length=1, outstanding=1, queue_wait_seconds=1.0)
    with pytest.raises(Unseen) as caught:
        required_replicas(nobody, target)
    assert f"{BLIND}: {caught.value}" in NONE_READY["message"]


@pytest.mark.parametrize("said", [UNSERVED, UNREAD], ids=["no API", "something else"])
async def test_what_does_not_come_of_the_pods_is_told_while_they_start(
    said: dict[str, Any],
) -> None:
    world = await _with([ABLE, said], ready=False)
    assert world.verdict("AutoscalingActive")[0] == "False"


async def test_what_is_wrong_is_said_in_the_autoscalers_words_and_announced_once() -> None:
    world = await _with([ABLE, UNSERVED])
    assert world.condition("AutoscalingActive")["message"] == f"FailedGetObjectMetric: {_UNSERVED}"
    await world.look()
    told = [event[:2] for event in world.events() if event[2].startswith("AutoscalingActive")]
    assert told == [("Warning", "MetricsAPIMissing")]


async def test_without_an_autoscaler_nothing_is_missing() -> None:
    world = await _with([], SIMULATED)
    assert world.verdict("AutoscalingActive") == ("True", "ScalingDisabled")


async def test_of_a_model_at_rest_nobody_knows() -> None:
    world = await _with([ABLE, VALID], {**SCALED, "suspend": True})
    assert world.verdict("AutoscalingActive") == ("Unknown", "Suspended")
