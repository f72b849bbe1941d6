"""What is known to be there after the steps of a plan, at an API server in memory."""

from typing import Any

import pytest

from batchedmodel_kube.errors import ClusterError, Forbidden, Unreachable
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.observed.memory import Memory
from batchedmodel_operator.observed.state import after
from batchedmodel_operator.planning.plan import plan
from batchedmodel_operator.reconcile.apply import take
from batchedmodel_operator.reconcile.observe import find, observe
from support.operator_cluster import FakeCluster
from support.operator_world import IMAGES, KEY, SIMULATED, World, manifest

SCALED: dict[str, Any] = {**SIMULATED, "autoscaling": {"minReplicas": 2, "maxReplicas": 5}}


class _Keeping(FakeCluster):
    """One that does not delete objects of a kind."""

    def __init__(self, kept: Kind, error: ClusterError) -> None:
        super().__init__()
        self._kept = kept
        self._error = error

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        if kind is self._kept:
            raise self._error
        await super().delete(kind, namespace, name, uid)


@pytest.mark.parametrize("error", [Forbidden("no"), Unreachable("late")])
async def test_a_child_that_could_not_be_deleted_is_still_there(error: ClusterError) -> None:
    world = World()
    world.cluster = _Keeping(Kind.AUTOSCALER, error)
    world.cluster.put(manifest(SCALED))
    world.restart()
    await world.settle()
    world.spec(SIMULATED)
    model = await find(world.cluster, world.cluster, KEY)
    assert model is not None
    observed = await observe(world.cluster, world.sidecars, model, Memory(), world.now)
    planned = plan(observed, IMAGES, world.now, world.calendar())
    gone = {Kind.AUTOSCALER, Kind.DISRUPTION_BUDGET}
    assert {deletion.kind for deletion in planned.deletions} == gone
    outcome = await take(world.cluster, KEY, planned)
    assert outcome.failure is not None
    found = after(observed, live=outcome.live, deleted=outcome.deleted, memory=Memory())
    assert gone & found.children.keys() == {Kind.AUTOSCALER}
    assert world.has(Kind.AUTOSCALER)
    assert not world.has(Kind.DISRUPTION_BUDGET)
