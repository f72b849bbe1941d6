"""Pods are a BatchedModel's by owner references; the label alone counts for nothing."""

import copy
from typing import Any

import pytest

from batchedmodel_kube.names import NAME_LABEL
from batchedmodel_operator.kinds import Kind
from support.operator_world import KEY, SIMULATED, World, owner_reference

POD = (Kind.POD, KEY.namespace, "2")


async def _with_two_pods() -> World:
    world = World({**SIMULATED, "replicas": 2})
    await world.settle()
    world.start_pod("1")
    world.start_pod("2")
    world.all_ready()
    await world.settle()
    return world


def _orphaned(world: World) -> list[dict[str, Any]]:
    return []


def _of_no_controller(world: World) -> list[dict[str, Any]]:
    (owner,) = world.cluster.objects[POD]["metadata"]["ownerReferences"]
    return [{**owner, "controller": False}]


def _of_the_deployment(world: World) -> list[dict[str, Any]]:
    return [owner_reference(Kind.DEPLOYMENT, world.child(Kind.DEPLOYMENT))]


def _of_their_own_replica_set(world: World) -> list[dict[str, Any]]:
    metadata = {"name": "theirs", "namespace": KEY.namespace, "labels": {NAME_LABEL: KEY.name}}
    body = {"apiVersion": "apps/v1", "kind": Kind.REPLICA_SET.value, "metadata": metadata}
    return [owner_reference(Kind.REPLICA_SET, world.cluster.put(body))]


def _of_another_uid(world: World) -> list[dict[str, Any]]:
    (owner,) = world.cluster.objects[POD]["metadata"]["ownerReferences"]
    return [{**owner, "uid": "made up"}]


async def test_a_template_whose_owner_is_of_another_kind_is_nobodys() -> None:
    world = await _with_two_pods()
    before = world.child(Kind.DEPLOYMENT)["spec"]["template"]
    [name] = world.revisions()
    [kept] = [
        b
        for (k, _, n), b in world.cluster.objects.items()
        if (k, n) == (Kind.CONTROLLER_REVISION, name)
    ]
    [owner] = kept["metadata"]["ownerReferences"]
    forged = copy.deepcopy(kept)
    forged["metadata"]["name"] = f"{name}-zz"
    forged["metadata"]["ownerReferences"] = [{**owner, "apiVersion": "a/v1", "kind": "Thing"}]
    forged["revision"] = 1_000_000
    forged["data"]["template"]["spec"]["serviceAccountName"] = "strong"
    world.cluster.put(forged)
    await world.settle()
    assert world.child(Kind.DEPLOYMENT)["spec"]["template"] == before


@pytest.mark.parametrize(
    "owners",
    [
        _orphaned,
        _of_no_controller,
        _of_the_deployment,
        _of_their_own_replica_set,
        _of_another_uid,
    ],
)
async def test_a_pod_with_only_the_label_is_not_asked_and_not_told(owners: Any) -> None:
    world = await _with_two_pods()
    world.cluster.objects[POD]["metadata"]["ownerReferences"] = owners(world)
    world.restart()
    world.sidecars.asked.clear()
    world.spec({**SIMULATED, "replicas": 2, "batching": {"maxBatchSize": 7}})
    await world.settle()
    assert set(world.cluster.annotated) <= {"1"}
    assert set(world.sidecars.asked) == {"10.0.0.1"}


async def test_a_stranger_that_fails_is_no_reason_of_the_models() -> None:
    world = await _with_two_pods()
    assert world.verdict("Ready") == ("True", "Serving")
    body = world.cluster.objects[POD]
    body["metadata"]["ownerReferences"] = []
    body["status"]["phase"] = "Pending"
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "made to fail"}}
    body["status"]["containerStatuses"] = [{"name": "model", "ready": False, "state": waiting}]
    world.restart()
    await world.look()
    assert world.verdict("ModelLoaded") == ("True", "Loaded")


async def test_pods_of_a_deployment_that_was_made_anew_count_when_it_has_adopted_them() -> None:
    world = await _with_two_pods()
    world.remove(Kind.DEPLOYMENT)
    await world.look()
    world.sidecars.asked.clear()
    world.spec({**SIMULATED, "replicas": 2, "batching": {"maxBatchSize": 7}})
    await world.look()
    assert not world.sidecars.asked, "their ReplicaSet is an earlier Deployment's"
    (name,) = [name for kind, _, name in world.cluster.objects if kind == Kind.REPLICA_SET]
    replica_set = world.cluster.objects[Kind.REPLICA_SET, KEY.namespace, name]
    adopts = owner_reference(Kind.DEPLOYMENT, world.child(Kind.DEPLOYMENT))
    replica_set["metadata"]["ownerReferences"] = [adopts]
    await world.look()
    assert set(world.sidecars.asked) == {"10.0.0.1", "10.0.0.2"}


def _add_strangers(world: World, count: int, name: str) -> None:
    """Pods with the label, each of a ReplicaSet of its own, listed before those of the model."""
    objects = {**world.cluster.objects}
    body = objects[POD]
    world.cluster.objects.clear()
    for number in range(count):
        labels = {NAME_LABEL: KEY.name}
        place = {"name": f"{name}-{number}", "namespace": KEY.namespace}
        metadata = {**place, "labels": labels}
        owner = world.cluster.put(
            {"apiVersion": "apps/v1", "kind": Kind.REPLICA_SET.value, "metadata": metadata}
        )
        owners = [owner_reference(Kind.REPLICA_SET, owner)]
        theirs = {**metadata, "ownerReferences": owners}
        world.cluster.put({**body, "metadata": theirs})
    world.cluster.objects.update(objects)


async def test_strangers_that_are_listed_first_do_not_hide_the_models_pods() -> None:
    world = await _with_two_pods()
    _add_strangers(world, 40, f"{KEY.name}-a")
    world.restart()
    world.sidecars.asked.clear()
    await world.look()
    assert set(world.sidecars.asked) == {"10.0.0.1", "10.0.0.2"}
