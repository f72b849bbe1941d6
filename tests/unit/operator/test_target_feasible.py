"""Whether a latency target can be met at all, as far as anybody has measured."""

from typing import Any

import pytest

from batchedmodel_operator.kinds import Kind
from support.operator_world import KEY, SIMULATED, World

HURRIED: dict[str, Any] = {**SIMULATED, "batching": {"targetLatencyMilliseconds": 20}}
OWN: dict[str, Any] = {**HURRIED, "model": {"protocol": "V2", "image": "registry.example/own:1"}}


async def _learnt(
    spec: dict[str, Any], milliseconds: float | None, *, of_another: bool = False
) -> World:
    """What an autoscaler has written, and the look that follows."""
    world = World(spec)
    await world.settle()
    labels = world.child(Kind.DEPLOYMENT)["spec"]["template"]["metadata"]["labels"]
    capacity: dict[str, Any] = {"revision": labels["batchedmodel.dev/revision"]}
    if of_another:
        capacity["revision"] = "another"
    if milliseconds is not None:
        capacity["shortestLatencyMilliseconds"] = milliseconds
    body = world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]
    body["status"]["capacity"] = capacity
    await world.look()
    return world


@pytest.mark.parametrize(
    ("spec", "milliseconds", "status", "reason"),
    [
        (SIMULATED, 31.5, "True", "NoTarget"),
        (HURRIED, None, "Unknown", "NotMeasured"),
        (HURRIED, 19.9, "True", "WithinReach"),
        (HURRIED, 31.5, "False", "OutOfReach"),
        (OWN, None, "Unknown", "NotMeasured"),
    ],
)
async def test_a_target_is_judged_by_one_row_alone(
    spec: dict[str, Any], milliseconds: float | None, status: str, reason: str
) -> None:
    world = await _learnt(spec, milliseconds)
    assert world.verdict("TargetFeasible") == (status, reason)


async def test_the_sentence_names_both_numbers() -> None:
    world = await _learnt(HURRIED, 31.5)
    assert world.condition("TargetFeasible")["message"] == (
        "a row alone takes 31.5 ms on an idle pod, longer than targetLatencyMilliseconds (20): "
        "rows will be late whatever the number of pods"
    )


async def test_what_was_learnt_of_another_revision_says_nothing() -> None:
    world = await _learnt(HURRIED, 31.5, of_another=True)
    assert world.verdict("TargetFeasible") == ("Unknown", "NotMeasured")


async def test_it_becomes_known_when_the_autoscaler_writes_and_is_announced_when_it_is_bad() -> (
    None
):
    world = await _learnt(HURRIED, 31.5)
    (event,) = [one for one in world.events() if one[2].startswith("TargetFeasible")]
    assert event[:2] == ("Warning", "OutOfReach")
    world.spec({**HURRIED, "batching": {"targetLatencyMilliseconds": 200}})
    await world.look()
    assert world.verdict("TargetFeasible")[0] == "True"
