"""The last good revision comes back where a new one fails, at an API server in memory."""

from typing import Any

import pytest

from batchedmodel_kube.errors import Conflict
from batchedmodel_operator.kinds import Kind
from support.operator_world import IMAGES, KEY
from support.rollout_world import (
    ANOTHER,
    BETTER,
    CRASHING,
    CREATING,
    FETCHING,
    FILLING,
    FILLING_ONCE,
    GOOD,
    LACKING,
    OUT_OF_MEMORY,
    PULLING,
    SCALED,
    SHIPPING_LOGS,
    UNLUCKY_ONCE,
    count,
    edited,
    model_container,
    rollout,
    serving,
    template,
)


@pytest.mark.parametrize("scaling", [{}, SCALED], ids=["fixed", "scaled"])
@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        (CRASHING, "CrashLooping", "no such weights"),
        (OUT_OF_MEMORY, "OOMKilled", "more memory"),
        (FILLING, "CrashLooping", "container fill: ends again and again"),
        (SHIPPING_LOGS, "CrashLooping", "container ship-logs: ends again and again"),
    ],
    ids=["crash loop", "memory", "init container", "beside the model"],
)
async def test_the_last_good_revision_comes_back_when_containers_of_a_new_one_fail(
    status: dict[str, Any], reason: str, words: str, scaling: dict[str, Any]
) -> None:
    def spec(of: dict[str, Any]) -> dict[str, Any]:
        rest = {name: value for name, value in of.items() if name != "replicas" or not scaling}
        return rest | scaling

    world = await serving(spec(GOOD))
    good = template(world)
    await edited(world, spec(BETTER), **status)
    assert template(world) == good
    assert world.child(Kind.DEPLOYMENT)["spec"]["replicas"] == 2
    assert world.verdict("Progressing") == ("True", "RollingBack")
    world.remove_pod("3")
    world.all_ready()
    await world.settle()
    assert world.verdict("Progressing") == ("False", "RolledBack")
    assert world.verdict("Degraded") == ("True", "RolledBack")
    assert world.verdict("Ready") == ("False", "RolloutFailed")
    assert world.verdict("Available") == ("True", "MinimumReplicasAvailable")
    for condition in ("Ready", "Degraded"):
        assert reason in world.condition(condition)["message"]
        assert words in world.condition(condition)["message"]
    assert world.condition("Ready")["message"].endswith("2 pods of an earlier revision serve")
    assert (count(world, "RolledBack"), count(world, "RolloutFailed")) == (1, 1)

    # Neither time, nor another operator, nor an edit that is not about pods tries it again.
    before = world.cluster.writes
    world.restart(IMAGES)
    for _ in range(3):
        world.now += 600
        await world.look()
    assert world.cluster.writes == before
    world.spec({**spec(BETTER), "batching": {"maxBatchSize": 8}})
    await world.settle()
    assert template(world) == good
    assert world.verdict("Degraded") == ("True", "RolledBack")

    world.spec(spec(ANOTHER))
    await world.settle()
    assert template(world) != good
    assert world.verdict("Degraded") == ("False", "AsExpected")
    assert "failedRevision" not in rollout(world)


async def test_an_edit_that_is_taken_back_ends_the_matter() -> None:
    world = await serving(GOOD)
    await edited(world, BETTER, **CRASHING)
    world.remove_pod("3")
    world.all_ready()
    world.spec(GOOD)
    await world.settle()
    assert world.verdict("Ready") == ("True", "Serving")
    assert world.verdict("Degraded") == ("False", "AsExpected")
    world.spec(BETTER)
    await world.settle()
    assert world.verdict("Progressing") == ("True", "NewRevisionRollingOut"), "it is tried again"


async def test_a_model_that_cannot_be_loaded_brings_the_last_good_revision_back() -> None:
    world = await serving(GOOD)
    good = template(world)
    world.sidecars.startups["10.0.0.3"] = "the model is FAILED: no file: model.bin"
    await edited(world, BETTER, **model_container(state={"running": {}}))
    assert template(world) == good
    assert "ModelFailed: pod 3: no file: model.bin" in world.condition("Degraded")["message"]


@pytest.mark.parametrize(
    "status",
    [LACKING, PULLING, CREATING, FETCHING, UNLUCKY_ONCE, FILLING_ONCE],
    ids=["no node", "image", "being made", "files", "one crash", "an init container once"],
)
async def test_a_pod_that_only_waits_takes_nothing_back(status: dict[str, Any]) -> None:
    world = await serving(GOOD)
    good = template(world)
    await edited(world, BETTER, **status)
    world.now += 10_000
    await world.settle()
    stuck = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    world.deployment_status(
        replicas=3, readyReplicas=2, availableReplicas=2, updatedReplicas=1, conditions=[stuck]
    )
    await world.settle()
    assert template(world) != good
    assert "failedRevision" not in rollout(world)
    assert world.verdict("Progressing") == ("False", "ProgressDeadlineExceeded")


async def test_whoever_does_not_want_it_keeps_the_revision_that_fails() -> None:
    world = await serving({**GOOD, "rollout": {"autoRollback": False}})
    good = template(world)
    await edited(world, {**BETTER, "rollout": {"autoRollback": False}}, **CRASHING)
    assert template(world) != good
    assert world.verdict("Ready") == ("False", "CrashLooping")


async def test_what_failed_is_written_down_before_it_is_acted_on() -> None:
    world = await serving(GOOD)
    await world.learn(rowsPerSecond=410)
    world.spec(BETTER)
    await world.settle()
    world.start_pod("3", **CRASHING)
    # The look ends here, and nothing more is told of it.
    world.cluster.failures[Kind.DEPLOYMENT] = Conflict("another one wrote")
    with pytest.raises(Conflict):
        await world.look()
    assert rollout(world)["failedRevision"] == rollout(world)["targetRevision"]
    assert await world.learn(startupSeconds=9) == {"startupSeconds": 9}, "it stays another's field"
    world.cluster.failures.clear()
    world.restart()
    world.remove_pod("3")
    await world.settle()
    assert world.verdict("Degraded") == ("True", "RolledBack"), "although its pods are gone"


@pytest.mark.slow
async def test_the_last_good_template_is_kept_through_all_edits() -> None:
    world = await serving(GOOD)
    good = template(world)
    for level in range(7, 15):
        world.spec({**GOOD, "model": {"handler": "simulated", "env": {"LEVEL": str(level)}}})
        await world.settle()
    assert len(world.revisions()) == 5
    world.start_pod("3", **CRASHING)
    await world.settle()
    assert template(world) == good


async def test_whoever_deletes_what_was_kept_has_the_revision_tried_again() -> None:
    world = await serving(GOOD)
    good = template(world)
    await edited(world, BETTER, **CRASHING)
    world.remove_pod("3")
    for name in world.revisions():
        world.cluster.remove(Kind.CONTROLLER_REVISION, KEY.namespace, name)
    await world.settle()
    assert template(world) != good
    assert "failedRevision" not in rollout(world)


async def test_a_suspended_model_whose_revision_failed_wakes_with_the_good_one() -> None:
    world = await serving(GOOD)
    good = template(world)
    await edited(world, BETTER, **CRASHING)
    world.spec({**BETTER, "suspend": True})
    for name in ("1", "2", "3"):
        world.remove_pod(name)
    world.deployment_status()
    await world.settle()
    assert world.verdict("Ready") == ("False", "Suspended")
    world.spec(BETTER)
    await world.settle()
    assert template(world) == good
