"""What is said of containers of a pod that are neither the batcher nor the model."""

from typing import Any

import pytest

from support.operator_world import SIMULATED, World

NO_MODULE = "ImportError: no module named weights"
MODEL_LOOPS = {
    "name": "model",
    "ready": False,
    "restartCount": 4,
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "lastState": {"terminated": {"reason": "Error", "exitCode": 1, "message": NO_MODULE}},
}
MODEL_WAITS = {
    "name": "model",
    "ready": False,
    "state": {"waiting": {"reason": "PodInitializing"}},
}
FILL = {"name": "fill", "image": "registry.example/fill:1"}
SHIP_LOGS = {"name": "ship-logs", "image": "registry.example/ship:1", "restartPolicy": "Always"}
MIXED: dict[str, Any] = {**SIMULATED, "pod": {"initContainers": [FILL, SHIP_LOGS]}}


def _ended(name: str, *, code: int = 1, restarts: int = 1, loops: bool = False) -> dict[str, Any]:
    """It ended, and runs again unless it loops."""
    ended = {"reason": "Error", "exitCode": code, "message": "no bucket"}
    waits = {"waiting": {"reason": "CrashLoopBackOff"}}
    return {
        "name": name,
        "ready": False,
        "restartCount": restarts,
        "state": waits if loops else {"running": {}},
        "lastState": {"terminated": ended},
    }


async def _world(before: list[dict[str, Any]], beside: list[dict[str, Any]]) -> World:
    """A world whose only pod has these init containers and these others."""
    world = World(MIXED)
    await world.settle()
    world.start_pod("1", conditions=[], initContainerStatuses=before, containerStatuses=beside)
    world.deployment_status(replicas=1, updatedReplicas=1)
    await world.settle()
    return world


@pytest.mark.parametrize(
    ("before", "beside"),
    [
        ([], [_ended("istio-proxy"), MODEL_LOOPS]),
        ([_ended("ship-logs")], [MODEL_LOOPS]),
        ([_ended("fill", code=0)], [MODEL_LOOPS]),
    ],
    ids=["injected", "beside the model", "done before its node began anew"],
)
async def test_a_container_that_ended_once_hides_no_model_that_loops(
    before: list[dict[str, Any]], beside: list[dict[str, Any]]
) -> None:
    world = await _world(before, beside)
    assert world.verdict("Ready") == ("False", "CrashLooping")
    assert NO_MODULE in world.condition("Ready")["message"]


@pytest.mark.parametrize(
    ("before", "beside"),
    [
        ([], [_ended("istio-proxy"), MODEL_WAITS]),
        ([_ended("ship-logs")], [MODEL_WAITS]),
        ([_ended("fill", code=0, restarts=3)], [MODEL_WAITS]),
    ],
    ids=["injected", "beside the model", "done before its node began anew"],
)
async def test_of_one_end_of_what_fetches_nothing_no_fuss_is_made(
    before: list[dict[str, Any]], beside: list[dict[str, Any]]
) -> None:
    world = await _world(before, beside)
    assert world.verdict("Ready") == ("False", "ModelLoading")


@pytest.mark.parametrize(
    ("before", "beside"),
    [
        ([], [_ended("istio-proxy", loops=True), MODEL_WAITS]),
        ([_ended("ship-logs", restarts=2)], [MODEL_WAITS]),
    ],
    ids=["injected", "beside the model"],
)
async def test_what_ends_again_and_again_beside_the_model_is_named(
    before: list[dict[str, Any]], beside: list[dict[str, Any]]
) -> None:
    world = await _world(before, beside)
    assert world.verdict("Ready") == ("False", "CrashLooping")
    assert "no bucket" in world.condition("Ready")["message"]
