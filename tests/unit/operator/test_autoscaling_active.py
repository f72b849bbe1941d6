"""What the HPA says of itself, in the words of a BatchedModel's condition."""

from typing import Any

import pytest

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
UNREAD = {**UNSERVED, "message": "something else"}
UNABLE = {
    "type": "AbleToScale",
    "status": "False",
    "reason": "FailedGetScale",
    "message": "the HPA controller was unable to get the target's current scale",
}
LIMITED = {"type": "ScalingLimited", "status": "True", "reason": "TooManyReplicas"}
LEAST = {**LIMITED, "reason": "TooFewReplicas"}


async def _with(conditions: list[dict[str, Any]], spec: dict[str, Any] | None = None) -> World:
    world = World(SCALED if spec is None else spec)
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
        ([ABLE, UNREAD], "False", "HPAFailing"),
        ([UNABLE, VALID], "False", "HPAFailing"),
    ],
)
async def test_what_the_autoscaler_says_is_passed_on(
    conditions: list[dict[str, Any]], status: str, reason: str
) -> None:
    world = await _with(conditions)
    assert world.verdict("AutoscalingActive") == (status, reason)


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
