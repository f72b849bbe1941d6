"""Pods and the images of another operator: who keeps theirs, who follows, and when."""

from typing import Any

import pytest

from batchedmodel_contract.link.hello import MAX_VERSION
from batchedmodel_kube.errors import Gone, Invalid, Refused
from batchedmodel_kube.manifest.workload import UpgradeMode
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.observed.state import Key
from batchedmodel_operator.reconcile.turns import SETTLED, Standing
from batchedmodel_operator.render import images_of
from support.operator_world import KEY, World
from support.rollout_world import (
    CLASSED,
    CRASHING,
    GOOD,
    ROLLING,
    all_replaced,
    of_class,
    revision,
    rollout,
    serving,
    template,
    upgraded_images,
    write_class,
)

ROLLS = Standing(rolls=True, failed=False)
FAILED = Standing(rolls=False, failed=True)
OTHER = Key(namespace="team", name="another")
OLD = {"batcher": "registry.example/sidecar:1", "model": "registry.example/model-server:1"}
NEW = {"batcher": "registry.example/sidecar:2", "model": "registry.example/model-server:2"}
OWN: dict[str, Any] = {**GOOD, "model": {"handler": "simulated", "image": "registry.example/own:7"}}
OWN_ROLLING: dict[str, Any] = {**OWN, "sidecar": {"upgrade": "Rolling"}}


async def test_pods_keep_their_images_and_it_is_said_which_the_operator_has() -> None:
    world = await serving(GOOD)
    assert world.verdict("UpToDate") == ("True", "UpToDate")
    before = template(world)
    world.restart(upgraded_images(2))
    await world.settle()
    assert template(world) == before
    assert world.verdict("UpToDate") == ("False", "UpgradePinned")
    message = world.condition("UpToDate")["message"]
    assert "registry.example/model-server:2, registry.example/sidecar:2" in message


@pytest.mark.parametrize(
    ("spec", "upgrade"),
    [(ROLLING, UpgradeMode.PINNED), (GOOD, UpgradeMode.ROLLING)],
    ids=["manifest", "chart"],
)
async def test_pods_follow_the_operators_images_where_that_is_asked(
    spec: dict[str, Any], upgrade: UpgradeMode
) -> None:
    world = await serving(spec)
    before = revision(world)
    world.restart(upgraded_images(2, upgrade))
    await world.settle()
    assert images_of(template(world)) == NEW
    assert rollout(world)["cause"] == "Upgrade"
    assert len(world.revisions()) == 2, "the earlier one can come back"
    await all_replaced(world)
    assert world.verdict("UpToDate") == ("True", "UpToDate")
    assert world.verdict("Ready") == ("True", "Serving")
    assert revision(world) != before
    writes = world.cluster.writes
    world.restart(upgraded_images(2, upgrade))
    await world.look()
    assert world.cluster.writes == writes


async def test_a_manifest_may_keep_its_images_where_the_chart_says_otherwise() -> None:
    world = await serving({**GOOD, "sidecar": {"upgrade": "Pinned"}})
    world.restart(upgraded_images(2, UpgradeMode.ROLLING))
    await world.settle()
    assert images_of(template(world)) == OLD


async def test_saying_so_replaces_no_pod() -> None:
    world = await serving(GOOD)
    before = template(world)
    world.spec(ROLLING)
    await world.settle()
    assert template(world) == before


async def test_images_of_the_manifest_are_nobody_elses_matter() -> None:
    own = {"handler": "simulated", "image": "registry.example/own:7"}
    world = await serving({**ROLLING, "model": own, "sidecar": {"image": "registry.example/s:7"}})
    world.restart(upgraded_images(2, UpgradeMode.ROLLING))
    await world.settle()
    assert images_of(template(world)) == {
        "batcher": "registry.example/s:7",
        "model": "registry.example/own:7",
    }
    assert world.verdict("UpToDate") == ("True", "UpToDate")


def sidecar(world: World) -> str:
    return images_of(template(world))["batcher"]


def tell_link_versions(world: World, version: int) -> None:
    """Sidecars of pods 1 and 2 are of a release that tells the version of their link."""
    world.sidecars.link_versions |= dict.fromkeys(("10.0.0.1", "10.0.0.2"), version)


@pytest.mark.parametrize("spec", [OWN, OWN_ROLLING], ids=["pinned", "rolling"])
async def test_a_model_server_of_ones_own_image_keeps_the_sidecar_that_it_speaks_with(
    spec: dict[str, Any],
) -> None:
    world = await serving(spec)
    before = template(world)
    world.restart(upgraded_images(2))
    await world.settle()
    assert template(world) == before
    assert world.verdict("UpToDate") == ("False", "WaitingForModelImage")
    message = world.condition("UpToDate")["message"]
    assert "the operator has other images: registry.example/sidecar:2; the sidecar" in message
    assert world.verdict("Ready") == ("True", "Serving")
    assert world.turns.may_begin(OTHER)


async def test_an_edit_keeps_the_sidecar_unless_it_names_another_image_of_the_model_server() -> (
    None
):
    world = await serving(OWN)
    world.restart(upgraded_images(2))
    edited = {**OWN["model"], "env": {"LEVEL": "9"}}
    world.spec({**OWN, "model": edited})
    await world.settle()
    assert {"name": "LEVEL", "value": "9"} in template(world)["spec"]["containers"][0]["env"]
    assert sidecar(world) == "registry.example/sidecar:1"
    await all_replaced(world)
    assert world.verdict("UpToDate") == ("False", "WaitingForModelImage")
    world.spec({**OWN, "model": {**edited, "image": "registry.example/own:8"}})
    await world.settle()
    assert sidecar(world) == "registry.example/sidecar:2"
    await all_replaced(world)
    assert world.verdict("UpToDate") == ("True", "UpToDate")


@pytest.mark.parametrize(("version", "follows"), [(MAX_VERSION, True), (MAX_VERSION + 1, False)])
async def test_a_sidecar_that_tells_what_the_present_one_speaks_is_replaced(
    version: int, *, follows: bool
) -> None:
    world = await serving(OWN_ROLLING)
    tell_link_versions(world, version)
    world.restart(upgraded_images(2))
    await world.settle()
    assert sidecar(world) == f"registry.example/sidecar:{2 if follows else 1}"
    if follows:
        # None has told of the new one's link yet, which is no way back.
        tell_link_versions(world, 0)
        await all_replaced(world)
        assert sidecar(world) == "registry.example/sidecar:2"
        assert world.verdict("UpToDate") == ("True", "UpToDate")


async def test_a_pinned_sidecar_that_could_be_replaced_is_said_to_be_pinned() -> None:
    world = await serving(OWN)
    tell_link_versions(world, MAX_VERSION)
    world.restart(upgraded_images(2))
    await world.settle()
    assert sidecar(world) == "registry.example/sidecar:1"
    assert world.verdict("UpToDate") == ("False", "UpgradePinned")


async def test_an_upstream_server_has_any_sidecar() -> None:
    model = {"protocol": "V2", "image": "registry.example/triton:1"}
    world = await serving({**ROLLING, "model": model})
    world.restart(upgraded_images(2))
    await world.settle()
    assert sidecar(world) == "registry.example/sidecar:2"


async def test_a_model_waits_for_its_turn_and_is_looked_at_when_it_comes() -> None:
    world = await serving(ROLLING)
    world.restart(upgraded_images(2))
    world.turns.note(OTHER, ROLLS, waits=False)
    await world.settle()
    assert images_of(template(world)) == OLD
    assert world.verdict("UpToDate") == ("False", "WaitingForTurn")
    assert world.turns.note(OTHER, SETTLED, waits=False) == (KEY,)
    await world.settle()
    assert images_of(template(world)) == NEW
    assert not world.turns.may_begin(OTHER), "it has the place now"
    world.turns.note(OTHER, SETTLED, waits=True)
    await all_replaced(world)
    assert OTHER in world.called
    assert world.turns.may_begin(OTHER)


async def test_an_edit_waits_for_nobody() -> None:
    world = await serving(ROLLING)
    world.restart(upgraded_images(2))
    world.turns.note(OTHER, FAILED, waits=False)
    world.spec({**ROLLING, "model": {"handler": "simulated", "env": {"LEVEL": "9"}}})
    await world.settle()
    assert images_of(template(world)) == NEW
    assert "cause" not in rollout(world)


async def test_what_fails_is_taken_back_and_nobody_follows_until_something_newer_serves() -> None:
    world = await serving(ROLLING)
    good = template(world)
    world.restart(upgraded_images(2))
    await world.settle()
    world.start_pod("3", **CRASHING)
    world.deployment_status(replicas=3, readyReplicas=2, availableReplicas=2, updatedReplicas=1)
    await world.settle()
    assert template(world) == good
    assert world.verdict("UpToDate") == ("False", "RolledBack")
    world.remove_pod("3")
    world.all_ready()
    await world.settle()
    assert world.verdict("Degraded") == ("True", "RolledBack")
    assert not world.turns.may_begin(OTHER)

    # Another operator knows of it, too.
    world.restart(upgraded_images(2))
    await world.settle()
    assert template(world) == good
    assert not world.turns.may_begin(OTHER)

    world.restart(upgraded_images(3))
    await world.settle()
    assert images_of(template(world))["batcher"] == "registry.example/sidecar:3"
    await all_replaced(world)
    assert world.verdict("UpToDate") == ("True", "UpToDate")
    assert world.turns.may_begin(OTHER)


async def test_the_earlier_images_bring_the_earlier_template_back() -> None:
    world = await serving(ROLLING)
    good = template(world)
    world.restart(upgraded_images(2))
    await world.settle()
    await all_replaced(world)
    world.restart(upgraded_images(1))
    await world.settle()
    assert template(world) == good
    assert len(world.revisions()) == 2


async def test_another_operator_goes_on_with_what_one_began() -> None:
    world = await serving(ROLLING)
    world.restart(upgraded_images(2))
    await world.settle()
    begun, writes = template(world), world.cluster.writes
    world.restart(upgraded_images(2))
    assert world.turns.may_begin(OTHER), "nobody has told it"
    await world.look()
    assert template(world) == begun
    assert world.cluster.writes == writes
    assert not world.turns.may_begin(OTHER)


async def test_whoever_serves_badly_keeps_its_images_and_the_place_is_left_to_others() -> None:
    world = await serving(ROLLING)
    for name in ("1", "2"):
        world.remove_pod(name)
    world.start_pod("1", **CRASHING)
    world.deployment_status(replicas=2, readyReplicas=0, updatedReplicas=2)
    await world.settle()
    world.restart(upgraded_images(2))
    await world.settle()
    assert images_of(template(world)) == OLD
    assert world.verdict("UpToDate") == ("False", "WaitingForHealth")
    assert world.turns.may_begin(OTHER)


async def test_whoever_has_no_pods_takes_no_place() -> None:
    world = World({**ROLLING, "suspend": True})
    await world.settle()
    world.restart(upgraded_images(2))
    await world.settle()
    assert images_of(template(world)) == NEW
    assert world.turns.may_begin(OTHER)


async def test_an_edit_of_the_class_waits_for_its_turn_and_batch_settings_do_not() -> None:
    world = await of_class()
    before, settings = template(world), world.settings()
    world.turns.note(OTHER, ROLLS, waits=False)
    edit = {"pod": {"nodeSelector": {"disk": "nvme"}}, "batching": {"maxBatchSize": 64}}
    write_class(world, edit)
    await world.settle()
    assert template(world) == before
    assert world.settings() != settings
    assert world.verdict("UpToDate") == ("False", "WaitingForTurn")
    assert "BatchedModelClass gpu was edited" in world.condition("UpToDate")["message"]
    assert world.turns.note(OTHER, SETTLED, waits=False) == (KEY,)
    await world.settle()
    assert template(world)["spec"]["nodeSelector"] == {"disk": "nvme"}
    assert rollout(world)["cause"] == "Class"
    await all_replaced(world)
    assert world.verdict("UpToDate") == ("True", "UpToDate")


async def test_an_edit_of_the_class_reaches_whoever_does_not_serve_at_once() -> None:
    world = World(CLASSED)
    write_class(world, {"pod": {"nodeSelector": {"disk": "wrong"}}})
    await world.settle()
    world.turns.note(OTHER, FAILED, waits=False)
    write_class(world, {"pod": {"nodeSelector": {"disk": "nvme"}}})
    await world.settle()
    assert template(world)["spec"]["nodeSelector"] == {"disk": "nvme"}


async def _upgraded(spec: dict[str, Any] = ROLLING) -> World:
    """Its pods have the images 2."""
    world = await serving(spec)
    world.restart(upgraded_images(2))
    await world.settle()
    await all_replaced(world)
    return world


async def _crash(world: World) -> None:
    for name in ("1", "2"):
        world.remove_pod(name)
        world.start_pod(name, **CRASHING)
    world.deployment_status(replicas=2, readyReplicas=0, updatedReplicas=2)
    await world.settle()


async def _take_back(world: World) -> None:
    """The first pod of a later template fails, and the earlier one is back."""
    world.start_pod("3", **CRASHING)
    world.deployment_status(replicas=3, readyReplicas=2, availableReplicas=2, updatedReplicas=1)
    await world.settle()
    world.remove_pod("3")
    world.all_ready()
    await world.settle()
    assert world.verdict("Degraded") == ("True", "RolledBack")


async def test_one_that_breaks_after_its_upgrade_follows_images_that_work() -> None:
    world = await _upgraded()
    await _crash(world)
    assert not world.turns.may_begin(OTHER)
    world.restart(upgraded_images(3))
    await world.settle()
    assert images_of(template(world))["batcher"] == "registry.example/sidecar:3"
    await all_replaced(world)
    assert world.turns.may_begin(OTHER)


async def test_one_that_was_taken_back_is_let_go_by_pinning_it() -> None:
    world = await serving(ROLLING)
    world.restart(upgraded_images(2))
    await world.settle()
    await _take_back(world)
    assert not world.turns.may_begin(OTHER)
    world.spec({**ROLLING, "sidecar": {"upgrade": "Pinned"}})
    await world.settle()
    assert images_of(template(world)) == OLD
    assert world.verdict("Degraded") == ("False", "AsExpected")
    assert world.verdict("UpToDate") == ("False", "UpgradePinned")
    assert world.turns.may_begin(OTHER)


async def test_an_edit_that_is_taken_back_brings_no_images_that_had_failed() -> None:
    world = await serving(ROLLING)
    good = template(world)
    world.restart(upgraded_images(2))
    await world.settle()
    await _take_back(world)
    world.restart(upgraded_images(1))
    await world.settle()
    world.all_ready()
    world.spec({**ROLLING, "model": {"handler": "simulated", "env": {"LEVEL": "9"}}})
    await world.settle()
    world.turns.note(OTHER, ROLLS, waits=False)
    world.spec(ROLLING)
    await world.settle()
    assert template(world) == good


async def test_a_status_that_is_refused_gives_the_turn_back() -> None:
    world = await serving(ROLLING)
    world.restart(upgraded_images(2))
    world.cluster.status_failure = Invalid("no such status")
    with pytest.raises(Invalid):
        await world.look()
    assert world.turns.may_begin(OTHER)
    assert images_of(template(world)) == OLD


async def test_one_that_has_just_come_to_serve_is_looked_at_again() -> None:
    world = World(ROLLING)
    await world.settle()
    for name in ("1", "2"):
        world.start_pod(name)
    world.restart(upgraded_images(2))
    world.all_ready()
    await world.look()
    assert images_of(template(world)) == OLD
    assert KEY in world.called


async def test_what_is_taken_without_a_turn_holds_up_nobody() -> None:
    world = await of_class()
    await _crash(world)
    assert world.verdict("Degraded")[0] == "True"
    write_class(world, {"pod": {"nodeSelector": {"disk": "nvme"}}})
    await world.settle()
    assert template(world)["spec"]["nodeSelector"] == {"disk": "nvme"}
    assert world.turns.may_begin(OTHER)


async def test_an_edit_of_a_class_that_is_taken_back_waits_as_well() -> None:
    world = await of_class()
    before = revision(world)
    write_class(world, {"pod": {"nodeSelector": {"disk": "nvme"}}})
    await world.settle()
    await all_replaced(world)
    world.turns.note(OTHER, ROLLS, waits=False)
    write_class(world, {})
    await world.settle()
    assert template(world)["spec"]["nodeSelector"] == {"disk": "nvme"}
    world.turns.note(OTHER, SETTLED, waits=False)
    await world.settle()
    assert revision(world) == before
    assert len(world.revisions()) == 2


async def test_an_edit_that_is_not_about_pods_brings_no_waiting_edit_of_a_class() -> None:
    world = await of_class()
    before = template(world)
    world.turns.note(OTHER, FAILED, waits=False)
    write_class(world, {"pod": {"nodeSelector": {"disk": "nvme"}}})
    await world.settle()
    world.spec({**CLASSED, "batching": {"maxBatchSize": 7}})
    await world.settle()
    assert template(world) == before
    world.spec({**CLASSED, "model": {"handler": "simulated", "env": {"LEVEL": "9"}}})
    await world.settle()
    assert template(world)["spec"]["nodeSelector"] == {"disk": "nvme"}


async def test_what_could_not_be_applied_is_not_called_up_to_date() -> None:
    world = await serving(ROLLING)
    world.restart(upgraded_images(2))
    world.cluster.failures[Kind.DEPLOYMENT] = Invalid("no such image")
    with pytest.raises(Invalid):
        await world.look()
    assert world.verdict("UpToDate") == ("Unknown", "ReconcileFailed")


async def test_a_status_that_nobody_takes_brings_no_look_after_the_other() -> None:
    world = World(ROLLING)
    await world.settle()
    for name in ("1", "2"):
        world.start_pod(name)
    world.restart(upgraded_images(2))
    world.all_ready()
    world.cluster.status_failure = Refused("no status of this one")
    await world.look()
    assert KEY not in world.called


async def test_a_model_that_is_deleted_in_its_turn_leaves_it() -> None:
    world = await serving(ROLLING)
    world.restart(upgraded_images(2))
    await world.settle()
    assert not world.turns.may_begin(OTHER)
    world.cluster.status_failure = Gone("its namespace is being deleted")
    world.deployment_status(replicas=2, readyReplicas=1, availableReplicas=1, updatedReplicas=1)
    await world.look()
    assert world.turns.may_begin(OTHER)


async def test_what_an_author_does_to_a_model_that_was_replaced_holds_up_nobody() -> None:
    world = await _upgraded()
    world.spec({**ROLLING, "replicas": 5})
    await world.settle()
    assert "cause" not in rollout(world)
    await _crash(world)
    assert world.verdict("Degraded")[0] == "True"
    assert world.turns.may_begin(OTHER)


async def test_an_edit_of_one_that_is_degraded_lets_nobody_go() -> None:
    world = await _upgraded()
    await _crash(world)
    world.spec({**ROLLING, "replicas": 5})
    await world.settle()
    assert not world.turns.may_begin(OTHER)
