"""`CapacityAvailable`: whether every pod that is wanted finds a node."""

from typing import Final

from batchedmodel_operator.conditions.check import Condition, Finding, no, unknown, yes
from batchedmodel_operator.conditions.reasons import Reason
from batchedmodel_operator.conditions.view import View
from batchedmodel_operator.reconcile.pod_failures import (
    PodFailureReason,
    refused_for,
    unscheduled,
    worst,
)
from batchedmodel_operator.reconcile.state import Pod, condition


def _a_quota_is_used_up(view: View) -> Finding | None:
    refusal = refused_for(view.observed.deployment)
    if refusal is None or refusal.trouble is not PodFailureReason.QUOTA_EXCEEDED:
        return None
    return no(refusal.trouble, refusal.message)


def _a_pod_finds_no_node(view: View) -> Finding | None:
    spec = view.observed.model.spec
    found = worst(unscheduled(spec, pod) for pod in _pods(view))
    return None if found is None else no(found.trouble, found.message)


def _there_are_no_pods(view: View) -> Finding | None:
    return None if _pods(view) else unknown(Reason.NO_PODS, "there are no pods to place")


def _nobody_has_placed_them(view: View) -> Finding | None:
    waiting = [pod for pod in _pods(view) if not _is_placed(pod)]
    if not waiting:
        return None
    return unknown(Reason.WAITING_FOR_SCHEDULER, f"{len(waiting)} pods are still to be placed")


def _all_have_nodes(view: View) -> Finding | None:
    return yes(Reason.SCHEDULED, "every pod has a node")


def _pods(view: View) -> tuple[Pod, ...]:
    return tuple(pod for pod in view.observed.pods if not pod.deleting)


def _is_placed(pod: Pod) -> bool:
    scheduled = condition(pod.body.get("status") or {}, "PodScheduled").get("status") == "True"
    return scheduled or pod.ready or pod.sidecar_started


CAPACITY_AVAILABLE: Final = Condition(
    type="CapacityAvailable",
    checks=(
        _a_quota_is_used_up,
        _a_pod_finds_no_node,
        _there_are_no_pods,
        _nobody_has_placed_them,
        _all_have_nodes,
    ),
)
