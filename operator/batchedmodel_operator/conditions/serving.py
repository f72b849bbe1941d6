"""Conditions about what serves: Ready, Reconciled, Available, Progressing and Degraded. Pure.

In each function the first case that applies decides.
"""

from collections.abc import Mapping
from typing import Final

from batchedmodel_kube.errors import ClusterError, Forbidden, Invalid, NameTaken, QuotaExceeded
from batchedmodel_operator.conditions.findings import Finding, Reason, no, unknown, yes
from batchedmodel_operator.conditions.pods import hung_or_lost
from batchedmodel_operator.conditions.view import View
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.observed.pod_failures import (
    PodFailureReason,
    Stage,
    refused_pod,
)
from batchedmodel_operator.observed.state import condition
from batchedmodel_operator.planning.plan import Failure
from batchedmodel_operator.planning.target import Hold
from batchedmodel_operator.rollout import Cause

_PASSING: Final = frozenset({Reason.WAITING_FOR_DELETION, Reason.API_ERROR})
"""Reasons of not being reconciled that go away by themselves."""
_BEFORE_A_START: Final = (Stage.REFUSED, Stage.UNPLACED)
"""Stages that say nothing of a revision: room for its pods may come."""
_SUSPENDED: Final = no(Reason.SUSPENDED, "no pods are wanted while spec.suspend is true")


_HOLDS: Final[Mapping[Hold, tuple[Reason, str]]] = {
    Hold.PINNED: (
        Reason.UPGRADE_PINNED,
        "pods keep theirs until the manifest is edited or upgrades are Rolling",
    ),
    Hold.TURN: (
        Reason.WAITING_FOR_TURN,
        "pods are replaced once fewer models roll and none that did is degraded",
    ),
    Hold.HEALTH: (Reason.WAITING_FOR_HEALTH, "pods are replaced once these serve"),
    Hold.MODEL_IMAGE: (
        Reason.WAITING_FOR_MODEL_IMAGE,
        "the sidecar keeps its image, for spec.model.image is not known to speak "
        "with that one: build it on the present release, and name it by another tag",
    ),
}
"""Why a later pod template waits, and until when."""
_FAILURES: Final[Mapping[type[ClusterError], Reason]] = {
    QuotaExceeded: Reason.QUOTA_EXCEEDED,
    Forbidden: Reason.FORBIDDEN,
    NameTaken: Reason.NAME_CONFLICT,
    Invalid: Reason.INVALID_OBJECT,
}
"""Why a step failed; any other error is the API server's or the network's."""


def ready(view: View, reconciled: Finding) -> Finding:
    """The summary: whether what the manifest says is what serves."""
    # A write that failed just now changes nothing about what serves.
    if not reconciled.holds and reconciled.reason != Reason.API_ERROR:
        text = f"{reconciled.reason}: {reconciled.message}"
        return no(Reason.RECONCILE_FAILED, _beside_older(view, text))
    if view.suspended:
        return _SUSPENDED
    if view.taken_back:
        return no(Reason.ROLLOUT_FAILED, _beside_older(view, view.taken_back))
    if view.empty:
        return yes(Reason.SCALED_TO_ZERO, "no pods are wanted")
    serving = sum(pod.ready for pod in view.living)
    if serving:
        # Whatever their revision: a rollout that misses nobody is no partial service.
        all_serving, desired = max(serving, view.counts.ready), view.counts.desired
        reason = Reason.SERVING if all_serving >= desired else Reason.PARTIALLY_SERVING
        return yes(reason, f"{all_serving} of {desired} pods serve")
    if view.diagnosis is not None:
        return no(view.diagnosis.trouble, _beside_older(view, view.diagnosis.message))
    if hung := hung_or_lost(view):
        return no(PodFailureReason.HEALTH_CHECK_FAILING, _beside_older(view, hung))
    if view.living:
        text = f"{len(view.living)} pods load their model"
        return no(Reason.MODEL_LOADING, _beside_older(view, text))
    reason = Reason.NEW_REVISION_ROLLING_OUT if view.counts.ready else Reason.NO_READY_REPLICAS
    return no(reason, _beside_older(view, "the pods are not there yet"))


def reconciled(view: View) -> Finding:
    """Whether the cluster took what the operator made of the manifest."""
    model, plan, failure = view.observed.model, view.plan, view.failure
    if model.unread:
        return no(Reason.INVALID_OBJECT, model.unread)
    if model.lacks_class:
        what = f"there is no BatchedModelClass {model.class_name} that the operator may read"
        text = f"{what}; what runs goes on as it is"
        return no(Reason.CLASS_NOT_FOUND, text)
    if model.spec is None:
        return no(Reason.INVALID_SPEC, "; ".join(model.mistakes))
    if plan.altered:
        text = (
            "the manifest, or its class, reads otherwise than when it was applied, though nobody "
            "has edited it: another definition drops what it does not know. Its objects are left "
            "as they are: bring the definition back, or edit the manifest"
        )
        return no(Reason.DEFINITION_CHANGED, text)
    if failure is not None:
        return no(_failed_for(failure), f"{failure.kind} {failure.name}: {failure.error}")
    for obstacle in sorted(plan.obstacles, key=lambda one: not one.by_stranger):
        what = f"{obstacle.kind} {obstacle.name}"
        if obstacle.by_stranger:
            known = f" ({obstacle.owner})" if obstacle.owner else ""
            text = f"{what} exists{known} and is none of this BatchedModel's; delete or rename one"
            return no(Reason.NAME_CONFLICT, f"{text}: nothing new is made before")
        return no(Reason.WAITING_FOR_DELETION, f"{what} is being deleted and will be made anew")
    for contest in plan.contests:
        who = contest.by or "somebody else"
        text = f"{contest.kind} {contest.name} is changed again by {who} whenever it is put right"
        return no(Reason.CONTESTED, text)
    wait = f"; edits come so fast that the next wait, for up to {plan.edits_wait:g} s"
    text = f"everything is applied as the manifest says{wait if plan.edits_wait else ''}"
    return yes(Reason.APPLIED, text)


def available(view: View) -> Finding:
    """Whether anything serves, of whatever revision."""
    text = f"{view.counts.ready} of {view.counts.desired} pods are ready"
    if view.suspended:
        return _SUSPENDED
    if view.empty:
        return yes(Reason.SCALED_TO_ZERO, "no pods are wanted")
    if view.counts.ready == 0:
        return no(Reason.NO_READY_REPLICAS, text)
    if condition(view.deployment_status, "Available").get("status") == "False":
        return no(Reason.BELOW_MINIMUM, text)
    return yes(Reason.MINIMUM_REPLICAS_AVAILABLE, text)


def progressing(view: View, reconciled: Finding) -> Finding:
    """Whether something is still on its way."""
    counts, rollout, stuck = view.counts, view.plan.rollout, _deadline_passed(view)
    failed = not reconciled.holds and reconciled.reason not in _PASSING
    if view.observed.deployment is None and failed:
        text = f"nothing is on its way: {reconciled.reason}"
        return no(Reason.RECONCILE_FAILED, _held_up(view, text))
    if stuck:
        return no(Reason.PROGRESS_DEADLINE_EXCEEDED, _held_up(view, stuck))
    if _is_rolling(view):
        updated = f"{counts.updated} of {counts.desired} pods are of the"
        if view.taken_back:
            text = f"{updated} last good revision; {view.taken_back}"
            return yes(Reason.ROLLING_BACK, _held_up(view, text))
        text, switched = f"{updated} newest revision", bool(view.older) and rollout.latched
        if view.older:
            text = f"{text}; {rollout.sentence}"
        reason = Reason.SWITCHED_TO_IN_PLACE if switched else Reason.NEW_REVISION_ROLLING_OUT
        return yes(reason, _held_up(view, text))
    if not counts.ready == counts.desired == counts.replicas:
        text = f"{counts.ready} of {counts.desired} pods are ready"
        return yes(Reason.SCALING, _held_up(view, text))
    if view.suspended:
        return _SUSPENDED
    if view.plan.unconfirmed:
        text = f"not known to use the present batch settings: {', '.join(view.plan.unconfirmed)}"
        return yes(Reason.BATCH_SETTINGS_ROLLING_OUT, _held_up(view, text))
    if view.taken_back:
        return no(Reason.ROLLED_BACK, view.taken_back)
    return no(Reason.COMPLETE, "all pods are ready and use the present settings")


def up_to_date(view: View) -> Finding:
    """Whether the pod template is the one that the operator would make now."""
    pending, model = view.plan.pending, view.observed.model
    if view.taken_back:
        return no(Reason.ROLLED_BACK, view.taken_back)
    if model.spec is None or view.plan.altered:
        return unknown(Reason.RECONCILE_FAILED, "the manifest is not carried out as it is")
    blocked = {obstacle.kind for obstacle in view.plan.obstacles}
    if view.failure or view.observed.deployment is None or Kind.DEPLOYMENT in blocked:
        return unknown(Reason.RECONCILE_FAILED, "the pod template could not be applied")
    if pending is None:
        return yes(Reason.UP_TO_DATE, "the pod template is as the operator would make it now")
    if pending.cause is Cause.CLASS:
        what = f"BatchedModelClass {model.class_name} was edited"
    else:
        what = f"the operator has other images: {', '.join(pending.images)}"
    reason, until = _HOLDS[pending.hold]
    return no(reason, f"{what}; {until}")


def degraded(view: View) -> Finding:
    """Whether less serves than is asked for, or something older, and time does not help.

    The only condition that is good news when it is False.
    """
    counts = view.counts
    if view.taken_back:
        return yes(Reason.ROLLED_BACK, view.taken_back)
    stage = None if view.diagnosis is None else view.diagnosis.trouble.stage
    why = _deadline_passed(view) if view.diagnosis is None else view.diagnosis.message
    if why and view.older and counts.ready >= counts.desired and stage not in _BEFORE_A_START:
        text = f"{counts.ready} pods of an earlier revision serve; {why}"
        return yes(Reason.OLDER_REVISION_SERVES, text)
    if counts.ready < counts.desired and why:
        reason = Reason.PARTIAL_REPLICAS if counts.ready else Reason.NO_READY_REPLICAS
        return yes(reason, f"{counts.ready} of {counts.desired} pods are ready; {why}")
    return no(Reason.AS_EXPECTED, "nothing is known to be amiss")


def _failed_for(failure: Failure) -> str:
    if isinstance(failure.error, Invalid) and failure.kind is Kind.DEPLOYMENT:
        return refused_pod(str(failure.error))
    return _FAILURES.get(type(failure.error), Reason.API_ERROR)


def _deadline_passed(view: View) -> str:
    """What the Deployment's controller says if it has given up waiting for pods; else nothing."""
    progress = condition(view.deployment_status, "Progressing")
    if progress.get("reason") != "ProgressDeadlineExceeded":
        return ""
    return progress.get("message") or "the rollout is stuck"


def _is_rolling(view: View) -> bool:
    counts = view.counts
    if view.observed.deployment is None or view.older:
        return True
    # As long as its controller has not seen the Deployment the numbers are about an earlier one.
    return counts.updated < counts.replicas if counts.current else not view.living


def _beside_older(view: View, text: str) -> str:
    serving = view.counts.ready
    return f"{text}; {serving} pods of an earlier revision serve" if serving else text


def _held_up(view: View, text: str) -> str:
    return text if view.diagnosis is None else f"{text}; {view.diagnosis.message}"
