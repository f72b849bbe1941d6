"""What is planned where something is in the way: strangers, refusals, what is going."""

from typing import Any

import pytest

from batchedmodel_kube.errors import (
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NameTaken,
    QuotaExceeded,
    Unreachable,
)
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.kinds import CHILDREN, Kind, child_name
from support.operator_world import KEY, SIMULATED, World, manifest


@pytest.mark.parametrize("kind", CHILDREN)
async def test_while_a_stranger_has_a_name_nothing_is_made(kind: Kind) -> None:
    """Half a model would serve nobody, and hold devices."""
    world = World({**SIMULATED, "autoscaling": {"minReplicas": 2, "maxReplicas": 5}})
    name = child_name(kind, KEY.name)
    place = {"name": name, "namespace": KEY.namespace}
    world.cluster.put({"apiVersion": "v1", "kind": kind.value, "metadata": place})
    await world.settle()
    assert world.verdict("Reconciled") == ("False", "NameConflict")
    said = world.condition("Reconciled")["message"]
    assert said == (
        f"{kind} {name} exists and is none of this BatchedModel's; delete or rename one: nothing "
        "new is made before"
    )
    assert world.verdict("Ready") == ("False", "ReconcileFailed")
    assert world.verdict("UpToDate") == ("Unknown", "ReconcileFailed")
    assert "ownerReferences" not in world.child(kind)["metadata"]
    assert [one for one in CHILDREN if world.has(one)] == [kind]
    assert world.revisions() == []
    assert await world.look() == 60, "strangers are not watched"
    world.remove(kind)
    await world.settle()
    assert world.verdict("Reconciled") == ("True", "Applied")
    assert all(world.has(one) for one in CHILDREN)


async def test_what_a_model_has_is_kept_as_it_should_be_while_a_stranger_has_a_name() -> None:
    world = World()
    await world.settle()
    place = {"name": KEY.name, "namespace": KEY.namespace}
    world.cluster.put({"apiVersion": "v1", "kind": Kind.AUTOSCALER.value, "metadata": place})
    scaled = {"minReplicas": 2, "maxReplicas": 5}
    world.spec({**SIMULATED, "autoscaling": scaled, "batching": {"maxBatchSize": 7}})
    await world.settle()
    assert world.verdict("Reconciled") == ("False", "NameConflict")
    assert '"max_batch_size": 7' in world.child(Kind.CONFIG_MAP)["data"]["batching.json"]
    assert not world.has(Kind.DISRUPTION_BUDGET)


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
        (
            # As the API server sorts them: by operation, then by time, then by manager.
            {
                "managedFields": [
                    {"manager": "labeller", "operation": "Apply", "time": "2026-01-01T00:00:09Z"},
                    {
                        "manager": "kube-controller-manager",
                        "operation": "Update",
                        "time": "2026-01-01T00:00:05Z",
                        "subresource": "status",
                    },
                    {"manager": "kubectl-create", "time": "2026-01-01T00:00:05Z"},
                    {"manager": "kubectl-edit", "time": "2026-01-01T00:00:07Z"},
                ]
            },
            "it was made by kubectl-create",
        ),
        (
            {
                "managedFields": [
                    {
                        "manager": "labeller",
                        "time": "2026-01-01T00:00:05Z",
                        "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}},
                    },
                    {
                        "manager": "terraform",
                        "time": "2026-01-01T00:00:05Z",
                        "fieldsV1": {"f:spec": {"f:ports": {}, "f:selector": {}, "f:type": {}}},
                    },
                ]
            },
            "it was made by terraform",
        ),
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
async def test_what_a_stranger_makes_between_reconcile_and_apply_stays_his(kind: Kind) -> None:
    world = World()
    await world.settle()
    world.remove(kind)
    place = {"name": child_name(kind, KEY.name), "namespace": KEY.namespace}
    theirs = {"apiVersion": "v1", "kind": kind.value, "metadata": place, "spec": {"theirs": 1}}

    read = world.cluster.read

    async def appears(one: Kind, namespace: str, name: str) -> Body | None:
        found = await read(one, namespace, name)
        if one is kind:
            world.cluster.put(theirs)
        return found

    world.cluster.read = appears  # type: ignore[method-assign, assignment]
    with pytest.raises(Conflict):
        await world.look()
    world.cluster.read = read  # type: ignore[method-assign]
    assert world.child(kind)["spec"]["theirs"] == 1
    assert "ownerReferences" not in world.child(kind)["metadata"]
    await world.settle()
    assert world.verdict("Reconciled") == ("False", "NameConflict")


async def test_a_strangers_template_is_neither_used_nor_taken_over() -> None:
    world = World()
    await world.settle()
    (name,) = world.revisions()
    world.cluster.remove(Kind.CONTROLLER_REVISION, KEY.namespace, name)
    place = {"name": name, "namespace": KEY.namespace}
    theirs = {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": place}
    before = dict(world.cluster.put({**theirs, "data": {"theirs": 1}}))
    before["metadata"] = dict(before["metadata"])
    with pytest.raises(NameTaken):
        await world.look()
    assert world.cluster.objects[Kind.CONTROLLER_REVISION, KEY.namespace, name] == before
    assert world.verdict("Reconciled") == ("False", "NameConflict")
    assert name in world.condition("Reconciled")["message"]
    world.cluster.remove(Kind.CONTROLLER_REVISION, KEY.namespace, name)
    await world.settle()
    assert world.verdict("Reconciled") == ("True", "Applied")


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
    world = World({**SIMULATED, "autoscaling": {"minReplicas": 2, "maxReplicas": 5}})
    await world.settle()
    world.edit(Kind.DEPLOYMENT, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    await world.look()
    assert world.verdict("Reconciled") == ("False", "WaitingForDeletion")
    assert world.has(Kind.AUTOSCALER), "it will be needed again"


@pytest.mark.parametrize(("waited", "delay"), [(1.0, 2.0), (40.0, 10.0), (3600.0, 60.0)])
async def test_a_child_that_cannot_go_is_looked_at_ever_more_rarely(
    waited: float, delay: float
) -> None:
    """Somebody may have put a finalizer on it; its end makes an event."""
    world = World()
    await world.settle()
    since = world.calendar(ago=waited).isoformat()
    world.edit(Kind.DEPLOYMENT, {"metadata": {"deletionTimestamp": since}})
    assert await world.look() == delay


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


async def test_while_a_namespace_goes_events_apply_nothing() -> None:
    world = World()
    await world.settle()
    world.spec({"model": {"handler": "simulated", "env": {"A": "b"}}})
    world.cluster.failures[Kind.CONTROLLER_REVISION] = Gone("is being terminated")
    await world.look()
    tried = world.cluster.applies
    for _ in range(20):
        world.now += 1
        delay = await world.look()
    assert world.cluster.applies == tried
    assert delay is not None
    assert delay <= 10
    world.now += delay
    await world.look()
    assert world.cluster.applies > tried, "the API server may have been wrong"
    world.spec({"model": {"handler": "simulated", "env": {"A": "c"}}})
    tried = world.cluster.applies
    await world.look()
    assert world.cluster.applies > tried, "a person's edit is tried"


async def test_a_model_made_anew_in_a_namespace_that_was_going_is_looked_after() -> None:
    world = World()
    world.cluster.failures[Kind.CONFIG_MAP] = Gone("is being terminated")
    await world.look()
    world.remove(Kind.BATCHED_MODEL)
    world.cluster.put(manifest())
    world.cluster.failures.clear()
    await world.look()
    assert world.has(Kind.CONFIG_MAP)


async def test_who_was_overtaken_reconciles_again() -> None:
    world = World()
    world.cluster.failures[Kind.SERVICE] = Conflict("has changed")
    with pytest.raises(Conflict):
        await world.look()
