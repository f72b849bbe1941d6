"""What a BatchedModel's status says: numbers, and conditions with their reasons. Pure.

Conditions follow the form of meta/v1.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchedmodel_kube import capacity
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.names import ADAPTERS_STATUS_FIELD, NAME_LABEL
from batchedmodel_operator.conditions import adapters, autoscaling, pods, serving
from batchedmodel_operator.conditions.findings import Finding
from batchedmodel_operator.conditions.view import View
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.kinds import RESOURCES, Kind
from batchedmodel_operator.observed import effective
from batchedmodel_operator.observed.alteration import CLASS_FIELD, SPEC_FIELD
from batchedmodel_operator.observed.state import Model, Observed, digest
from batchedmodel_operator.planning.plan import Failure, Plan
from batchedmodel_operator.rollout import Record

_LONGEST_MESSAGE: Final = 1024


def report(observed: Observed, plan: Plan, failure: Failure | None, *, at: str) -> dict[str, Any]:
    """The whole `status`; `at` is the time of the reconcile, as RFC 3339 writes it.

    `observed` must hold the children as they are after the steps of `plan`: otherwise a status of
    the new generation would repeat what was true of the one before.
    """
    model = observed.model
    view = View.of(observed, plan, failure)
    before = model.status.get("conditions") or ()
    if observed.blind:
        return _without_pods(view, before, at)
    status: dict[str, Any] = {
        "observedGeneration": model.generation,
        "conditions": listed(before, findings(view), generation=model.generation, at=at),
        "ready": f"{view.counts.ready}/{view.counts.desired}",
        "replicas": view.counts.replicas,
        "readyReplicas": view.counts.ready,
        "updatedReplicas": view.counts.updated,
        "desiredReplicas": view.counts.desired,
        "selector": f"{NAME_LABEL}={model.key.name}",
    }
    listed_adapters = adapters.adapters_status(view)
    if listed_adapters:
        status[ADAPTERS_STATUS_FIELD] = listed_adapters
    rollout = plan.rollout
    if rollout.target:
        status["rollout"] = rollout.to_status()
    if plan.altered:
        # They still speak of what was applied.
        kept = (SPEC_FIELD, CLASS_FIELD, "url", "model", "effective")
        status |= {name: model.status[name] for name in kept if name in model.status}
    elif model.spec is None and model.class_name:
        # What runs goes on, by what was in force; the class may be at fault and not the manifest.
        in_force = (CLASS_FIELD, "url", "model", "effective")
        status |= {name: model.status[name] for name in in_force if name in model.status}
        known = model.status.get(SPEC_FIELD) if model.altered else model.spec_digest
        status |= {SPEC_FIELD: known} if known else {}
    elif model.spec is not None:
        port = model.spec.service.port
        suffix = "" if port == 80 else f":{port}"
        status[SPEC_FIELD] = model.spec_digest
        status |= {CLASS_FIELD: model.class_seen} if model.class_seen else {}
        status["url"] = f"http://{model.key.name}.{model.key.namespace}.svc{suffix}"
        status["model"] = called(model.spec)
        status["effective"] = effective.effective(
            model.spec, plan.model_image, rollout.mode, plan.of_chart
        )
    return status


def _without_pods(view: View, before: Sequence[Body], at: str) -> dict[str, Any]:
    """Where it is not known what there is of pods: what was said of them stands."""
    model, found = view.observed.model, {"Reconciled": serving.reconciled(view)}
    (now,) = listed(before, found, generation=model.generation, at=at)
    others = [one for one in before if one.get("type") != "Reconciled"]
    kept = {name: value for name, value in model.status.items() if name != capacity.FIELD}
    return {**kept, "observedGeneration": model.generation, "conditions": [*others, now]}


def with_rollout(live: Body, rollout: Record) -> dict[str, Any]:
    """The status as it is, but for what was decided of the rollout."""
    kept = {name: value for name, value in live.items() if name != capacity.FIELD}
    return {**kept, "rollout": rollout.to_status()}


def called(spec: Spec) -> str:
    """What serves, in a few words: the repository or the handler, or the image of one's own."""
    model = spec.model
    source = model.source
    if source is not None and source.hugging_face is not None:
        return source.hugging_face.repo
    return model.handler or model.image or ""


def findings(view: View) -> Mapping[str, Finding]:
    """The conditions by their types, in the order in which they are listed and announced."""
    reconciled, loaded = serving.reconciled(view), adapters.adapters_loaded(view)
    return {
        "Ready": serving.ready(view, reconciled),
        "Reconciled": reconciled,
        "Available": serving.available(view),
        "Progressing": serving.progressing(view, reconciled),
        "UpToDate": serving.up_to_date(view),
        "CapacityAvailable": pods.capacity_available(view),
        "ModelLoaded": pods.model_loaded(view),
        **({} if loaded is None else {"AdaptersLoaded": loaded}),
        "AutoscalingActive": autoscaling.autoscaling_active(view),
        "TargetFeasible": autoscaling.target_feasible(view),
        "Degraded": serving.degraded(view),
    }


def listed(
    before: Sequence[Body], found: Mapping[str, Finding], *, generation: int, at: str
) -> list[dict[str, Any]]:
    """The list of conditions; a time changes only where a status does."""
    earlier: Mapping[str, Body] = {one.get("type", ""): one for one in before}
    conditions = []
    for name, finding in found.items():
        status = "Unknown" if finding.holds is None else str(finding.holds)
        was, message = earlier.get(name, {}), finding.message
        if len(message) > _LONGEST_MESSAGE:
            message = f"{message[: _LONGEST_MESSAGE - 3]}..."
        conditions.append(
            {
                "type": name,
                "status": status,
                "reason": finding.reason,
                "message": message,
                "lastTransitionTime": (
                    was.get("lastTransitionTime", at) if was.get("status") == status else at
                ),
                "observedGeneration": generation,
            }
        )
    return conditions


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
    """Whether writing the status would change nothing. `capacity` is the autoscaler's to write."""
    return digest(status) == digest({name: live[name] for name in live if name != capacity.FIELD})


def only(status: Body, before: Body, after: Body) -> bool:
    """Whether writing the status over `before` made all of `after`, and nobody else any of it."""
    return same(status, after) and after.get(capacity.FIELD) == before.get(capacity.FIELD)
