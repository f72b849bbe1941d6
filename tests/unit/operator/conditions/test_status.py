"""What a BatchedModel's status says, for what is seen of its pods."""

from typing import Any

import pytest

from batchedmodel_operator.conditions.findings import Finding
from batchedmodel_operator.conditions.status import listed
from batchedmodel_operator.kinds import Kind
from support.operator_world import KEY, SIMULATED, World


async def _world(spec: dict[str, Any] | None = None) -> World:
    world = World(spec or SIMULATED)
    await world.settle()
    return world


async def test_all_ready_is_serving_and_complete() -> None:
    world = await _world()
    world.start_pod("1")
    world.all_ready()
    await world.settle()
    assert world.verdict("Ready") == ("True", "Serving")
    assert world.verdict("Available") == ("True", "MinimumReplicasAvailable")
    assert world.verdict("Progressing") == ("False", "Complete")
    assert world.verdict("Reconciled") == ("True", "Applied")


async def test_the_numbers_are_the_deployments() -> None:
    world = await _world({**SIMULATED, "replicas": 2, "service": {"port": 8080}})
    world.deployment_status(replicas=2, readyReplicas=1, updatedReplicas=2)
    await world.look()
    status = world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]["status"]
    numbers = {name: value for name, value in status.items() if name.endswith("eplicas")}
    assert numbers == {
        "replicas": 2,
        "readyReplicas": 1,
        "updatedReplicas": 2,
        "desiredReplicas": 2,
    }
    assert (status["ready"], status["model"]) == ("1/2", "simulated")
    assert status["observedGeneration"] == 1
    assert status["selector"] == "batchedmodel.dev/name=minilm"
    assert status["url"] == "http://minilm.team.svc:8080"
    assert status["effective"]["drain"] == {"timeoutSeconds": 35}
    assert status["effective"]["replicas"] == 2
    assert status["effective"]["rollout"] == {"maxSurge": "25%", "maxUnavailable": 0}
    assert status["effective"]["security"] == {"ids": "Fixed"}
    assert status["effective"]["sidecar"] == {"upgrade": "Pinned"}


@pytest.mark.parametrize(
    ("model", "called"),
    [
        ({"handler": "hf", "source": {"huggingFace": {"repo": "us/minilm"}}}, "us/minilm"),
        ({"handler": "mine:Model", "source": {"path": "/model"}}, "mine:Model"),
        ({"image": "registry.example/mine:1", "protocol": "V2"}, "registry.example/mine:1"),
    ],
)
async def test_a_list_of_models_says_what_each_serves(model: dict[str, Any], called: str) -> None:
    world = await _world({"model": model})
    status = world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]["status"]
    assert status["model"] == called


async def test_a_new_generation_is_never_called_ready_by_the_old_pods() -> None:
    world = await _world()
    world.start_pod("1")
    world.all_ready()
    await world.settle()
    world.spec({**SIMULATED, "accelerator": {}})
    await world.look()
    ready = world.condition("Ready")
    assert (ready["status"], ready["observedGeneration"]) == ("False", 2)
    assert ready["message"].endswith("1 pods of an earlier revision serve")
    assert world.verdict("Progressing") == ("True", "NewRevisionRollingOut")


async def test_no_pods_wanted_is_ready() -> None:
    world = await _world({**SIMULATED, "replicas": 0})
    world.deployment_status()
    await world.look()
    assert world.verdict("Ready") == ("True", "ScaledToZero")
    assert world.verdict("Available") == ("True", "ScaledToZero")


async def test_a_suspended_model_is_called_so() -> None:
    world = await _world()
    world.start_pod("1")
    world.all_ready()
    await world.settle()
    world.spec({**SIMULATED, "suspend": True})
    await world.settle()
    world.deployment_status(replicas=1, readyReplicas=1, updatedReplicas=1)
    await world.look()
    assert world.verdict("Progressing") == ("True", "Scaling"), "a pod still drains"
    world.remove_pod("1")
    world.deployment_status()
    await world.settle()
    for condition in ("Ready", "Available", "Progressing"):
        assert world.verdict(condition) == ("False", "Suspended")
    assert world.verdict("Reconciled") == ("True", "Applied")
    status = world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]["status"]
    assert status["url"] == "http://minilm.team.svc"
    assert status["desiredReplicas"] == 0


async def test_a_rollout_that_is_stuck_is_named() -> None:
    world = await _world()
    stuck = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    world.deployment_status(conditions=[stuck])
    await world.look()
    assert world.verdict("Progressing") == ("False", "ProgressDeadlineExceeded")


async def test_a_pod_that_was_evicted_holds_nothing_up() -> None:
    world = await _world()
    world.start_pod("1")
    world.start_pod("2", phase="Failed", conditions=[])
    world.deployment_status(replicas=1, readyReplicas=1, updatedReplicas=1)
    await world.settle()
    assert world.verdict("Progressing") == ("False", "Complete")


async def test_more_pods_that_do_not_fit_leave_it_ready() -> None:
    world = await _world({**SIMULATED, "accelerator": {}, "replicas": 2})
    world.start_pod("1")
    world.start_pod("2", **_unschedulable("0/1 nodes: 1 Insufficient nvidia.com/gpu."))
    world.deployment_status(replicas=2, readyReplicas=1, updatedReplicas=2)
    await world.settle()
    assert world.verdict("Ready") == ("True", "PartiallyServing")
    assert world.condition("Ready")["message"] == "1 of 2 pods serve"
    assert world.verdict("Degraded") == ("True", "PartialReplicas")
    assert world.verdict("Progressing") == ("True", "Scaling")
    assert "Insufficient nvidia.com/gpu" in world.condition("Progressing")["message"]


def _unschedulable(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    return {"conditions": [condition], "initContainerStatuses": [], "containerStatuses": []}


def _waiting(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    container = {"name": "model", "ready": False, "state": state, **more}
    return {"conditions": [], "containerStatuses": [container]}


def _fetching(report: str, name: str = "fetch-model") -> dict[str, Any]:
    """The init container failed once, and runs again."""
    ended = {"reason": "Error", "exitCode": 1, "message": f"{report}\n" if report else ""}
    container = {"name": name, "ready": False, "restartCount": 1}
    states = {"state": {"running": {}}, "lastState": {"terminated": ended}}
    return {"conditions": [], "initContainerStatuses": [container | states]}


def _ended(reason: str) -> dict[str, Any]:
    return {"lastState": {"terminated": {"reason": reason, "exitCode": 3}}, "restartCount": 2}


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        (_unschedulable("1 Insufficient nvidia.com/gpu."), "InsufficientAccelerator", "nvidia"),
        (_unschedulable("1 Insufficient memory."), "Unschedulable", "memory"),
        (_waiting("ErrImagePull", "not found"), "ImagePullFailed", "container model: not found"),
        (_waiting("ImagePullBackOff"), "ImagePullFailed", "ImagePullBackOff"),
        (_waiting("ErrImageNeverPull"), "ImagePullFailed", "ErrImageNeverPull"),
        (_waiting("InvalidImageName"), "ImagePullFailed", "InvalidImageName"),
        (
            _waiting("CreateContainerConfigError", 'secret "hub" not found'),
            "MissingSecret",
            'secret "hub" not found',
        ),
        (
            _waiting("CreateContainerConfigError", "image will run as root"),
            "ContainerConfigError",
            "as root",
        ),
        (_waiting("CrashLoopBackOff", **_ended("Error")), "CrashLooping", "exit code 3"),
        (_waiting("", **_ended("Error")), "CrashLooping", "exit code 3"),
        (_waiting("CrashLoopBackOff", **_ended("OOMKilled")), "OOMKilled", "more memory"),
        (_fetching("no such revision"), "FetchFailed", "container fetch-model: no such revision"),
        (_fetching(""), "FetchFailed", "its log has more"),
        (_fetching("no bucket", "from-s3"), "FetchFailed", "container from-s3: no bucket"),
        (_waiting("ContainerCreating"), "ModelLoading", "load their model"),
        (_waiting("", restartCount=1), "ModelLoading", "load their model"),
    ],
)
async def test_why_the_only_pod_does_not_serve(
    status: dict[str, Any], reason: str, words: str
) -> None:
    world = await _world({**SIMULATED, "accelerator": {}})
    world.start_pod("1", **status)
    world.deployment_status(replicas=1, updatedReplicas=1)
    await world.settle()
    assert world.verdict("Ready") == ("False", reason)
    assert words in world.condition("Ready")["message"]
    assert world.verdict("Available") == ("False", "NoReadyReplicas")


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull"])
async def test_secrets_are_named_where_the_registry_may_have_missed_them(reason: str) -> None:
    world = await _world({**SIMULATED, "pod": {"imagePullSecrets": ["ours", "theirs"]}})
    world.start_pod("1", **_waiting(reason, "not found"))
    world.deployment_status(replicas=1, updatedReplicas=1)
    await world.settle()
    assert world.verdict("Ready") == ("False", "ImagePullFailed")
    asked = reason != "ErrImageNeverPull"
    assert ("pull secrets ours, theirs" in world.condition("Ready")["message"]) is asked


def _loading(**more: Any) -> dict[str, Any]:
    container = {"name": "model", "ready": False, "state": {"running": {}}, **more}
    return {"conditions": [], "containerStatuses": [container]}


async def _failed(**more: Any) -> World:
    """A world whose only pod has a model that cannot be loaded."""
    world = await _world()
    world.start_pod("1", **_loading(**more))
    world.deployment_status(replicas=1, updatedReplicas=1)
    world.sidecars.startups["10.0.0.1"] = "the model is FAILED: no file: model.bin"
    await world.settle()
    return world


@pytest.mark.parametrize(
    "earlier",
    [{}, _ended("Error"), _ended("OOMKilled")],
    ids=["at first", "after crashes", "after lack of memory"],
)
async def test_a_model_that_cannot_be_loaded_is_named_at_once(earlier: dict[str, Any]) -> None:
    world = await _failed(**earlier)
    assert world.verdict("Ready") == ("False", "ModelFailed")
    assert world.condition("Ready")["message"] == "pod 1: no file: model.bin"


async def test_a_model_that_failed_without_a_word_is_named_too() -> None:
    world = await _failed()
    world.sidecars.startups["10.0.0.1"] = "the model is FAILED"
    await world.settle()
    assert world.verdict("Ready") == ("False", "ModelFailed")
    assert world.condition("Ready")["message"] == "pod 1: the model cannot be loaded"


async def test_a_pod_that_loads_is_reconciled_again_soon_and_nothing_is_written() -> None:
    world = await _failed()
    before = world.cluster.writes
    for _ in range(5):
        assert await world.look() == 5
    assert world.cluster.writes == before


async def test_a_sidecar_that_is_silent_for_a_moment_takes_nothing_back() -> None:
    world = await _failed()
    world.sidecars.startups.clear()
    await world.look()
    assert world.verdict("Ready") == ("False", "ModelFailed")
    world.sidecars.startups["10.0.0.1"] = "the model is LOADING"
    world.now += 5
    await world.look()
    assert world.verdict("Ready") == ("False", "ModelLoading")


async def test_of_many_pods_that_load_a_few_are_asked() -> None:
    world = await _world()
    for number in range(40):
        world.start_pod(str(number), **_loading())
    await world.settle()
    world.sidecars.asked.clear()
    await world.look()
    assert len(world.sidecars.asked) == 16


async def test_neither_ready_pods_nor_those_of_earlier_revisions_are_asked() -> None:
    world = await _world()
    world.start_pod("1", **_loading())
    world.spec({**SIMULATED, "accelerator": {}})
    await world.settle()
    world.start_pod("2")
    await world.settle()
    world.sidecars.asked.clear()
    await world.look()
    assert world.sidecars.asked == []


async def test_a_model_that_is_refused_whole_makes_no_progress() -> None:
    world = World({**SIMULATED, "batching": {"maxBatchSize": 0}})
    await world.look()
    assert world.verdict("Progressing") == ("False", "ReconcileFailed")
    assert world.condition("Progressing")["message"] == "nothing is on its way: InvalidSpec"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('pods "x" is forbidden: exceeded quota: none, requested: pods=1', "QuotaExceeded"),
        ('pods "x" is forbidden: violates PodSecurity "restricted"', "InvalidPodTemplate"),
        (
            'error looking up service account team/none: serviceaccount "none" not found',
            "MissingServiceAccount",
        ),
    ],
)
async def test_why_there_is_no_pod_at_all(message: str, reason: str) -> None:
    world = await _world()
    failure = {"type": "ReplicaFailure", "status": "True", "message": message}
    world.deployment_status(conditions=[failure])
    await world.look()
    assert world.verdict("Ready") == ("False", reason)
    assert world.condition("Ready")["message"] == message


def _ready(holds: bool, reason: str, message: str = "") -> dict[str, Finding]:
    return {"Ready": Finding(holds=holds, reason=reason, message=message)}


def test_the_time_of_a_condition_moves_only_with_its_status() -> None:
    first = listed([], _ready(False, "A"), generation=1, at="noon")
    assert first[0]["lastTransitionTime"] == "noon"
    second = listed(first, _ready(False, "B", "why"), generation=2, at="later")
    assert second[0]["lastTransitionTime"] == "noon"
    assert (second[0]["reason"], second[0]["observedGeneration"]) == ("B", 2)
    third = listed(second, _ready(True, "C"), generation=2, at="evening")
    assert third[0]["lastTransitionTime"] == "evening"


def test_a_long_message_is_cut() -> None:
    (found,) = listed([], _ready(False, "A", "x" * 5000), generation=1, at="noon")
    assert len(found["message"]) == 1024


async def test_what_the_autoscaler_keeps_in_the_status_is_left_alone() -> None:
    world = await _world()
    status = world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]["status"]
    status["capacity"] = {"revision": "a", "startupSeconds": 60}
    writes = world.cluster.writes
    await world.look()
    assert world.cluster.writes == writes


async def test_what_somebody_else_wrote_beside_it_is_one() -> None:
    world = World()
    await world.settle()
    before = world.cluster.before_pods
    world.edit(Kind.DEPLOYMENT, {"status": {"readyReplicas": 1, "replicas": 1}})
    learnt = False

    def meanwhile() -> None:
        nonlocal learnt
        if not learnt:
            learnt = True
            body = world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]
            body["status"]["capacity"] = {"rowsPerSecond": 100.0}

    world.cluster.before_pods = meanwhile
    await world.look()
    world.cluster.before_pods = before
    assert learnt
    assert world.called == [KEY], "the cache takes no event before that of ours"


async def test_the_status_says_while_edits_wait_and_no_longer() -> None:
    world = World()
    await world.settle()
    # Of one model they wait for 2 s at most; it said 10 s, which a storm in its namespace takes.
    for seconds in (2.0, 10.0):
        world.edits_wait = seconds
        assert await world.look() == seconds + 10
        said = world.condition("Reconciled")
        assert (said["status"], said["reason"]) == ("True", "Applied")
        text = f"edits come so fast that the next wait, for up to {seconds:g} s"
        assert text in said["message"]
    world.edits_wait = 0.0
    await world.look()
    assert "wait" not in world.condition("Reconciled")["message"]
