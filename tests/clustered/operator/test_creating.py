"""What is made must not have been there: a first apply's precondition, at a real API server."""

import asyncio
from typing import Any

import pytest

from batchedmodel_kube.client import Client
from batchedmodel_kube.errors import Conflict
from batchedmodel_operator.cluster.client import KubernetesCluster
from batchedmodel_operator.kinds import CHILDREN, RESOURCES, Kind, child_name
from batchedmodel_operator.observed.state import Key
from batchedmodel_operator.planning.plan import Apply, Plan
from batchedmodel_operator.reconcile.apply import Outcome, take
from cluster import ControlPlane
from support.operator_team import Team
from support.plane import apply

_POD: dict[str, Any] = {
    "metadata": {"labels": {"app": "minilm"}},
    "spec": {"containers": [{"name": "model", "image": "registry.example/image:1"}]},
}
_SELECTOR = {"matchLabels": {"app": "minilm"}}
_SPECS: dict[Kind, dict[str, Any]] = {
    Kind.CONFIG_MAP: {"data": {"ours": "1"}},
    Kind.SERVICE: {"spec": {"ports": [{"port": 80}]}},
    Kind.DEPLOYMENT: {"spec": {"replicas": 0, "selector": _SELECTOR, "template": _POD}},
    Kind.AUTOSCALER: {
        "spec": {
            "maxReplicas": 2,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "minilm"},
        }
    },
    Kind.DISRUPTION_BUDGET: {"spec": {"maxUnavailable": 1, "selector": _SELECTOR}},
}


def _manifest(kind: Kind, namespace: str) -> dict[str, Any]:
    metadata = {"name": child_name(kind, "minilm"), "namespace": namespace}
    head = {"apiVersion": RESOURCES[kind].api_version, "kind": kind.value}
    return {**head, "metadata": metadata, **_SPECS[kind]}


def _taken(plane: ControlPlane, step: Apply) -> Outcome:
    async def once() -> Outcome:
        client = await Client.connect({"KUBECONFIG": str(plane.kubeconfig)})
        try:
            key = Key(namespace=step.manifest["metadata"]["namespace"], name="minilm")
            return await take(KubernetesCluster(client), key, Plan(applies=(step,)))
        finally:
            await client.close()

    return asyncio.run(once())


@pytest.mark.parametrize("kind", CHILDREN)
def test_a_child_is_made_where_there_is_none_and_only_there(
    plane: ControlPlane, team: Team, kind: Kind
) -> None:
    step = Apply(kind=kind, manifest=_manifest(kind, team.namespace))
    outcome = _taken(plane, step)
    assert outcome.failure is None
    assert kind in outcome.applied
    with pytest.raises(Conflict):
        _taken(plane, step)


@pytest.mark.parametrize("kind", CHILDREN)
def test_what_a_stranger_made_just_before_stays_as_it_is(
    plane: ControlPlane, team: Team, kind: Kind
) -> None:
    theirs = _manifest(kind, team.namespace)
    apply(plane, theirs)
    name = f"{kind}/{child_name(kind, 'minilm')}"
    before = team.get(name)["metadata"]
    step = Apply(kind=kind, manifest={**theirs, "metadata": theirs["metadata"] | {"labels": {}}})
    with pytest.raises(Conflict):
        _taken(plane, step)
    after = team.get(name)["metadata"]
    assert after["uid"] == before["uid"]
    assert "batchedmodel-operator" not in {one["manager"] for one in after["managedFields"]}
