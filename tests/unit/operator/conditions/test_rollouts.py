"""What conditions say of a rollout: of an ordinary one, and of one that does not get on."""

from typing import Any

import pytest

from support.operator_world import SIMULATED, World
from support.rollout_world import (
    BETTER,
    CRASHING,
    CREATING,
    GOOD,
    LACKING,
    PULLING,
    edited,
    model_container,
    serving,
)

QUOTA = 'pods "x" is forbidden: exceeded quota: small, requested: cpu=1, used: cpu=2, limited: 2'


def _reasons(world: World) -> set[str]:
    """Those of which an Event told."""
    return {reason for _, reason, _ in world.events()}


async def test_an_ordinary_rollout_says_of_itself_that_it_rolls() -> None:
    """Each began with `NoReadyReplicas`, while as many pods served as ever."""
    world = await serving(GOOD)
    world.spec(BETTER)
    await world.settle()
    assert world.verdict("Ready") == ("False", "NewRevisionRollingOut")
    assert world.condition("Ready")["message"] == (
        "the pods are not there yet; 2 pods of an earlier revision serve"
    )
    await edited(world, BETTER, **CREATING)
    assert world.verdict("Ready") == ("False", "ModelLoading")
    assert world.verdict("Degraded") == ("False", "AsExpected")
    assert "NoReadyReplicas" not in _reasons(world)


@pytest.mark.parametrize("status", [PULLING, CRASHING], ids=["pull", "crash"])
async def test_a_newest_revision_that_cannot_start_degrades_a_model_that_serves(
    status: dict[str, Any],
) -> None:
    """A bad image is an older revision for ever; no alert told of it while old pods served."""
    spec = {**GOOD, "rollout": {"autoRollback": False}}
    world = await serving(spec)
    await edited(world, {**BETTER, "rollout": {"autoRollback": False}}, **status)
    assert world.verdict("Degraded") == ("True", "OlderRevisionServes")
    said = world.condition("Degraded")["message"]
    assert said.startswith("2 pods of an earlier revision serve; pod 3")
    assert world.verdict("Available") == ("True", "MinimumReplicasAvailable")
    world.remove_pod("3")
    world.start_pod("3")
    await world.settle()
    assert world.verdict("Degraded") == ("False", "AsExpected")


async def test_a_rollout_that_takes_too_long_degrades_a_model_that_serves() -> None:
    world = await serving(GOOD)
    await edited(world, BETTER, **CREATING)
    stuck = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    counts = {"replicas": 3, "readyReplicas": 2, "availableReplicas": 2, "updatedReplicas": 1}
    world.deployment_status(conditions=[stuck], **counts)
    await world.settle()
    assert world.verdict("Degraded") == ("True", "OlderRevisionServes")


async def test_a_new_pod_that_waits_for_room_degrades_nothing_while_all_serve() -> None:
    world = await serving(GOOD)
    await edited(world, BETTER, **LACKING)
    assert world.verdict("CapacityAvailable") == ("False", "InsufficientAccelerator")
    assert world.verdict("Degraded") == ("False", "AsExpected")


@pytest.mark.parametrize(("strategy", "helps"), [("Surge", True), ("InPlace", False)])
async def test_a_quota_without_room_beside_old_pods_says_what_makes_room(
    strategy: str, helps: bool
) -> None:
    rollout = {"rollout": {"strategy": strategy}}
    world = await serving({**GOOD, **rollout})
    world.spec({**BETTER, **rollout})
    await world.settle()
    failure = {"type": "ReplicaFailure", "status": "True", "message": QUOTA}
    counts = {"replicas": 2, "readyReplicas": 2, "availableReplicas": 2}
    world.deployment_status(conditions=[failure], **counts)
    await world.settle()
    for name in ("CapacityAvailable", "Ready"):
        assert world.verdict(name) == ("False", "QuotaExceeded")
        assert ("spec.rollout.strategy: InPlace" in world.condition(name)["message"]) is helps


async def test_a_quota_that_lets_no_first_pod_in_says_nothing_of_rollouts() -> None:
    world = World(SIMULATED)
    await world.settle()
    failure = {"type": "ReplicaFailure", "status": "True", "message": QUOTA}
    world.deployment_status(conditions=[failure])
    await world.settle()
    assert "InPlace" not in world.condition("CapacityAvailable")["message"]


@pytest.mark.parametrize(
    ("code", "reason", "why"),
    [
        (143, "HealthCheckFailing", "the kubelet ends it again and again (SIGTERM): mostly, a"),
        (137, "CrashLooping", "exit code 137 (SIGKILL): a probe fails, or its node is out of"),
    ],
)
async def test_a_model_that_is_ended_by_a_signal_fails_its_health_check_where_that_is_sure(
    code: int, reason: str, why: str
) -> None:
    """A node without memory kills as the kubelet does what outlives its SIGTERM.

    It was called a health check.
    """
    world = await serving(GOOD)
    ended = {"reason": "Error", "exitCode": code, "message": "batch 7 began"}
    killed = model_container(restartCount=2, lastState={"terminated": ended}, state={"running": {}})
    world.remove_pod("2")
    world.start_pod("2", **killed)
    world.deployment_status(replicas=2, readyReplicas=1, availableReplicas=1, updatedReplicas=2)
    await world.settle()
    assert world.verdict("Degraded") == ("True", "PartialReplicas")
    world.remove_pod("1")
    world.deployment_status(replicas=1, updatedReplicas=1)
    await world.settle()
    for name in ("Ready", "ModelLoaded"):
        assert world.verdict(name) == ("False", reason)
    said = world.condition("Ready")["message"]
    assert why in said
    assert said.endswith(": batch 7 began")


async def test_a_model_that_hangs_is_said_to_in_ready() -> None:
    """Until the kubelet kills it, a minute later, it was said to load."""
    world = await serving(GOOD)
    for name in ("1", "2"):
        world.remove_pod(name)
    world.start_pod("3", **model_container(state={"running": {}}))
    world.cluster.objects["Pod", "team", "3"]["status"]["initContainerStatuses"] = [
        {"name": "batcher", "started": True, "ready": True}
    ]
    world.sidecars.startups["10.0.0.3"] = "the model is HUNG: 40 s over a batch"
    await world.settle()
    assert world.verdict("Ready") == ("False", "HealthCheckFailing")
    assert "HUNG: 40 s over a batch" in world.condition("Ready")["message"]
