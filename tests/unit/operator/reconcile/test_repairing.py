"""A child that somebody else changes: put right at once, and ever less often if it goes on."""

from collections.abc import Callable

import pytest

from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.observed.memory import (
    AT_ONCE,
    CALM_SECONDS,
    LONGEST_DELAY_SECONDS,
    Tries,
    asked_again,
    repaired,
)
from support.operator_world import SIMULATED, World

SCALED = {**SIMULATED, "autoscaling": {"minReplicas": 2, "maxReplicas": 5}}


async def _settled() -> World:
    world = World(SCALED)
    await world.settle()
    return world


def _most(world: World) -> int:
    found: int = world.child(Kind.AUTOSCALER)["spec"]["maxReplicas"]
    return found


def _changed(world: World) -> None:
    world.edit(Kind.AUTOSCALER, {"spec": {"maxReplicas": 50}})


async def test_a_few_changes_in_a_row_are_undone_at_once() -> None:
    world = await _settled()
    for _ in range(AT_ONCE):
        _changed(world)
        world.now += 1
        await world.look()
        assert _most(world) == 5
    assert world.verdict("Reconciled") == ("True", "Applied")


async def test_who_insists_is_met_once_a_minute_and_said() -> None:
    world = await _settled()
    repairs = 0
    for _ in range(1800):
        if _most(world) == 5:
            repairs += 1
            _changed(world)
        world.now += 1
        await world.look()
    assert repairs <= 1800 / LONGEST_DELAY_SECONDS + 2 * AT_ONCE
    assert world.verdict("Reconciled") == ("False", "Contested")
    assert "HorizontalPodAutoscaler" in world.condition("Reconciled")["message"]
    assert world.verdict("Ready") == ("False", "ReconcileFailed")


async def test_who_insists_on_zero_pods_is_met_once_a_minute_and_said() -> None:
    world = await _settled()
    repairs = 0
    for _ in range(1800):
        if world.child(Kind.DEPLOYMENT)["spec"]["replicas"]:
            repairs += 1
            world.edit(Kind.DEPLOYMENT, {"spec": {"replicas": 0}})
        world.now += 1
        await world.look()
    assert 5 < repairs <= 1800 / LONGEST_DELAY_SECONDS + 2 * AT_ONCE
    assert world.verdict("Reconciled") == ("False", "Contested")
    assert "Deployment" in world.condition("Reconciled")["message"]


async def test_the_next_repair_comes_without_an_event() -> None:
    world = await _settled()
    for _ in range(AT_ONCE + 3):
        _changed(world)
        world.now += 1
        await world.look()
    assert _most(world) == 50
    assert world.come_back_after is not None
    assert world.come_back_after < LONGEST_DELAY_SECONDS
    world.now += world.come_back_after
    await world.look()
    assert _most(world) == 5


async def test_once_they_leave_it_all_is_as_before() -> None:
    world = await _settled()
    for _ in range(AT_ONCE + 3):
        _changed(world)
        world.now += 1
        await world.look()
    for _ in range(3):
        assert world.come_back_after is not None
        world.now += world.come_back_after
        await world.look()
    assert world.verdict("Reconciled") == ("True", "Applied")
    assert world.come_back_after == 600


async def test_the_persons_own_edit_of_the_manifest_waits_for_nobody() -> None:
    world = await _settled()
    for _ in range(AT_ONCE + 3):
        _changed(world)
        world.now += 1
        await world.look()
    assert _most(world) == 50
    world.spec({**SCALED, "autoscaling": {"minReplicas": 2, "maxReplicas": 7}})
    await world.look()
    assert _most(world) == 7


@pytest.mark.parametrize(("later", "count"), [(CALM_SECONDS, 5), (CALM_SECONDS + 1, 1)])
def test_after_a_calm_a_change_counts_as_the_first(later: float, count: int) -> None:
    before = Tries(times=4, again_at=100.0)
    assert repaired(before, 100.0 + later).times == count


@pytest.mark.parametrize("again", [asked_again, repaired])
def test_delays_end_somewhere(again: Callable[[Tries | None, float], Tries]) -> None:
    """A pod that had not answered for a day once ended each plan in an overflow."""
    tries = None
    for _ in range(10_000):
        tries = again(tries, 0.0)
    assert tries is not None
    assert tries.again_at == LONGEST_DELAY_SECONDS
