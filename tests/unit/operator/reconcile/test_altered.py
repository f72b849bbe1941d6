"""A manifest that reads otherwise than when it was applied, though nobody has edited it."""

import copy
from typing import Any

import pytest

from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.reconcile.state import model_from
from support.operator_world import KEY, SIMULATED, World, manifest

FULL: dict[str, Any] = {
    **SIMULATED,
    "pod": {"nodeSelector": {"disk": "ssd"}},
    "batching": {"trustPriority": True},
    "autoscaling": {"minReplicas": 2, "maxReplicas": 3, "profile": "Fast"},
}
PRUNED: dict[str, Any] = {
    **SIMULATED,
    "pod": {},
    "batching": {},
    "autoscaling": {"minReplicas": 2, "maxReplicas": 3},
}


async def _settled() -> World:
    world = World(FULL)
    await world.settle()
    return world


def _alter(world: World, spec: dict[str, Any]) -> None:
    """The API server reads another spec, without an edit."""
    world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]["spec"] = spec


def _without_events(world: World) -> Any:
    return {
        key: copy.deepcopy(body)
        for key, body in world.cluster.objects.items()
        if key[0] != Kind.EVENT
    }


@pytest.mark.parametrize("again", [False, True], ids=["same process", "another process"])
async def test_its_objects_and_its_status_stay_as_they_are_and_an_event_tells(again: bool) -> None:
    world = await _settled()
    _alter(world, PRUNED)
    before = _without_events(world)
    if again:
        world.restart()
    for _ in range(20):
        world.now += 20
        await world.look()
    assert _without_events(world) == before
    told = [reason for _, reason, _ in world.events()]
    assert told.count("DefinitionChanged") == 1


async def test_once_the_definition_is_back_all_goes_on() -> None:
    world = await _settled()
    _alter(world, PRUNED)
    await world.look()
    _alter(world, FULL)
    before = _without_events(world)
    await world.look()
    assert _without_events(world) == before
    world.edit(Kind.AUTOSCALER, {"spec": {"maxReplicas": 50}})
    await world.look()
    assert world.child(Kind.AUTOSCALER)["spec"]["maxReplicas"] == 3


async def test_after_ten_minutes_it_stands_in_the_status_and_lasts() -> None:
    world = await _settled()
    url = _status(world)["url"]
    _alter(world, PRUNED)
    await world.look()
    world.now += 601
    await world.look()
    assert world.verdict("Reconciled") == ("False", "DefinitionChanged")
    assert world.verdict("Ready") == ("False", "ReconcileFailed")
    assert _status(world)["url"] == url
    before = _without_events(world)
    world.restart()
    world.now += 601
    await world.look()
    assert _without_events(world) == before


async def test_an_edit_is_followed_as_the_manifest_reads_then() -> None:
    world = await _settled()
    _alter(world, PRUNED)
    await world.look()
    world.spec(PRUNED)
    await world.settle()
    assert world.verdict("Reconciled") == ("True", "Applied")
    assert not world.child(Kind.DEPLOYMENT)["spec"]["template"]["spec"]["nodeSelector"]


async def test_defaults_that_a_definition_writes_out_alter_nothing() -> None:
    world = await _settled()
    written_out = {**FULL, "batching": {"trustPriority": True, "policy": "Deadline"}}
    _alter(world, written_out)
    await world.look()
    assert world.verdict("Reconciled") == ("True", "Applied")
    assert not any(reason == "DefinitionChanged" for _, reason, _ in world.events())


async def test_a_status_of_before_knows_nothing_of_it() -> None:
    world = await _settled()
    del _status(world)["observedSpec"]
    await world.look()
    assert _status(world)["observedSpec"]
    assert world.verdict("Reconciled") == ("True", "Applied")


def test_another_operator_names_the_same_spec_by_the_same_digest() -> None:
    # Whoever changes it has every model of the cluster left alone until its next edit.
    metadata = {**manifest()["metadata"], "uid": "1"}
    assert model_from({**manifest(FULL), "metadata": metadata}).spec_digest == "e60c5400210c0f5f"


def _status(world: World) -> Any:
    return world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]["status"]
