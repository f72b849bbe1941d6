"""A model that names a class: what the class says reaches it as an edit of its own would."""

from typing import Any

from batchedmodel_operator.kinds import RESOURCES, Kind
from support.operator_world import KEY, SIMULATED, World

NAMED: dict[str, Any] = {**SIMULATED, "className": "gpu"}


def write_class(world: World, spec: Any) -> None:
    """An administrator applies the class."""
    body = {
        "apiVersion": RESOURCES[Kind.MODEL_CLASS].api_version,
        "kind": Kind.MODEL_CLASS.value,
        "metadata": {"name": "gpu", "uid": "class", "resourceVersion": "1"},
        "spec": spec,
    }
    world.cluster.objects[Kind.MODEL_CLASS, "", "gpu"] = body


async def settled(spec: Any, model: Any = NAMED) -> World:
    world = World(model)
    write_class(world, spec)
    await world.settle()
    return world


def template(world: World) -> Any:
    return world.child(Kind.DEPLOYMENT)["spec"]["template"]["spec"]


def status(world: World) -> Any:
    return world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]["status"]


async def test_pods_run_where_the_class_says() -> None:
    world = await settled({"pod": {"nodeSelector": {"disk": "ssd"}}})
    assert template(world)["nodeSelector"] == {"disk": "ssd"}
    assert world.verdict("Reconciled") == ("True", "Applied")


async def test_a_class_that_asks_for_other_pods_rolls_them() -> None:
    world = await settled({"pod": {"nodeSelector": {"disk": "ssd"}}})
    before = world.revisions()
    write_class(world, {"pod": {"nodeSelector": {"disk": "nvme"}}})
    await world.settle()
    assert template(world)["nodeSelector"] == {"disk": "nvme"}
    assert len(world.revisions()) == len(before) + 1
    # And nobody takes it for a manifest that was altered.
    assert world.verdict("Reconciled") == ("True", "Applied")


async def test_batch_settings_of_a_class_apply_without_another_pod() -> None:
    world = await settled({"batching": {"maxBatchSize": 16}})
    before, hashed = template(world), world.settings()
    write_class(world, {"batching": {"maxBatchSize": 64}})
    await world.settle()
    assert template(world) == before
    assert world.settings() != hashed
    assert status(world)["effective"]["batching"]["maxBatchSize"] == 64


async def test_naming_a_class_that_says_nothing_replaces_no_pod() -> None:
    world = await settled({}, SIMULATED)
    before = world.revisions()
    world.spec(NAMED)
    await world.settle()
    assert world.revisions() == before


async def test_a_class_that_is_gone_is_named_and_what_runs_goes_on() -> None:
    world = await settled({"pod": {"nodeSelector": {"disk": "ssd"}}})
    before, in_force = template(world), status(world)["effective"]
    del world.cluster.objects[Kind.MODEL_CLASS, "", "gpu"]
    await world.settle()
    assert world.verdict("Reconciled") == ("False", "ClassNotFound")
    assert "there is no BatchedModelClass gpu" in world.condition("Ready")["message"]
    assert template(world) == before
    # The autoscaler goes on by what is in force.
    assert status(world)["effective"] == in_force


async def test_once_the_class_is_there_all_goes_on_although_it_was_edited_meanwhile() -> None:
    world = World(NAMED)
    await world.settle()
    assert world.verdict("Reconciled") == ("False", "ClassNotFound")
    assert not world.has(Kind.DEPLOYMENT)
    world.spec({**NAMED, "replicas": 2})
    await world.settle()
    write_class(world, {})
    await world.settle()
    assert world.verdict("Reconciled") == ("True", "Applied")
    assert world.child(Kind.DEPLOYMENT)["spec"]["replicas"] == 2


async def test_a_class_that_spoils_a_manifest_is_named_and_what_runs_goes_on() -> None:
    world = await settled({}, {**NAMED, "batching": {"maxQueueSize": 40}})
    before = template(world)
    write_class(world, {"batching": {"maxBatchSize": 64}})
    await world.settle()
    assert world.verdict("Reconciled") == ("False", "InvalidSpec")
    message = world.condition("Reconciled")["message"]
    assert "40 is below maxBatchSize (64)" in message
    assert "BatchedModelClass gpu" in message
    assert template(world) == before


async def test_a_class_that_cannot_be_read_is_named() -> None:
    world = World(NAMED)
    write_class(world, {"batching": "x" * 70_000})
    await world.settle()
    assert (
        "BatchedModelClass gpu: spec: spec has 70016 bytes"
        in world.condition("Reconciled")["message"]
    )


async def test_whoever_names_a_class_is_known_until_it_does_not() -> None:
    world = await settled({})
    assert world.of_class("gpu") == (KEY,)
    assert world.of_class("other") == ()
    world.spec(SIMULATED)
    await world.settle()
    assert world.of_class("gpu") == ()
    world.spec({**SIMULATED, "className": "missing"})
    await world.settle()
    assert world.of_class("missing") == (KEY,)
    del world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]
    await world.look()
    assert world.of_class("missing") == ()
