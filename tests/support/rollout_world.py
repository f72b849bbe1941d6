"""Models, pods and what is asked of a rollout at an API server in memory."""

import copy
from dataclasses import replace
from typing import Any

from batchedmodel_kube.manifest.workload import UpgradeMode
from batchedmodel_kube.names import REVISION_LABEL
from batchedmodel_operator.kinds import RESOURCES, Kind
from batchedmodel_operator.render import Images
from support.operator_world import IMAGES, KEY, SIMULATED, World

GOOD: dict[str, Any] = {
    **SIMULATED,
    "replicas": 2,
    "accelerator": {},
    "rollout": {"switchAfterSeconds": 60},
}
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
ROLLING: dict[str, Any] = {**GOOD, "sidecar": {"upgrade": "Rolling"}}
CLASSED: dict[str, Any] = {**GOOD, "className": "gpu"}
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


def model_container(**state: Any) -> dict[str, Any]:
    container = {"name": "model", "ready": False, **state}
    return {"conditions": [], "containerStatuses": [container]}


CRASHING = model_container(
    restartCount=3,
    state={"waiting": {"reason": "CrashLoopBackOff"}},
    lastState={"terminated": {"reason": "Error", "exitCode": 3, "message": "no such weights"}},
)
OUT_OF_MEMORY = model_container(
    restartCount=1,
    state={"running": {}},
    lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}},
)
PULLING = model_container(state={"waiting": {"reason": "ImagePullBackOff"}})
CREATING = model_container(state={"waiting": {"reason": "ContainerCreating"}})
UNLUCKY_ONCE = model_container(
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


def own(name: str, *, restarts: int, **state: Any) -> dict[str, Any]:
    """An init container of the manifest that fails."""
    ended = {"reason": "Error", "exitCode": 1, "message": "no bucket"}
    state = state or {"waiting": {"reason": "CrashLoopBackOff"}}
    container = {"name": name, "ready": False, "restartCount": restarts, "state": state}
    return {
        "conditions": [],
        "initContainerStatuses": [container | {"lastState": {"terminated": ended}}],
        "containerStatuses": [],
    }


FILLING_ONCE = own("fill", restarts=1, running={})
FILLING = own("fill", restarts=9)
SHIPPING_LOGS = own("ship-logs", restarts=9)


async def serving(spec: dict[str, Any]) -> World:
    """Two good pods, 1 and 2."""
    world = World(spec)
    await world.settle()
    for name in ("1", "2"):
        world.start_pod(name)
    world.all_ready()
    await world.settle()
    assert world.verdict("Ready")[0] == "True"
    return world


async def edited(world: World, spec: dict[str, Any], **status: Any) -> None:
    """The first pod of another revision is there."""
    world.spec(spec)
    await world.settle()
    world.start_pod("3", **status)
    world.deployment_status(replicas=3, readyReplicas=2, availableReplicas=2, updatedReplicas=1)
    await world.settle()


def template(world: World) -> Any:
    # The world goes on writing into its own.
    return copy.deepcopy(world.child(Kind.DEPLOYMENT)["spec"]["template"])


def revision(world: World) -> Any:
    return template(world)["metadata"]["labels"][REVISION_LABEL]


def budget(world: World) -> Any:
    return world.child(Kind.DEPLOYMENT)["spec"]["strategy"]["rollingUpdate"]


def rollout(world: World) -> dict[str, str]:
    status = world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]["status"]
    found: dict[str, str] = status["rollout"]
    return found


def count(world: World, reason: str) -> int:
    return sum(one == reason for _, one, _ in world.events())


def upgraded_images(tag: int, upgrade: UpgradeMode = UpgradeMode.PINNED) -> Images:
    sidecar, server = f"registry.example/sidecar:{tag}", f"registry.example/model-server:{tag}"
    return replace(IMAGES, sidecar=sidecar, model_server=server, upgrade=upgrade)


async def all_replaced(world: World) -> None:
    """Both pods have become of the present revision, and are available."""
    for name in ("1", "2"):
        world.remove_pod(name)
        world.start_pod(name)
    world.all_ready()
    await world.settle()


def write_class(world: World, spec: dict[str, Any]) -> None:
    body = {
        "apiVersion": RESOURCES[Kind.MODEL_CLASS].api_version,
        "kind": Kind.MODEL_CLASS.value,
        "metadata": {"name": "gpu", "uid": "class", "resourceVersion": "1"},
        "spec": spec,
    }
    world.cluster.objects[Kind.MODEL_CLASS, "", "gpu"] = body


async def of_class() -> World:
    world = World(CLASSED)
    write_class(world, {})
    await world.settle()
    for name in ("1", "2"):
        world.start_pod(name)
    world.all_ready()
    await world.settle()
    return world
