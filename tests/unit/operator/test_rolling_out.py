"""A rollout from its edit to its end, at an API server in memory."""

from datetime import timedelta

import pytest

from support.rollout_world import (
    ANOTHER,
    BETTER,
    GOOD,
    IN_PLACE,
    LACKING,
    SURGE,
    budget,
    count,
    edited,
    revision,
    rollout,
    serving,
)


async def test_a_surge_that_finds_no_accelerator_becomes_a_rollout_in_place() -> None:
    world = await serving(GOOD)
    assert budget(world) == SURGE
    await edited(world, BETTER, **LACKING)
    assert world.verdict("Progressing") == ("True", "NewRevisionRollingOut")
    assert world.come_back_after is not None
    assert world.come_back_after <= 60
    world.now += 59
    await world.look()
    assert budget(world) == SURGE
    world.now += 1
    await world.settle()
    assert budget(world) == IN_PLACE
    assert world.verdict("Progressing") == ("True", "SwitchedToInPlace")
    assert "spec.rollout.switchAfterSeconds" in world.condition("Progressing")["message"]
    assert world.verdict("CapacityAvailable") == ("False", "InsufficientAccelerator")
    assert count(world, "SwitchedToInPlace") == 1
    assert (rollout(world)["strategy"], rollout(world)["strategyLatched"]) == ("InPlace",) * 2

    # The room was made, a pod has moved in, and another operator has taken over.
    world.remove_pod("1")
    world.remove_pod("3")
    world.start_pod("3")
    world.restart()
    world.now += 600
    await world.settle()
    assert budget(world) == IN_PLACE
    world.remove_pod("2")
    world.start_pod("4")
    world.all_ready()
    await world.settle()
    assert world.verdict("Progressing") == ("False", "Complete")
    assert count(world, "SwitchedToInPlace") == 1

    world.spec(ANOTHER)
    await world.settle()
    assert budget(world) == SURGE, "another edit tries again"
    assert "strategyLatched" not in rollout(world)


async def test_the_only_pod_goes_on_serving_while_a_node_for_the_new_one_may_come() -> None:
    one = {"replicas": 1, "rollout": {}}
    world = await serving({**GOOD, **one})
    assert budget(world) == SURGE
    await edited(world, {**BETTER, **one}, **LACKING)
    world.now += 599
    await world.look()
    assert budget(world) == SURGE
    world.now += 1
    await world.settle()
    assert budget(world) == IN_PLACE


async def test_another_operator_goes_on_counting_how_long_a_pod_has_waited() -> None:
    world = await serving(GOOD)
    await edited(world, BETTER, **LACKING)
    world.now += 59
    world.restart()
    await world.look()
    assert budget(world) == SURGE
    assert world.come_back_after is not None
    assert world.come_back_after <= 1
    world.now += 1
    await world.look()
    assert budget(world) == IN_PLACE


async def test_a_pod_waits_since_no_node_was_found_for_it() -> None:
    world = await serving(GOOD)
    [scheduled] = LACKING["conditions"]
    earlier = {**scheduled, "lastTransitionTime": world.calendar(ago=50).isoformat()}
    await edited(world, BETTER, **{**LACKING, "conditions": [earlier]})
    assert budget(world) == SURGE
    world.now += 10
    await world.look()
    assert budget(world) == IN_PLACE


@pytest.mark.parametrize("written", ["0000-01-01T00:00:00Z", "soon", ""])
async def test_a_time_that_no_calendar_has_holds_up_no_reconcile(written: str) -> None:
    world = await serving(GOOD)
    [scheduled] = LACKING["conditions"]
    odd = {**scheduled, "lastTransitionTime": written}
    await edited(world, BETTER, **{**LACKING, "conditions": [odd]})
    assert world.verdict("Reconciled") == ("True", "Applied")


@pytest.mark.parametrize("jump", [timedelta(hours=-1), timedelta(days=-400)])
async def test_a_clock_that_is_set_back_holds_up_no_rollout(jump: timedelta) -> None:
    world = await serving(GOOD)
    [scheduled] = LACKING["conditions"]
    since = {**scheduled, "lastTransitionTime": world.calendar().isoformat()}
    await edited(world, BETTER, **{**LACKING, "conditions": [since]})
    world.calendar_jump = jump
    world.now += 59
    await world.look()
    assert budget(world) == SURGE
    assert world.come_back_after is not None
    assert world.come_back_after <= 1
    world.now += 1
    await world.look()
    assert budget(world) == IN_PLACE


async def test_an_explicit_surge_waits_for_as_long_as_it_takes() -> None:
    world = await serving({**GOOD, "rollout": {"strategy": "Surge"}})
    await edited(world, {**BETTER, "rollout": {"strategy": "Surge"}}, **LACKING)
    world.now += 10_000
    await world.settle()
    assert budget(world) == SURGE
    assert world.verdict("Progressing") == ("True", "NewRevisionRollingOut")


async def test_an_edit_in_the_middle_changes_the_target_and_not_the_budget() -> None:
    world = await serving(GOOD)
    await edited(world, BETTER, conditions=[])
    before = revision(world)
    world.spec({**ANOTHER, "replicas": 1})
    await world.settle()
    assert revision(world) != before
    assert budget(world) == SURGE, "although one replica alone would go in place"


async def test_a_shortage_that_is_known_goes_in_place_at_once() -> None:
    world = await serving({**GOOD, "replicas": 3})
    world.start_pod("3", **LACKING)
    await world.settle()
    world.spec({**BETTER, "replicas": 3})
    await world.settle()
    assert budget(world) == IN_PLACE
    assert rollout(world)["strategyReason"] == "AcceleratorScarce"
