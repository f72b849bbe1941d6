"""A manifest that reads otherwise than when it was applied, though nobody has edited it."""

import copy
from typing import Any

import pytest

from batchedmodel_operator.kinds import RESOURCES, Kind
from batchedmodel_operator.observed.state import model_from
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


CLASS: dict[str, Any] = {"pod": {"nodeSelector": {"disk": "ssd"}}, "batching": {"maxBatchSize": 7}}
LESS: dict[str, Any] = {"pod": {}, "batching": {"maxBatchSize": 7}}


def _write_class(world: World, spec: dict[str, Any], *, generation: int = 1) -> None:
    world.cluster.objects[Kind.MODEL_CLASS, "", "gpu"] = {
        "apiVersion": RESOURCES[Kind.MODEL_CLASS].api_version,
        "kind": Kind.MODEL_CLASS.value,
        "metadata": {"name": "gpu", "uid": "1", "generation": generation},
        "spec": spec,
    }


async def _of_class() -> World:
    world = World({**SIMULATED, "className": "gpu"})
    _write_class(world, CLASS)
    await world.settle()
    return world


def _disk(world: World) -> Any:
    pod = world.child(Kind.DEPLOYMENT)["spec"]["template"]["spec"]
    return pod.get("nodeSelector", {}).get("disk")


@pytest.mark.parametrize("again", [False, True], ids=["same process", "another process"])
async def test_a_class_that_is_altered_changes_nothing_of_its_models(again: bool) -> None:
    world = await _of_class()
    before = _without_events(world)
    _write_class(world, LESS)
    if again:
        world.restart()
    for _ in range(20):
        world.now += 20
        await world.look()
    _write_class(world, CLASS)
    assert _without_events(world) == before
    assert [reason for _, reason, _ in world.events()].count("DefinitionChanged") == 1
    await world.settle()
    assert _without_events(world) == before
    assert world.verdict("Reconciled") == ("True", "Applied")


async def test_an_edit_of_a_class_is_followed_also_where_it_has_fewer_fields() -> None:
    world = await _of_class()
    _write_class(world, LESS, generation=2)
    await world.settle()
    assert _disk(world) is None
    assert world.verdict("Reconciled") == ("True", "Applied")


async def test_an_edit_of_the_manifest_goes_by_the_class_as_it_is_read_until_it_is_back() -> None:
    world = await _of_class()
    _write_class(world, LESS)
    await world.look()
    edited = {"model": {"handler": "simulated", "env": {"A": "1"}}, "className": "gpu"}
    world.spec(edited)
    await world.settle()
    assert _disk(world) is None
    assert world.verdict("Reconciled") == ("True", "Applied")
    _write_class(world, CLASS)
    await world.settle()
    assert _disk(world) == "ssd"
    assert world.verdict("Reconciled") == ("True", "Applied")


@pytest.mark.parametrize("written", ["", "x", "1/1/", "1/1/-3", f"1/1/{'9' * 5000}", 7])
async def test_what_others_wrote_of_a_class_into_the_status_alters_nothing(written: object) -> None:
    world = await _of_class()
    _status(world)["observedClass"] = written
    await world.settle()
    assert _status(world)["observedClass"] == "1/1/5"
    assert world.verdict("Reconciled") == ("True", "Applied")
