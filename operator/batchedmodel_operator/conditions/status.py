"""What a BatchedModel's status says: numbers, and conditions with their reasons. Pure.

`Ready` asks whether what the manifest says is what serves; `Available` whether anything serves;
`Reconciled` whether the cluster took what the operator made of the manifest; `Progressing` whether
something is still on its way. Conditions follow the form of meta/v1.
"""

from typing import Any

from batchedmodel_contract.kubernetes import capacity
from batchedmodel_contract.kubernetes.names import NAME_LABEL
from batchedmodel_operator.conditions import CONDITIONS, View, listed
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.kinds import RESOURCES, Kind
from batchedmodel_operator.reconcile import effective
from batchedmodel_operator.reconcile.plan import Failure, Plan
from batchedmodel_operator.reconcile.state import SPEC_FIELD, Model, Observed, digest


def report(observed: Observed, plan: Plan, failure: Failure | None, *, at: str) -> dict[str, Any]:
    """The whole `status`; `at` is the time of the look, as RFC 3339 writes it.

    `observed` must hold the children as they are after the steps of `plan`: otherwise a status of
    the new generation would repeat what was true of the one before.
    """
    model = observed.model
    view = View.of(observed, plan, failure)
    status: dict[str, Any] = {
        "observedGeneration": model.generation,
        "conditions": listed(
            model.status.get("conditions") or (),
            [condition.judge(view) for condition in CONDITIONS],
            generation=model.generation,
            at=at,
        ),
        "replicas": view.counts.replicas,
        "readyReplicas": view.counts.ready,
        "updatedReplicas": view.counts.updated,
        "desiredReplicas": view.counts.desired,
        "selector": f"{NAME_LABEL}={model.key.name}",
    }
    rollout = plan.rollout
    if rollout.target:
        status["rollout"] = rollout.to_status()
    if plan.altered:
        # They still speak of what was applied.
        kept = (SPEC_FIELD, "url", "effective")
        status |= {name: model.status[name] for name in kept if name in model.status}
    elif model.spec is not None:
        status[SPEC_FIELD] = model.spec_digest
        status["url"] = _url(model, model.spec.service.port)
        status["effective"] = effective.effective(model.spec, plan.model_image, rollout.mode)
    return status


def status_manifest(model: Model, status: Body) -> dict[str, Any]:
    """What is applied to the object's subresource `status`: this one's, not its successor's."""
    return {
        "apiVersion": RESOURCES[Kind.BATCHED_MODEL].api_version,
        "kind": Kind.BATCHED_MODEL.value,
        "metadata": {
            "name": model.key.name,
            "namespace": model.key.namespace,
            "uid": model.uid,
        },
        "status": status,
    }


def same(status: Body, live: Body) -> bool:
    """Whether writing the status would change nothing; what the autoscaler keeps there is its."""
    return digest(status) == digest({name: live[name] for name in live if name != capacity.FIELD})


def _url(model: Model, port: int) -> str:
    suffix = "" if port == 80 else f":{port}"
    return f"http://{model.key.name}.{model.key.namespace}.svc{suffix}"
