"""Pods that a namespace does not let in hold up no model of another; pods that fail still do."""

from typing import Any

import pytest

from batchedmodel_kube.errors import ClusterError, Forbidden, Invalid, QuotaExceeded
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.observed.state import Key
from batchedmodel_operator.reconcile.turns import SETTLED, Standing
from batchedmodel_operator.render import images_of
from support.operator_world import World
from support.rollout_world import (
    CRASHING,
    CREATING,
    IN_PLACE,
    PULLING,
    ROLLING,
    all_replaced,
    of_class,
    rollout,
    serving,
    template,
    upgraded_images,
    write_class,
)

OTHER = Key(namespace="elsewhere", name="another")
ROLLS = Standing(rolls=True, failed=False)
QUOTA = 'pods "x" is forbidden: exceeded quota: small, requested: cpu=1, used: cpu=2, limited: 2'
LIMITS = 'pods "x" is forbidden: maximum cpu usage per Container is 500m, but limit is 1'
WEBHOOK = 'admission webhook "policy.team" denied the request: not on a Friday'
UNSAID = 'pods "x" is forbidden: failed quota: small: must specify limits.memory for: model'
ACCOUNT = 'error looking up service account team/m: serviceaccount "m" not found'


def _refuse(world: World, message: str, **status: int) -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "message": message}
    counts = {"replicas": 2, "readyReplicas": 2, "availableReplicas": 2, **status}
    world.deployment_status(conditions=[failure], **counts)


async def _upgrading(spec: dict[str, Any] = ROLLING) -> World:
    world = await serving(spec)
    world.restart(upgraded_images(2))
    await world.settle()
    assert not world.turns.may_begin(OTHER)
    return world


@pytest.mark.parametrize("message", [QUOTA, ACCOUNT])
async def test_the_place_is_left_to_others_while_no_new_pod_is_let_in(message: str) -> None:
    world = await _upgrading()
    world.turns.note(OTHER, SETTLED, waits=True)
    _refuse(world, message)
    await world.settle()
    assert OTHER in world.called
    assert world.turns.may_begin(OTHER)
    assert world.verdict("CapacityAvailable")[0] == "False"
    assert rollout(world)["cause"] == "Upgrade"
    # Another operator knows as much.
    world.restart(upgraded_images(2))
    await world.settle()
    assert world.turns.may_begin(OTHER)


async def test_it_goes_on_by_itself_once_it_is_let_in_and_holds_its_place_then() -> None:
    world = await _upgrading()
    _refuse(world, QUOTA)
    await world.settle()
    world.start_pod("3", **CREATING)
    world.deployment_status(replicas=3, readyReplicas=2, availableReplicas=2, updatedReplicas=1)
    await world.settle()
    assert not world.turns.may_begin(OTHER)
    await all_replaced(world)
    world.remove_pod("3")
    world.all_ready()
    await world.settle()
    assert world.verdict("UpToDate") == ("True", "UpToDate")
    assert world.turns.may_begin(OTHER)


@pytest.mark.parametrize("status", [CRASHING, PULLING, CREATING], ids=["crash", "pull", "start"])
async def test_pods_that_came_are_judged_before_what_keeps_the_others_out(
    status: dict[str, Any],
) -> None:
    world = await _upgrading()
    world.start_pod("3", **status)
    _refuse(world, QUOTA, replicas=3, updatedReplicas=1)
    await world.settle()
    assert not world.turns.may_begin(OTHER)


@pytest.mark.parametrize("message", [LIMITS, WEBHOOK, UNSAID])
async def test_a_rule_that_may_be_everybodys_is_seen_on_the_first(message: str) -> None:
    world = await _upgrading()
    _refuse(world, message)
    await world.settle()
    assert world.verdict("CapacityAvailable") == ("False", "InvalidPodTemplate")
    assert not world.turns.may_begin(OTHER)


@pytest.mark.parametrize("message", [QUOTA, WEBHOOK])
async def test_a_pod_that_serves_does_not_hide_one_that_fails_beside_one_that_is_kept_out(
    message: str,
) -> None:
    world = await _upgrading()
    world.start_pod("3")
    world.start_pod("4", **CRASHING)
    _refuse(world, message, replicas=4, readyReplicas=3, availableReplicas=3, updatedReplicas=2)
    await world.settle()
    assert not world.turns.may_begin(OTHER)


@pytest.mark.parametrize("message", [QUOTA, ACCOUNT, WEBHOOK, LIMITS])
async def test_whatever_costs_a_pod_is_seen_on_the_first(message: str) -> None:
    world = await _upgrading({**ROLLING, "rollout": IN_PLACE})
    world.remove_pod("1")
    _refuse(world, message, replicas=1, readyReplicas=1, availableReplicas=1)
    await world.settle()
    assert world.verdict("Degraded") == ("True", "PartialReplicas")
    assert not world.turns.may_begin(OTHER)


async def test_what_was_refused_before_lets_nobody_by_when_newer_images_begin() -> None:
    world = await _upgrading()
    world.turns.note(OTHER, SETTLED, waits=True)
    _refuse(world, QUOTA)
    await world.settle()
    world.called.clear()
    world.restart(upgraded_images(3))
    world.turns.note(OTHER, SETTLED, waits=True)
    await world.settle()
    body = world.child(Kind.DEPLOYMENT)
    assert body["status"]["observedGeneration"] < body["metadata"]["generation"]
    assert OTHER not in world.called
    assert not world.turns.may_begin(OTHER)


async def test_what_is_degraded_since_holds_up_others_whatever_else_is_refused() -> None:
    world = await _upgrading()
    await all_replaced(world)
    world.all_ready()
    await world.settle()
    assert world.turns.may_begin(OTHER)
    for name in ("1", "2"):
        world.start_pod(name, **CRASHING)
    _refuse(world, WEBHOOK, readyReplicas=0, availableReplicas=0, updatedReplicas=2)
    await world.settle()
    assert not world.turns.may_begin(OTHER)


@pytest.mark.parametrize(("message", "let_go"), [(QUOTA, True), (ACCOUNT, False), (WEBHOOK, False)])
async def test_what_an_edited_class_may_be_at_fault_for_is_seen_on_the_first(
    message: str, let_go: bool
) -> None:
    world = await of_class()
    write_class(world, {"pod": {"priorityClassName": "not-there"}})
    await world.settle()
    _refuse(world, message)
    await world.settle()
    assert world.turns.may_begin(OTHER) is let_go


@pytest.mark.parametrize(
    "error",
    [
        Forbidden("the webhook says no"),
        QuotaExceeded("exceeded quota: small"),
        Invalid("spec.template: Invalid value"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_deployment_that_is_refused_gives_its_turn_back(error: ClusterError) -> None:
    world = await serving(ROLLING)
    before = template(world)
    world.restart(upgraded_images(2))
    world.turns.note(OTHER, ROLLS, waits=False)
    await world.settle()
    world.turns.note(OTHER, SETTLED, waits=False)
    world.cluster.failures[Kind.DEPLOYMENT] = error
    with pytest.raises(type(error)):
        await world.look()
    assert world.turns.may_begin(OTHER)
    assert template(world) == before
    assert world.verdict("Reconciled")[0] == "False"

    # Somebody else has the place: it waits as before, and is called when it is free.
    world.turns.note(OTHER, ROLLS, waits=False)
    await world.settle()
    assert world.verdict("UpToDate") == ("False", "WaitingForTurn")
    del world.cluster.failures[Kind.DEPLOYMENT]
    world.turns.note(OTHER, SETTLED, waits=False)
    await world.settle()
    assert images_of(template(world))["batcher"] == "registry.example/sidecar:2"


async def test_one_that_tries_again_has_a_place_for_it() -> None:
    world = await serving(ROLLING)
    world.restart(upgraded_images(2))
    world.cluster.failures[Kind.DEPLOYMENT] = Forbidden("the webhook says no")
    with pytest.raises(Forbidden):
        await world.look()
    world.cluster.failures.clear()
    held: list[bool] = []
    apply = world.cluster.apply

    async def looked(*given: Any, **named: Any) -> Any:
        held.append(not world.turns.may_begin(OTHER))
        return await apply(*given, **named)

    world.cluster.apply = looked  # type: ignore[method-assign]
    await world.look()
    assert held
    assert all(held)


async def test_a_model_that_may_not_be_read_any_more_gives_its_place_back() -> None:
    world = await _upgrading()
    world.turns.note(OTHER, SETTLED, waits=True)

    world.cluster.hidden[Kind.BATCHED_MODEL] = Forbidden("cannot list resource")
    with pytest.raises(Forbidden):
        await world.look()
    assert world.turns.may_begin(OTHER)
    assert OTHER in world.called
