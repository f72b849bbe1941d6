"""How an edit of the batch settings reaches pods that run."""

import itertools
from typing import Any

import pytest

from batchedmodel_kube.errors import Invalid
from batchedmodel_kube.names import BATCHING_HASH_ANNOTATION
from batchedmodel_operator.kinds import Kind
from support.operator_world import KEY, SIMULATED, World

SMALLER = {**SIMULATED, "batching": {"maxBatchSize": 8, "requestTimeoutSeconds": 90}}


async def test_a_pod_that_has_them_already_is_left_alone() -> None:
    world = World()
    await world.settle()
    world.start_pod("1")
    await world.settle()
    assert world.cluster.annotated == []


async def test_a_pod_that_was_found_to_have_them_is_not_asked_again() -> None:
    world = World()
    await world.settle()
    world.start_pod("1")
    await world.settle()
    await world.look()
    assert world.sidecars.asked == ["10.0.0.1"]


async def test_an_edit_is_told_to_each_pod_once() -> None:
    world = await _edited()
    assert world.cluster.annotated == ["1", "2"]
    await world.look()
    assert world.cluster.annotated == ["1", "2"], "it has half a second to follow"
    world.sidecars.answers = dict.fromkeys(world.sidecars.answers, world.settings())
    world.now += 0.5
    assert await world.look() == 600
    assert world.cluster.annotated == ["1", "2"]


async def test_it_is_in_force_when_every_pod_says_so() -> None:
    world = await _edited()
    world.all_ready()
    world.sidecars.answers["10.0.0.1"] = world.settings()
    world.now += 0.5
    await world.look()
    assert world.verdict("Progressing") == ("True", "BatchSettingsRollingOut")
    assert world.condition("Progressing")["message"].endswith("settings: 2")
    world.sidecars.answers["10.0.0.2"] = world.settings()
    world.now += 1
    await world.look()
    assert world.verdict("Progressing") == ("False", "Complete")


@pytest.mark.slow
async def test_a_pod_that_looked_too_early_is_told_again_and_ever_more_seldom() -> None:
    world = await _edited(pods=1)
    annotations = []
    times = []
    for _ in range(300):
        world.now += 0.5
        count = len(world.cluster.annotated)
        await world.look()
        if len(world.cluster.annotated) > count:
            times.append(world.now)
            pod = world.cluster.objects[Kind.POD, KEY.namespace, "1"]
            annotations.append(pod["metadata"]["annotations"][BATCHING_HASH_ANNOTATION])
    assert len(set(annotations)) == len(annotations), "an equal annotation is no event"
    assert all(text.startswith(f"{world.settings()}.") for text in annotations)
    gaps = [round(later - earlier, 1) for earlier, later in itertools.pairwise(times)]
    assert gaps == [1, 2, 4, 8, 16, 32, 60]


async def test_a_pod_that_does_not_follow_edits_without_end_is_told_every_eight_seconds() -> None:
    world = await _edited(pods=1)
    times = [world.now]
    for number in range(60):
        world.now += 1
        world.spec({**SIMULATED, "replicas": 1, "batching": {"maxBatchSize": 40 + number}})
        count = len(world.cluster.annotated)
        await world.look()
        if len(world.cluster.annotated) > count:
            times.append(world.now)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps == [1, 1, 2, 4, *[8] * 6]
    world.sidecars.answers = dict.fromkeys(world.sidecars.answers, world.settings())
    world.now += 8
    await world.look()
    count = len(world.cluster.annotated)
    world.spec(SMALLER)
    await world.look()
    assert len(world.cluster.annotated) == count + 1, "one that followed is told at once"


async def test_an_annotation_with_a_number_of_thousands_of_digits_is_written_anew() -> None:
    world = await _edited(pods=1)
    world.now += 1
    await world.look()
    pod = world.cluster.objects[Kind.POD, KEY.namespace, "1"]
    annotations = pod["metadata"]["annotations"]
    annotations[BATCHING_HASH_ANNOTATION] = f"{world.settings()}.{'9' * 5_000}"
    for _ in range(20):
        world.now += 1
        await world.look()
    assert len(annotations[BATCHING_HASH_ANNOTATION]) < 100


async def test_a_pod_that_does_not_answer_is_told_once() -> None:
    world = World()
    await world.settle()
    world.start_pod("1")
    world.sidecars.answers.clear()
    for _ in range(100):
        world.now += 1
        await world.look()
    assert world.cluster.annotated == ["1"]
    assert len(world.sidecars.asked) < 12


async def test_after_a_restart_pods_are_asked_but_not_told() -> None:
    world = await _edited()
    world.sidecars.answers = dict.fromkeys(world.sidecars.answers, world.settings())
    world.restart()
    before = world.cluster.annotated[:]
    await world.settle()
    assert world.cluster.annotated == before


async def test_pods_are_not_told_of_settings_that_were_not_written() -> None:
    world = World()
    await world.settle()
    world.start_pod("1")
    await world.settle()
    world.spec(SMALLER)
    world.cluster.failures[Kind.CONFIG_MAP] = Invalid("no")
    with pytest.raises(Invalid):
        await world.look()
    assert world.cluster.annotated == []


@pytest.mark.parametrize(
    "status", [{"initContainerStatuses": []}, {"podIP": ""}], ids=["starting", "no address"]
)
async def test_a_pod_that_starts_is_not_asked(status: dict[str, Any]) -> None:
    world = World()
    await world.settle()
    world.start_pod("1", **status)
    await world.settle()
    assert world.sidecars.asked == []


async def _edited(pods: int = 2) -> World:
    """A world in which pods run and the batch settings were edited just now."""
    world = World({**SIMULATED, "replicas": pods})
    await world.settle()
    for number in range(pods):
        world.start_pod(str(number + 1))
    await world.settle()
    world.spec({**SMALLER, "replicas": pods})
    await world.look()
    return world
