"""Capacity, loading and degradation, as conditions say it for what is seen of the pods."""

from typing import Any

import pytest

from batchedmodel_operator.kinds import Kind
from support.operator_world import SIMULATED, World

ACCELERATED: dict[str, Any] = {**SIMULATED, "accelerator": {}, "replicas": 2}


async def _world(spec: dict[str, Any] | None = None) -> World:
    world = World(spec or ACCELERATED)
    await world.settle()
    return world


def _homeless(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    return {"conditions": [condition], "initContainerStatuses": [], "containerStatuses": []}


def _loading(**more: Any) -> dict[str, Any]:
    container = {"name": "model", "ready": False, "state": {"running": {}}, **more}
    placed = {"type": "PodScheduled", "status": "True"}
    return {"conditions": [placed], "containerStatuses": [container]}


_ALL = (
    "0/9 nodes are available: 1 Insufficient cpu, 2 Insufficient nvidia.com/gpu, 3 node(s) had "
    "untolerated taint {dedicated: x}, 3 node(s) didn't match Pod's node affinity/selector."
)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (_ALL, "InsufficientAccelerator"),
        (_ALL.replace("nvidia.com/gpu", "memory"), "Unschedulable"),
        ('persistentvolumeclaim "models" not found', "VolumeNotBound"),
        ("pod has unbound immediate PersistentVolumeClaims", "VolumeNotBound"),
        ("1 node(s) had volume node affinity conflict", "VolumeNotBound"),
        ("1 node(s) didn't find available persistent volumes to bind", "VolumeNotBound"),
        ("2 cannot allocate all claims", "ClaimNotAllocated"),
        (
            "1 node(s) didn't match Pod's node affinity/selector, "
            "1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }",
            "NodeAffinityMismatch",
        ),
        ("1 node(s) had untolerated taint {dedicated: x}", "TaintNotTolerated"),
        ("", "Unschedulable"),
    ],
)
async def test_why_a_pod_has_no_node(message: str, reason: str) -> None:
    world = await _world()
    world.start_pod("1")
    world.start_pod("2", **_homeless(message))
    await world.settle()
    assert world.verdict("CapacityAvailable") == ("False", reason)
    assert message in world.condition("CapacityAvailable")["message"]
    assert world.verdict("Ready") == ("True", "PartiallyServing"), "the other one serves"


async def test_capacity_is_known_only_of_pods_that_somebody_has_placed() -> None:
    world = await _world()
    assert world.verdict("CapacityAvailable") == ("Unknown", "NoPods")
    world.start_pod("1", conditions=[], initContainerStatuses=[], containerStatuses=[])
    await world.settle()
    assert world.verdict("CapacityAvailable") == ("Unknown", "WaitingForScheduler")
    world.remove_pod("1")
    world.start_pod("1", **_loading())
    await world.settle()
    assert world.verdict("CapacityAvailable") == ("True", "Scheduled")


async def test_a_quota_without_room_is_a_lack_of_capacity() -> None:
    world = await _world()
    message = 'pods "x" is forbidden: exceeded quota: none, requested: pods=1'
    failure = {"type": "ReplicaFailure", "status": "True", "message": message}
    world.deployment_status(conditions=[failure])
    await world.look()
    assert world.verdict("CapacityAvailable") == ("False", "QuotaExceeded")
    assert world.verdict("ModelLoaded") == ("Unknown", "NoPods")


def _fetching() -> dict[str, Any]:
    container = {"name": "fetch-model", "ready": False, "state": {"running": {}}}
    return {"conditions": [], "initContainerStatuses": [container], "containerStatuses": []}


def _ended(reason: str) -> dict[str, Any]:
    ended = {"reason": reason, "exitCode": 3}
    return _loading(restartCount=2, lastState={"terminated": ended})


@pytest.mark.parametrize(
    ("status", "said", "verdict"),
    [
        ({}, "", ("True", "Loaded")),
        (_homeless("1 Insufficient nvidia.com/gpu."), "", ("Unknown", "NotStarted")),
        (_fetching(), "", ("False", "Downloading")),
        (_loading(), "the model is LOADING", ("False", "ModelLoading")),
        (_loading(), "the model is FAILED: no file", ("False", "ModelFailed")),
        (_loading(), "the model is HUNG: 40 s over a batch", ("False", "HealthCheckFailing")),
        (_loading(), "the model is LOST", ("False", "HealthCheckFailing")),
        (_ended("Error"), "", ("False", "CrashLooping")),
        (_ended("OOMKilled"), "", ("False", "OOMKilled")),
        (
            _loading(state={"waiting": {"reason": "ErrImagePull"}}),
            "",
            ("False", "ImagePullFailed"),
        ),
    ],
    ids=str,
)
async def test_whether_the_model_is_loaded(
    status: dict[str, Any], said: str, verdict: tuple[str, str]
) -> None:
    world = await _world()
    world.start_pod("1", **status)
    world.sidecars.startups["10.0.0.1"] = said
    await world.settle()
    assert world.verdict("ModelLoaded") == verdict


async def test_one_pod_that_has_loaded_is_enough() -> None:
    world = await _world()
    world.start_pod("1")
    world.start_pod("2", **_ended("Error"))
    await world.settle()
    assert world.verdict("ModelLoaded") == ("True", "Loaded")
    assert world.condition("ModelLoaded")["message"] == "1 of 2 pods have loaded their model"


async def test_fewer_pods_than_wanted_are_a_degradation_once_there_is_a_reason() -> None:
    world = await _world()
    world.start_pod("1")
    world.start_pod("2", **_loading())
    world.deployment_status(replicas=2, readyReplicas=1, availableReplicas=1, updatedReplicas=2)
    await world.settle()
    assert world.verdict("Degraded") == ("False", "AsExpected"), "it only takes its time"
    world.remove_pod("2")
    world.start_pod("2", **_ended("Error"))
    await world.settle()
    assert world.verdict("Degraded") == ("True", "PartialReplicas")
    assert world.condition("Degraded")["message"].startswith("1 of 2 pods are ready; pod 2")
    world.remove_pod("1")
    world.deployment_status(replicas=2, updatedReplicas=2)
    await world.settle()
    assert world.verdict("Degraded") == ("True", "NoReadyReplicas")
    world.spec({**ACCELERATED, "suspend": True})
    world.remove_pod("2")
    world.deployment_status()
    await world.settle()
    assert world.verdict("Degraded") == ("False", "AsExpected")


async def test_a_rollout_that_is_stuck_is_a_degradation() -> None:
    world = await _world()
    stuck = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    world.deployment_status(replicas=2, readyReplicas=1, conditions=[stuck])
    await world.look()
    assert world.verdict("Degraded") == ("True", "PartialReplicas")


async def test_a_reason_that_several_conditions_share_is_announced_once() -> None:
    world = await _world()
    world.start_pod("1", **_homeless("1 Insufficient nvidia.com/gpu."))
    await world.settle()
    for name in ("Ready", "CapacityAvailable"):
        assert world.verdict(name) == ("False", "InsufficientAccelerator")
    reasons = [reason for _, reason, _ in world.events()]
    assert reasons.count("InsufficientAccelerator") == 1
    assert "AsExpected" not in reasons


async def test_the_last_words_of_a_container_give_no_secret_away() -> None:
    world = await _world()
    said = "GET https://me:hunter22@hub.example/x?token=abc123 failed, HF_TOKEN=hf_" + "a" * 20
    status = _ended("Error")
    status["containerStatuses"][0]["lastState"]["terminated"]["message"] = said
    world.start_pod("1", **status)
    await world.settle()
    everything = str(world.cluster.objects[Kind.BATCHED_MODEL, "team", "minilm"]["status"])
    everything += str(world.events())
    assert "https://***@hub.example/x?token=*** failed, HF_TOKEN=***" in everything
    for secret in ("hunter22", "abc123", "hf_a"):
        assert secret not in everything


async def test_a_model_over_which_the_operator_fails_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await _world(SIMULATED)

    def fails(*_: object, **__: object) -> None:
        raise ValueError("a bug of ours")

    monkeypatch.setattr("batchedmodel_operator.reconcile.reconcile.plan", fails)
    with pytest.raises(ValueError, match="a bug of ours"):
        await world.look()
    assert world.verdict("Reconciled") == ("False", "InvalidObject")
    assert "ValueError" in world.condition("Reconciled")["message"]
    monkeypatch.undo()
    await world.look()
    assert world.verdict("Reconciled") == ("True", "Applied")
