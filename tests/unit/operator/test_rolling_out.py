"""A rollout from its edit to its end, at an API server in memory."""

import copy
from datetime import timedelta
from typing import Any

import pytest

from batchedmodel_contract.kubernetes.names import REVISION_LABEL
from batchedmodel_kube.errors import Conflict
from batchedmodel_operator.kinds import Kind
from support.operator_world import IMAGES, KEY, SIMULATED, World

GOOD: dict[str, Any] = {**SIMULATED, "replicas": 2, "accelerator": {}}
BETTER: dict[str, Any] = {
    **GOOD,
    "model": {"handler": "simulated", "env": {"LEVEL": "2"}},
    "pod": {
        "initContainers": [
            {"name": "fill", "image": "registry.example/fill:1"},
            {"name": "ship-logs", "image": "registry.example/ship:1", "restartPolicy": "Always"},
        ]
    },
}
ANOTHER: dict[str, Any] = {**GOOD, "model": {"handler": "simulated", "env": {"LEVEL": "3"}}}
SCALED: dict[str, Any] = {"autoscaling": {"minReplicas": 2, "maxReplicas": 5}}
IN_PLACE = {"maxSurge": 0, "maxUnavailable": 1}
SURGE = {"maxSurge": 1, "maxUnavailable": 0}

LACKING: dict[str, Any] = {
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        }
    ],
    "initContainerStatuses": [],
    "containerStatuses": [],
}


def _model_container(**state: Any) -> dict[str, Any]:
    container = {"name": "model", "ready": False, **state}
    return {"conditions": [], "containerStatuses": [container]}


CRASHING = _model_container(
    restartCount=3,
    state={"waiting": {"reason": "CrashLoopBackOff"}},
    lastState={"terminated": {"reason": "Error", "exitCode": 3, "message": "no such weights"}},
)
OUT_OF_MEMORY = _model_container(
    restartCount=1,
    state={"running": {}},
    lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}},
)
PULLING = _model_container(state={"waiting": {"reason": "ImagePullBackOff"}})
CREATING = _model_container(state={"waiting": {"reason": "ContainerCreating"}})
UNLUCKY_ONCE = _model_container(
    restartCount=1,
    state={"running": {}},
    lastState={"terminated": {"reason": "Error", "exitCode": 1}},
)
FETCHING = {
    "conditions": [],
    "initContainerStatuses": [
        {
            "name": "fetch-model",
            "ready": False,
            "restartCount": 5,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"reason": "Error", "exitCode": 1, "message": "503"}},
        }
    ],
}


def _own(name: str, *, restarts: int, **state: Any) -> dict[str, Any]:
    """An init container of the manifest that fails."""
    ended = {"reason": "Error", "exitCode": 1, "message": "no bucket"}
    state = state or {"waiting": {"reason": "CrashLoopBackOff"}}
    container = {"name": name, "ready": False, "restartCount": restarts, "state": state}
    return {
        "conditions": [],
        "initContainerStatuses": [container | {"lastState": {"terminated": ended}}],
        "containerStatuses": [],
    }


FILLING_ONCE = _own("fill", restarts=1, running={})
FILLING = _own("fill", restarts=9)
SHIPPING_LOGS = _own("ship-logs", restarts=9)


async def _serving(spec: dict[str, Any]) -> World:
    """Two good pods, 1 and 2."""
    world = World(spec)
    await world.settle()
    for name in ("1", "2"):
        world.start_pod(name)
    world.all_ready()
    await world.settle()
    assert world.verdict("Ready") == ("True", "Serving")
    return world


async def _edited(world: World, spec: dict[str, Any], **status: Any) -> None:
    """The first pod of another revision is there."""
    world.spec(spec)
    await world.settle()
    world.start_pod("3", **status)
    world.deployment_status(replicas=3, readyReplicas=2, availableReplicas=2, updatedReplicas=1)
    await world.settle()


def _template(world: World) -> Any:
    # The world goes on writing into its own.
    return copy.deepcopy(world.child(Kind.DEPLOYMENT)["spec"]["template"])


def _revision(world: World) -> Any:
    return _template(world)["metadata"]["labels"][REVISION_LABEL]


def _budget(world: World) -> Any:
    return world.child(Kind.DEPLOYMENT)["spec"]["strategy"]["rollingUpdate"]


def _rollout(world: World) -> dict[str, str]:
    status = world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]["status"]
    found: dict[str, str] = status["rollout"]
    return found


def _count(world: World, reason: str) -> int:
    return sum(one == reason for _, one, _ in world.events())


async def test_a_surge_that_finds_no_accelerator_becomes_a_rollout_in_place() -> None:
    world = await _serving(GOOD)
    assert _budget(world) == SURGE
    await _edited(world, BETTER, **LACKING)
    assert world.verdict("Progressing") == ("True", "NewRevisionRollingOut")
    assert world.come_back_after is not None
    assert world.come_back_after <= 60
    world.now += 59
    await world.look()
    assert _budget(world) == SURGE
    world.now += 1
    await world.settle()
    assert _budget(world) == IN_PLACE
    assert world.verdict("Progressing") == ("True", "SwitchedToInPlace")
    assert "had lacked an accelerator for 60 s" in world.condition("Progressing")["message"]
    assert world.verdict("CapacityAvailable") == ("False", "InsufficientAccelerator")
    assert _count(world, "SwitchedToInPlace") == 1
    assert (_rollout(world)["strategy"], _rollout(world)["strategyLatched"]) == ("InPlace",) * 2

    # The room was made, a pod has moved in, and another operator has taken over.
    world.remove_pod("1")
    world.remove_pod("3")
    world.start_pod("3")
    world.restart()
    world.now += 600
    await world.settle()
    assert _budget(world) == IN_PLACE
    world.remove_pod("2")
    world.start_pod("4")
    world.all_ready()
    await world.settle()
    assert world.verdict("Progressing") == ("False", "Complete")
    assert _count(world, "SwitchedToInPlace") == 1

    world.spec(ANOTHER)
    await world.settle()
    assert _budget(world) == SURGE, "another edit tries again"
    assert "strategyLatched" not in _rollout(world)


async def test_another_operator_goes_on_counting_how_long_a_pod_has_waited() -> None:
    world = await _serving(GOOD)
    await _edited(world, BETTER, **LACKING)
    world.now += 59
    world.restart()
    await world.look()
    assert _budget(world) == SURGE
    assert world.come_back_after is not None
    assert world.come_back_after <= 1
    world.now += 1
    await world.look()
    assert _budget(world) == IN_PLACE


async def test_a_pod_waits_since_no_node_was_found_for_it() -> None:
    world = await _serving(GOOD)
    [scheduled] = LACKING["conditions"]
    earlier = {**scheduled, "lastTransitionTime": world.calendar(ago=50).isoformat()}
    await _edited(world, BETTER, **{**LACKING, "conditions": [earlier]})
    assert _budget(world) == SURGE
    world.now += 10
    await world.look()
    assert _budget(world) == IN_PLACE


@pytest.mark.parametrize("written", ["0000-01-01T00:00:00Z", "soon", ""])
async def test_a_time_that_no_calendar_has_holds_up_no_reconcile(written: str) -> None:
    world = await _serving(GOOD)
    [scheduled] = LACKING["conditions"]
    odd = {**scheduled, "lastTransitionTime": written}
    await _edited(world, BETTER, **{**LACKING, "conditions": [odd]})
    assert world.verdict("Reconciled") == ("True", "Applied")


@pytest.mark.parametrize("jump", [timedelta(hours=-1), timedelta(days=-400)])
async def test_a_clock_that_is_set_back_holds_up_no_rollout(jump: timedelta) -> None:
    world = await _serving(GOOD)
    [scheduled] = LACKING["conditions"]
    since = {**scheduled, "lastTransitionTime": world.calendar().isoformat()}
    await _edited(world, BETTER, **{**LACKING, "conditions": [since]})
    world.calendar_jump = jump
    world.now += 59
    await world.look()
    assert _budget(world) == SURGE
    assert world.come_back_after is not None
    assert world.come_back_after <= 1
    world.now += 1
    await world.look()
    assert _budget(world) == IN_PLACE


async def test_an_explicit_surge_waits_for_as_long_as_it_takes() -> None:
    world = await _serving({**GOOD, "rollout": {"strategy": "Surge"}})
    await _edited(world, {**BETTER, "rollout": {"strategy": "Surge"}}, **LACKING)
    world.now += 10_000
    await world.settle()
    assert _budget(world) == SURGE
    assert world.verdict("Progressing") == ("True", "NewRevisionRollingOut")


async def test_an_edit_in_the_middle_changes_the_target_and_not_the_budget() -> None:
    world = await _serving(GOOD)
    await _edited(world, BETTER, conditions=[])
    before = _revision(world)
    world.spec({**ANOTHER, "replicas": 1})
    await world.settle()
    assert _revision(world) != before
    assert _budget(world) == SURGE, "although one replica alone would go in place"


async def test_a_shortage_that_is_known_goes_in_place_at_once() -> None:
    world = await _serving({**GOOD, "replicas": 3})
    world.start_pod("3", **LACKING)
    await world.settle()
    world.spec({**BETTER, "replicas": 3})
    await world.settle()
    assert _budget(world) == IN_PLACE
    assert _rollout(world)["strategyReason"] == "AcceleratorScarce"


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

    world = await _serving(spec(GOOD))
    good = _template(world)
    await _edited(world, spec(BETTER), **status)
    assert _template(world) == good
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
    assert (_count(world, "RolledBack"), _count(world, "RolloutFailed")) == (1, 1)

    # Neither time, nor another operator, nor an edit that is not about pods tries it again.
    before = world.cluster.writes
    world.restart(IMAGES)
    for _ in range(3):
        world.now += 600
        await world.look()
    assert world.cluster.writes == before
    world.spec({**spec(BETTER), "batching": {"maxBatchSize": 8}})
    await world.settle()
    assert _template(world) == good
    assert world.verdict("Degraded") == ("True", "RolledBack")

    world.spec(spec(ANOTHER))
    await world.settle()
    assert _template(world) != good
    assert world.verdict("Degraded") == ("False", "AsExpected")
    assert "failedRevision" not in _rollout(world)


async def test_an_edit_that_is_taken_back_ends_the_matter() -> None:
    world = await _serving(GOOD)
    await _edited(world, BETTER, **CRASHING)
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
    world = await _serving(GOOD)
    good = _template(world)
    world.sidecars.startups["10.0.0.3"] = "the model is FAILED: no file: model.bin"
    await _edited(world, BETTER, **_model_container(state={"running": {}}))
    assert _template(world) == good
    assert "ModelFailed: pod 3: no file: model.bin" in world.condition("Degraded")["message"]


@pytest.mark.parametrize(
    "status",
    [LACKING, PULLING, CREATING, FETCHING, UNLUCKY_ONCE, FILLING_ONCE],
    ids=["no node", "image", "being made", "files", "one crash", "an init container once"],
)
async def test_a_pod_that_only_waits_takes_nothing_back(status: dict[str, Any]) -> None:
    world = await _serving(GOOD)
    good = _template(world)
    await _edited(world, BETTER, **status)
    world.now += 10_000
    await world.settle()
    stuck = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    world.deployment_status(
        replicas=3, readyReplicas=2, availableReplicas=2, updatedReplicas=1, conditions=[stuck]
    )
    await world.settle()
    assert _template(world) != good
    assert "failedRevision" not in _rollout(world)
    assert world.verdict("Progressing") == ("False", "ProgressDeadlineExceeded")


async def test_whoever_does_not_want_it_keeps_the_revision_that_fails() -> None:
    world = await _serving({**GOOD, "rollout": {"autoRollback": False}})
    good = _template(world)
    await _edited(world, {**BETTER, "rollout": {"autoRollback": False}}, **CRASHING)
    assert _template(world) != good
    assert world.verdict("Ready") == ("False", "CrashLooping")


async def test_what_failed_is_written_down_before_it_is_acted_on() -> None:
    world = await _serving(GOOD)
    await world.learn(rowsPerSecond=410)
    world.spec(BETTER)
    await world.settle()
    world.start_pod("3", **CRASHING)
    # The look ends here, and nothing more is told of it.
    world.cluster.failures[Kind.DEPLOYMENT] = Conflict("another one wrote")
    with pytest.raises(Conflict):
        await world.look()
    assert _rollout(world)["failedRevision"] == _rollout(world)["targetRevision"]
    assert await world.learn(startupSeconds=9) == {"startupSeconds": 9}, "it stays another's field"
    world.cluster.failures.clear()
    world.restart()
    world.remove_pod("3")
    await world.settle()
    assert world.verdict("Degraded") == ("True", "RolledBack"), "although its pods are gone"


@pytest.mark.slow
async def test_the_last_good_template_is_kept_through_all_edits() -> None:
    world = await _serving(GOOD)
    good = _template(world)
    for level in range(7, 15):
        world.spec({**GOOD, "model": {"handler": "simulated", "env": {"LEVEL": str(level)}}})
        await world.settle()
    assert len(world.revisions()) == 5
    world.start_pod("3", **CRASHING)
    await world.settle()
    assert _template(world) == good


async def test_whoever_deletes_what_was_kept_has_the_revision_tried_again() -> None:
    world = await _serving(GOOD)
    good = _template(world)
    await _edited(world, BETTER, **CRASHING)
    world.remove_pod("3")
    for name in world.revisions():
        world.cluster.remove(Kind.CONTROLLER_REVISION, KEY.namespace, name)
    await world.settle()
    assert _template(world) != good
    assert "failedRevision" not in _rollout(world)


async def test_a_suspended_model_whose_revision_failed_wakes_with_the_good_one() -> None:
    world = await _serving(GOOD)
    good = _template(world)
    await _edited(world, BETTER, **CRASHING)
    world.spec({**BETTER, "suspend": True})
    for name in ("1", "2", "3"):
        world.remove_pod(name)
    world.deployment_status()
    await world.settle()
    assert world.verdict("Ready") == ("False", "Suspended")
    world.spec(BETTER)
    await world.settle()
    assert _template(world) == good
