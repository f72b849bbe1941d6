"""What a BatchedModel's status says: numbers, and conditions with their reasons. Pure.

`Ready` asks whether what the manifest says is what serves; `Available` whether anything serves;
`Reconciled` whether the cluster took what the operator made of the manifest; `Progressing` whether
something is still on its way. Conditions follow the form of meta/v1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from batchedmodel_contract.kubernetes_names import NAME_LABEL
from batchedmodel_operator import effective
from batchedmodel_operator.diagnosis import Diagnosis, diagnose, refused_pod
from batchedmodel_operator.errors import ClusterError, Forbidden, Invalid, QuotaExceeded
from batchedmodel_operator.kinds import RESOURCES, Kind
from batchedmodel_operator.observed import (
    Child,
    Model,
    Observed,
    Pod,
    condition,
    digest,
)
from batchedmodel_operator.plan import Plan
from batchedmodel_operator.ports import Body

_LONGEST_MESSAGE: Final = 1024


class Reason(StrEnum):
    """Reasons of conditions; those of pods in trouble stand in `diagnosis.Trouble`."""

    APPLIED = "Applied"
    INVALID_SPEC = "InvalidSpec"
    NAME_CONFLICT = "NameConflict"
    WAITING_FOR_DELETION = "WaitingForDeletion"
    INVALID_OBJECT = "InvalidObject"
    FORBIDDEN = "Forbidden"
    QUOTA_EXCEEDED = "QuotaExceeded"
    API_ERROR = "ApiError"

    MINIMUM_REPLICAS_AVAILABLE = "MinimumReplicasAvailable"
    NO_READY_REPLICAS = "NoReadyReplicas"
    BELOW_MINIMUM = "BelowMinimum"
    SCALED_TO_ZERO = "ScaledToZero"
    SUSPENDED = "Suspended"

    NEW_REVISION_ROLLING_OUT = "NewRevisionRollingOut"
    SCALING = "Scaling"
    BATCH_SETTINGS_ROLLING_OUT = "BatchSettingsRollingOut"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    COMPLETE = "Complete"

    SERVING = "Serving"
    RECONCILE_FAILED = "ReconcileFailed"
    MODEL_LOADING = "ModelLoading"


_RESTS: Final = "no pods are wanted while spec.suspend is true"

_PASSING: Final = frozenset({Reason.WAITING_FOR_DELETION, Reason.API_ERROR})
"""Reasons of not being reconciled that take only patience."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A step of the plan that did not succeed."""

    kind: Kind
    name: str
    error: ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A condition before it is compared with what it was."""

    type: str
    holds: bool
    reason: str
    message: str


def report(observed: Observed, plan: Plan, failure: Failure | None, *, at: str) -> dict[str, Any]:
    """The whole `status`; `at` is the time of the look, as RFC 3339 writes it.

    `observed` must hold the children as they are after the steps of `plan`: otherwise a status of
    the new generation would repeat what was true of the one before.
    """
    model, deployment = observed.model, observed.deployment
    counts = _Counts.of(deployment)
    verdicts = _verdicts(observed, plan, failure, counts)
    status: dict[str, Any] = {
        "observedGeneration": model.generation,
        "conditions": conditions(
            model.status.get("conditions") or (), verdicts, generation=model.generation, at=at
        ),
        "replicas": counts.replicas,
        "readyReplicas": counts.ready,
        "updatedReplicas": counts.updated,
        "desiredReplicas": counts.desired,
        "selector": f"{NAME_LABEL}={model.key.name}",
    }
    if model.spec is not None:
        status["url"] = _url(model, model.spec.service.port)
        status["effective"] = effective.effective(model.spec, plan.model_image)
    return status


def status_manifest(model: Model, status: Body) -> dict[str, Any]:
    """What is applied to the object's subresource `status`."""
    return {
        "apiVersion": RESOURCES[Kind.BATCHED_MODEL].api_version,
        "kind": Kind.BATCHED_MODEL.value,
        "metadata": {"name": model.key.name, "namespace": model.key.namespace},
        "status": status,
    }


def same(status: Body, live: Body) -> bool:
    """Whether writing the status would change nothing."""
    return digest(status) == digest(live)


def conditions(
    before: Sequence[Body], verdicts: Sequence[Verdict], *, generation: int, at: str
) -> list[dict[str, Any]]:
    """The list of conditions; a time changes only where a status does."""
    earlier: Mapping[str, Body] = {one.get("type", ""): one for one in before}
    found = []
    for verdict in verdicts:
        status = "True" if verdict.holds else "False"
        was = earlier.get(verdict.type, {})
        kept = was.get("status") == status and "lastTransitionTime" in was
        found.append(
            {
                "type": verdict.type,
                "status": status,
                "reason": verdict.reason,
                "message": _shortened(verdict.message),
                "lastTransitionTime": was["lastTransitionTime"] if kept else at,
                "observedGeneration": generation,
            }
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    desired: int
    replicas: int
    ready: int
    updated: int
    current: bool
    """Whether the numbers are about the Deployment as it is now."""

    @classmethod
    def of(cls, deployment: Child | None) -> "_Counts":
        if deployment is None:
            return cls(desired=0, replicas=0, ready=0, updated=0, current=False)
        body, status = deployment.body, deployment.body.get("status") or {}
        generation = body["metadata"].get("generation", 0)
        return cls(
            desired=body["spec"].get("replicas", 1),
            replicas=status.get("replicas", 0),
            ready=status.get("readyReplicas", 0),
            updated=status.get("updatedReplicas", 0),
            current=status.get("observedGeneration", 0) >= generation,
        )


def _verdicts(
    observed: Observed, plan: Plan, failure: Failure | None, counts: _Counts
) -> tuple[Verdict, ...]:
    newest, startups = observed.newest, observed.memory.startups
    diagnosis = diagnose(observed.model.spec, observed.deployment, newest, startups)
    reconciled = _reconciled(observed, plan, failure)
    available = _available(observed, counts)
    progressing = _progressing(observed, plan, reconciled, counts, newest, diagnosis)
    ready = _ready(reconciled, available, counts, newest, diagnosis)
    return ready, reconciled, available, progressing


def _reconciled(observed: Observed, plan: Plan, failure: Failure | None) -> Verdict:
    def no(reason: str, message: str) -> Verdict:
        return Verdict(type="Reconciled", holds=False, reason=reason, message=message)

    if observed.model.spec is None:
        return no(Reason.INVALID_SPEC, "; ".join(observed.model.mistakes))
    if failure is not None:
        message = f"{failure.kind} {failure.name}: {failure.error}"
        return no(_reason_of(failure), message)
    for obstacle in sorted(plan.obstacles, key=lambda one: not one.by_stranger):
        what = f"{obstacle.kind} {obstacle.name}"
        if obstacle.by_stranger:
            known = f" ({obstacle.owner})" if obstacle.owner else ""
            text = f"{what} exists{known} and is none of this BatchedModel's; delete or rename one"
            return no(Reason.NAME_CONFLICT, text)
        return no(Reason.WAITING_FOR_DELETION, f"{what} is being deleted and will be made anew")
    return Verdict(
        type="Reconciled",
        holds=True,
        reason=Reason.APPLIED,
        message="everything is applied as the manifest says",
    )


def _reason_of(failure: Failure) -> str:
    error = failure.error
    if isinstance(error, QuotaExceeded):
        return Reason.QUOTA_EXCEEDED
    if isinstance(error, Forbidden):
        return Reason.FORBIDDEN
    if isinstance(error, Invalid):
        if failure.kind is Kind.DEPLOYMENT:
            return refused_pod(str(error))
        return Reason.INVALID_OBJECT
    return Reason.API_ERROR


def _available(observed: Observed, counts: _Counts) -> Verdict:
    def verdict(holds: bool, reason: str, message: str) -> Verdict:
        return Verdict(type="Available", holds=holds, reason=reason, message=message)

    deployment = observed.deployment
    pods = f"{counts.ready} of {counts.desired} pods are ready"
    if _suspended(observed):
        return verdict(False, Reason.SUSPENDED, _RESTS)
    if deployment is not None and counts.desired == 0:
        return verdict(True, Reason.SCALED_TO_ZERO, "no pods are wanted")
    if counts.ready == 0:
        return verdict(False, Reason.NO_READY_REPLICAS, pods)
    status = {} if deployment is None else deployment.body.get("status") or {}
    if condition(status, "Available").get("status") == "False":
        return verdict(False, Reason.BELOW_MINIMUM, pods)
    return verdict(True, Reason.MINIMUM_REPLICAS_AVAILABLE, pods)


def _progressing(
    observed: Observed,
    plan: Plan,
    reconciled: Verdict,
    counts: _Counts,
    newest: tuple[Pod, ...],
    diagnosis: Diagnosis | None,
) -> Verdict:
    def verdict(holds: bool, reason: str, message: str) -> Verdict:
        held_up = f"; {diagnosis.message}" if diagnosis is not None else ""
        return Verdict(type="Progressing", holds=holds, reason=reason, message=message + held_up)

    deployment = observed.deployment
    if deployment is None and not reconciled.holds and reconciled.reason not in _PASSING:
        text = f"nothing is on its way: {reconciled.reason}"
        return verdict(False, Reason.RECONCILE_FAILED, text)
    status = {} if deployment is None else deployment.body.get("status") or {}
    if condition(status, "Progressing").get("reason") == "ProgressDeadlineExceeded":
        text = condition(status, "Progressing").get("message") or "the rollout is stuck"
        return verdict(False, Reason.PROGRESS_DEADLINE_EXCEEDED, text)
    older = [pod for pod in observed.pods if pod not in newest and not pod.deleting]
    if deployment is None or not counts.current or older or counts.updated < counts.replicas:
        text = f"{counts.updated} of {counts.desired} pods are of the newest revision"
        return verdict(True, Reason.NEW_REVISION_ROLLING_OUT, text)
    if counts.ready != counts.desired or counts.replicas != counts.desired:
        text = f"{counts.ready} of {counts.desired} pods are ready"
        return verdict(True, Reason.SCALING, text)
    if _suspended(observed):
        return verdict(False, Reason.SUSPENDED, _RESTS)
    if plan.unconfirmed:
        text = f"not known to use the present batch settings: {', '.join(plan.unconfirmed)}"
        return verdict(True, Reason.BATCH_SETTINGS_ROLLING_OUT, text)
    return verdict(False, Reason.COMPLETE, "all pods are ready and use the present settings")


def _ready(
    reconciled: Verdict,
    available: Verdict,
    counts: _Counts,
    newest: tuple[Pod, ...],
    diagnosis: Diagnosis | None,
) -> Verdict:
    def no(reason: str, message: str) -> Verdict:
        older = f"; {counts.ready} pods of an earlier revision serve" if counts.ready else ""
        return Verdict(type="Ready", holds=False, reason=reason, message=message + older)

    # What the API server could not take just now changes nothing about what serves.
    if not reconciled.holds and reconciled.reason != Reason.API_ERROR:
        return no(Reason.RECONCILE_FAILED, f"{reconciled.reason}: {reconciled.message}")
    if available.reason == Reason.SUSPENDED:
        return Verdict(type="Ready", holds=False, reason=Reason.SUSPENDED, message=_RESTS)
    if available.reason == Reason.SCALED_TO_ZERO:
        return Verdict(
            type="Ready", holds=True, reason=Reason.SCALED_TO_ZERO, message=available.message
        )
    living = [pod for pod in newest if not pod.deleting]
    serving = sum(pod.ready for pod in living)
    if serving:
        text = f"{serving} of {counts.desired} pods serve"
        return Verdict(type="Ready", holds=True, reason=Reason.SERVING, message=text)
    if diagnosis is not None:
        return no(diagnosis.trouble, diagnosis.message)
    if living:
        return no(Reason.MODEL_LOADING, f"{len(living)} pods load their model")
    return no(Reason.NO_READY_REPLICAS, "the pods are not there yet")


def _suspended(observed: Observed) -> bool:
    spec = observed.model.spec
    return spec is not None and spec.suspend


def _url(model: Model, port: int) -> str:
    suffix = "" if port == 80 else f":{port}"
    return f"http://{model.key.name}.{model.key.namespace}.svc{suffix}"


def _shortened(message: str) -> str:
    if len(message) <= _LONGEST_MESSAGE:
        return message
    return f"{message[: _LONGEST_MESSAGE - 3]}..."
