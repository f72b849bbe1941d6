"""What is planned for what is seen, one sentence each, at an API server in memory."""

import pytest

from batchedmodel_kube.errors import Conflict, Unreachable
from batchedmodel_operator.kinds import CHILDREN, Kind
from batchedmodel_operator.observed.state import holds_replicas
from support.operator_world import KEY, SIMULATED, World, manifest

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


async def test_a_second_reconcile_writes_nothing_and_the_next_is_far_away() -> None:
    world = World()
    await world.settle()
    before = world.cluster.writes
    assert await world.look() == 600
    assert world.cluster.writes == before


async def test_a_report_is_never_given_to_another_model_of_the_name() -> None:
    world = World()
    await world.settle()
    world.spec(SMALLER)

    def replaced() -> None:
        world.remove(Kind.BATCHED_MODEL)
        world.cluster.put(manifest())

    world.cluster.before_pods = replaced
    with pytest.raises(Conflict):
        await world.look()
    body = world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]
    assert "status" not in body


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


async def test_one_reconcile_makes_all_that_a_new_model_with_an_autoscaler_needs() -> None:
    world = World(SCALED)
    await world.look()
    before = {kind for kind in CHILDREN if world.has(kind)}
    assert before == set(CHILDREN)
    assert not holds_replicas(world.child(Kind.DEPLOYMENT))
    assert world.verdict("Reconciled") == ("True", "Applied")
    writes = world.cluster.writes
    await world.look()
    assert world.cluster.writes == writes


async def test_the_api_server_is_read_at_an_edit_and_before_children_are_made() -> None:
    world = World(SCALED)
    await world.look()
    assert world.cluster.reads >= len(CHILDREN), "whether all names are free"
    world.start_pod("1")
    world.all_ready()
    await world.settle()
    before = world.cluster.reads
    for _ in range(10):
        await world.look()
    world.spec({**SCALED, "batching": {"maxBatchSize": 7}})
    await world.settle()
    assert world.cluster.reads == before + 1, "a watch may show an edit by an earlier definition"


async def test_children_without_a_report_are_met_all_the_same() -> None:
    world = World(SCALED)
    await world.settle()
    before = {kind: world.child(kind)["metadata"]["uid"] for kind in CHILDREN}
    # As a backup brings it back, or an operator that was killed before its first report leaves it.
    del world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]["status"]
    world.restart()
    await world.look()
    assert {kind: world.child(kind)["metadata"]["uid"] for kind in CHILDREN} == before
    assert world.verdict("Reconciled") == ("True", "Applied")


async def test_what_one_reconcile_could_not_make_the_next_one_does() -> None:
    world = World(SCALED)
    world.cluster.failures[Kind.AUTOSCALER] = Unreachable("no answer")
    with pytest.raises(Unreachable):
        await world.look()
    assert world.has(Kind.DEPLOYMENT)
    assert not world.has(Kind.AUTOSCALER)
    del world.cluster.failures[Kind.AUTOSCALER]
    await world.look()
    assert world.has(Kind.AUTOSCALER)


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


async def test_an_autoscaled_model_that_was_scaled_to_zero_by_hand_gets_its_fewest_pods() -> None:
    """An autoscaler does nothing at 0, so nobody else would end it."""
    world = World(SCALED)
    await world.settle()
    world.edit(Kind.DEPLOYMENT, {"spec": {"replicas": 0}})
    await world.settle()
    assert world.child(Kind.DEPLOYMENT)["spec"]["replicas"] == 2
    world.edit(Kind.DEPLOYMENT, {"spec": {"replicas": 5}})
    await world.settle()
    assert world.child(Kind.DEPLOYMENT)["spec"]["replicas"] == 5


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
    assert template["metadata"]["annotations"].items() >= restarted.items()


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


def _generation(world: World) -> int:
    """Counts the changes of the Deployment's spec."""
    generation: int = world.child(Kind.DEPLOYMENT)["metadata"]["generation"]
    return generation
