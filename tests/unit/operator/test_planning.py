"""What is planned for what is seen, one sentence each, at an API server in memory."""

import itertools
from typing import Any

import pytest

from batchedmodel_contract.kubernetes_names import BATCHING_HASH_ANNOTATION
from batchedmodel_operator.errors import (
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    QuotaExceeded,
    Unreachable,
)
from batchedmodel_operator.kinds import CHILDREN, Kind
from support.operator_world import KEY, SIMULATED, World

SCALED = {**SIMULATED, "autoscaling": {"minReplicas": 2, "maxReplicas": 5}}
SMALLER = {**SIMULATED, "batching": {"maxBatchSize": 8, "requestTimeoutSeconds": 90}}


async def test_a_new_model_gets_all_children_but_an_autoscaler() -> None:
    world = World()
    await world.settle()
    assert [kind for kind in CHILDREN if world.has(kind)] == [
        Kind.CONFIG_MAP,
        Kind.SERVICE,
        Kind.DEPLOYMENT,
    ]


async def test_a_second_look_writes_nothing_and_the_next_is_far_away() -> None:
    world = World()
    await world.settle()
    before = world.cluster.writes
    assert await world.look() == 600
    assert world.cluster.writes == before


async def test_a_model_that_is_gone_is_forgotten() -> None:
    world = World()
    await world.settle()
    world.remove(Kind.BATCHED_MODEL)
    assert await world.look() is None


async def test_children_of_a_model_that_is_going_are_left_to_the_garbage_collector() -> None:
    world = World()
    await world.settle()
    world.edit(Kind.BATCHED_MODEL, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    world.remove(Kind.SERVICE)
    assert await world.look() is None
    assert not world.has(Kind.SERVICE)


async def test_with_an_autoscaler_a_deployment_begins_with_the_fewest() -> None:
    world = World(SCALED)
    await world.settle()
    assert world.child(Kind.DEPLOYMENT)["spec"]["replicas"] == 2
    assert world.child(Kind.AUTOSCALER)["spec"]["maxReplicas"] == 5


async def test_an_autoscaler_that_is_switched_on_begins_with_what_is_there() -> None:
    world = World({**SIMULATED, "replicas": 4})
    await world.settle()
    world.spec(SCALED)
    await world.settle()
    assert world.child(Kind.DEPLOYMENT)["spec"]["replicas"] == 4


async def test_an_autoscaler_that_is_switched_on_at_zero_begins_with_the_fewest() -> None:
    world = World({**SIMULATED, "replicas": 0})
    await world.settle()
    world.spec(SCALED)
    await world.settle()
    assert world.child(Kind.DEPLOYMENT)["spec"]["replicas"] == 2


async def test_an_autoscaler_that_is_switched_off_goes_and_the_number_is_the_persons() -> None:
    world = World(SCALED)
    await world.settle()
    world.edit(Kind.DEPLOYMENT, {"spec": {"replicas": 5}})
    world.spec({**SIMULATED, "replicas": 3})
    await world.settle()
    assert not world.has(Kind.AUTOSCALER)
    assert world.child(Kind.DEPLOYMENT)["spec"]["replicas"] == 3


async def test_a_deployment_that_is_scaled_during_the_hand_over_keeps_its_number() -> None:
    world = World({**SIMULATED, "replicas": 4})
    await world.settle()
    world.spec(SCALED)
    # The pods are read last, so this comes between the look at the Deployment and the steps.
    world.cluster.before_pods = lambda: world.edit(Kind.DEPLOYMENT, {"spec": {"replicas": 5}})
    with pytest.raises(Conflict):
        await world.look()
    world.cluster.before_pods = lambda: None
    await world.settle()
    assert world.child(Kind.DEPLOYMENT)["spec"]["replicas"] == 5


async def test_a_suspended_model_has_no_pods_and_keeps_its_other_children() -> None:
    world = World({**SIMULATED, "replicas": 4})
    await world.settle()
    before = {kind for kind in CHILDREN if world.has(kind)}
    world.spec({**SIMULATED, "replicas": 4, "suspend": True})
    await world.settle()
    assert world.child(Kind.DEPLOYMENT)["spec"]["replicas"] == 0
    assert {kind for kind in CHILDREN if world.has(kind)} == before
    world.spec({**SIMULATED, "replicas": 4})
    await world.settle()
    assert world.child(Kind.DEPLOYMENT)["spec"]["replicas"] == 4


async def test_a_suspended_model_keeps_its_autoscaler_and_wakes_with_the_fewest() -> None:
    world = World(SCALED)
    await world.settle()
    world.edit(Kind.DEPLOYMENT, {"spec": {"replicas": 5}})
    world.spec({**SCALED, "suspend": True})
    await world.settle()
    assert world.child(Kind.DEPLOYMENT)["spec"]["replicas"] == 0
    assert world.has(Kind.AUTOSCALER)
    world.edit(Kind.DEPLOYMENT, {"spec": {"replicas": 3}})
    await world.settle()
    assert world.child(Kind.DEPLOYMENT)["spec"]["replicas"] == 0, "nobody wakes it by the back door"
    world.spec(SCALED)
    await world.settle()
    assert world.child(Kind.DEPLOYMENT)["spec"]["replicas"] == 2
    world.edit(Kind.DEPLOYMENT, {"spec": {"replicas": 5}})
    await world.settle()
    assert world.child(Kind.DEPLOYMENT)["spec"]["replicas"] == 5


async def test_a_model_that_begins_suspended_begins_without_pods() -> None:
    world = World({**SCALED, "suspend": True})
    await world.settle()
    assert world.child(Kind.DEPLOYMENT)["spec"]["replicas"] == 0


async def test_a_budget_comes_and_goes_with_the_second_pod() -> None:
    world = World()
    await world.settle()
    assert not world.has(Kind.DISRUPTION_BUDGET)
    world.spec({**SIMULATED, "replicas": 2})
    await world.settle()
    assert world.child(Kind.DISRUPTION_BUDGET)["spec"]["maxUnavailable"] == 1
    world.spec(SIMULATED)
    await world.settle()
    assert not world.has(Kind.DISRUPTION_BUDGET)


async def test_what_an_autoscaler_scales_is_no_drift() -> None:
    world = World(SCALED)
    await world.settle()
    world.edit(Kind.DEPLOYMENT, {"spec": {"replicas": 5}})
    before = world.child(Kind.DEPLOYMENT)["metadata"]["resourceVersion"]
    await world.settle()
    assert world.child(Kind.DEPLOYMENT)["metadata"]["resourceVersion"] == before


async def test_a_batching_edit_changes_the_config_map_only() -> None:
    world = World()
    await world.settle()
    before = _generation(world)
    settings = world.settings()
    world.spec(SMALLER)
    await world.settle()
    assert world.settings() != settings
    assert _generation(world) == before


async def test_the_next_revision_is_made_for_the_batch_settings_of_its_time() -> None:
    world = World()
    await world.settle()
    world.spec(SMALLER)
    await world.settle()
    world.spec({**SMALLER, "drain": {"delaySeconds": 0}})
    await world.settle()
    pod = world.child(Kind.DEPLOYMENT)["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 95 + 15


async def test_a_person_may_restart_pods_and_is_not_fought() -> None:
    world = World()
    await world.settle()
    restarted = {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
    world.edit(Kind.DEPLOYMENT, {"spec": {"template": {"metadata": {"annotations": restarted}}}})
    await world.settle()
    template = world.child(Kind.DEPLOYMENT)["spec"]["template"]
    assert template["metadata"]["annotations"] == restarted


async def test_a_strangers_object_is_named_and_the_others_are_made() -> None:
    world = World()
    stranger = {"name": KEY.name, "namespace": KEY.namespace}
    world.cluster.put({"apiVersion": "v1", "kind": "Service", "metadata": stranger})
    await world.settle()
    assert world.verdict("Reconciled") == ("False", "NameConflict")
    said = world.condition("Reconciled")["message"]
    assert said == (
        "Service minilm exists and is none of this BatchedModel's; delete or rename one"
    )
    assert world.verdict("Ready") == ("False", "ReconcileFailed")
    assert "ownerReferences" not in world.child(Kind.SERVICE)["metadata"]
    assert world.has(Kind.DEPLOYMENT)
    assert await world.look() == 60, "strangers are not watched"


@pytest.mark.parametrize(
    ("metadata", "owner"),
    [
        (
            {
                "ownerReferences": [
                    {"kind": "Team", "name": "a", "uid": "8"},
                    {"kind": "Shop", "name": "web", "uid": "9", "controller": True},
                ]
            },
            "it belongs to Shop web",
        ),
        ({"managedFields": [{"manager": "helm"}]}, "it was made by helm"),
    ],
)
async def test_a_stranger_is_named_as_far_as_its_object_says(
    metadata: dict[str, Any], owner: str
) -> None:
    world = World()
    place = {"name": KEY.name, "namespace": KEY.namespace}
    world.cluster.put({"apiVersion": "v1", "kind": "Service", "metadata": place | metadata})
    await world.settle()
    assert f"Service minilm exists ({owner})" in world.condition("Reconciled")["message"]


@pytest.mark.parametrize("kind", CHILDREN[:3])
async def test_a_child_of_an_earlier_model_of_the_name_is_waited_for(kind: Kind) -> None:
    world = World()
    await world.settle()
    owner = {**world.child(kind)["metadata"]["ownerReferences"][0], "uid": "earlier"}
    world.edit(kind, {"metadata": {"ownerReferences": [owner]}})
    assert await world.look() == 2
    assert world.verdict("Reconciled") == ("False", "WaitingForDeletion")
    world.remove(kind)
    await world.settle()
    assert world.verdict("Reconciled") == ("True", "Applied")


async def test_a_child_that_is_being_deleted_is_waited_for() -> None:
    world = World(SCALED)
    await world.settle()
    world.edit(Kind.DEPLOYMENT, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    await world.look()
    assert world.verdict("Reconciled") == ("False", "WaitingForDeletion")
    assert world.has(Kind.AUTOSCALER), "it will be needed again"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Forbidden("no right"), "Forbidden"),
        (QuotaExceeded("exceeded quota: none"), "QuotaExceeded"),
        (Invalid("spec.template: bad"), "InvalidPodTemplate"),
        (Unreachable("webhook timed out"), "ApiError"),
    ],
)
async def test_a_refusal_is_named_and_tried_again(error: Any, reason: str) -> None:
    world = World()
    world.cluster.failures[Kind.DEPLOYMENT] = error
    with pytest.raises(type(error)):
        await world.look()
    assert world.verdict("Reconciled") == ("False", reason)
    assert world.has(Kind.CONFIG_MAP)
    world.cluster.failures.clear()
    await world.settle()
    assert world.verdict("Reconciled") == ("True", "Applied")


async def test_a_refusal_of_one_child_does_not_keep_the_others_back() -> None:
    world = World()
    world.cluster.failures[Kind.CONFIG_MAP] = Invalid("no")
    with pytest.raises(Invalid):
        await world.look()
    assert world.has(Kind.SERVICE)
    assert world.verdict("Reconciled") == ("False", "InvalidObject")


async def test_in_a_namespace_that_is_going_nothing_is_tried_again() -> None:
    world = World()
    world.cluster.failures[Kind.CONFIG_MAP] = Gone("is being terminated")
    assert await world.look() is not None
    assert not world.has(Kind.SERVICE)


async def test_who_was_overtaken_looks_again() -> None:
    world = World()
    world.cluster.failures[Kind.SERVICE] = Conflict("has changed")
    with pytest.raises(Conflict):
        await world.look()


async def test_a_spec_that_the_contract_refuses_is_explained_and_the_last_good_stays() -> None:
    world = World()
    await world.settle()
    before = _generation(world)
    world.spec({**SIMULATED, "batching": {"maxBatchSize": 0}})
    await world.settle()
    assert world.verdict("Reconciled") == ("False", "InvalidSpec")
    assert world.condition("Reconciled")["message"] == (
        "spec.batching.maxBatchSize: 0 is below the minimum 1"
    )
    assert _generation(world) == before


class TestBatchSettings:
    async def test_a_pod_that_has_them_already_is_left_alone(self) -> None:
        world = World()
        await world.settle()
        world.start_pod("1")
        await world.settle()
        assert world.cluster.annotated == []

    async def test_a_pod_that_was_found_to_have_them_is_not_asked_again(self) -> None:
        world = World()
        await world.settle()
        world.start_pod("1")
        await world.settle()
        await world.look()
        assert world.sidecars.asked == ["10.0.0.1"]

    async def test_an_edit_is_told_to_each_pod_once(self) -> None:
        world = await _edited()
        assert world.cluster.annotated == ["1", "2"]
        await world.look()
        assert world.cluster.annotated == ["1", "2"], "it has half a second to follow"
        world.sidecars.answers = dict.fromkeys(world.sidecars.answers, world.settings())
        world.now += 0.5
        assert await world.look() == 600
        assert world.cluster.annotated == ["1", "2"]

    async def test_it_is_in_force_when_every_pod_says_so(self) -> None:
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

    async def test_a_pod_that_looked_too_early_is_told_again_and_ever_more_seldom(self) -> None:
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

    async def test_a_pod_that_does_not_answer_is_told_once(self) -> None:
        world = World()
        await world.settle()
        world.start_pod("1")
        world.sidecars.answers.clear()
        for _ in range(100):
            world.now += 1
            await world.look()
        assert world.cluster.annotated == ["1"]
        assert len(world.sidecars.asked) < 12

    async def test_after_a_restart_pods_are_asked_but_not_told(self) -> None:
        world = await _edited()
        world.sidecars.answers = dict.fromkeys(world.sidecars.answers, world.settings())
        world.restart()
        before = world.cluster.annotated[:]
        await world.settle()
        assert world.cluster.annotated == before

    async def test_pods_are_not_told_of_settings_that_were_not_written(self) -> None:
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
    async def test_a_pod_that_starts_is_not_asked(self, status: dict[str, Any]) -> None:
        world = World()
        await world.settle()
        world.start_pod("1", **status)
        await world.settle()
        assert world.sidecars.asked == []


def _generation(world: World) -> int:
    """Counts the changes of the Deployment's spec."""
    generation: int = world.child(Kind.DEPLOYMENT)["metadata"]["generation"]
    return generation


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
