"""`Available`: whether anything serves, of whatever revision."""

from typing import Final

from batchedmodel_operator.conditions.check import Condition, Finding, no, yes
from batchedmodel_operator.conditions.reasons import Reason
from batchedmodel_operator.conditions.view import View
from batchedmodel_operator.reconcile.state import condition

RESTS: Final = "no pods are wanted while spec.suspend is true"


def _it_rests(view: View) -> Finding | None:
    return no(Reason.SUSPENDED, RESTS) if view.suspended else None


def _no_pods_are_wanted(view: View) -> Finding | None:
    return yes(Reason.SCALED_TO_ZERO, "no pods are wanted") if view.empty else None


def _no_pod_is_ready(view: View) -> Finding | None:
    return no(Reason.NO_READY_REPLICAS, _pods(view)) if view.counts.ready == 0 else None


def _too_few_are_available(view: View) -> Finding | None:
    if condition(view.deployment_status, "Available").get("status") != "False":
        return None
    return no(Reason.BELOW_MINIMUM, _pods(view))


def _enough_are_available(view: View) -> Finding | None:
    return yes(Reason.MINIMUM_REPLICAS_AVAILABLE, _pods(view))


def _pods(view: View) -> str:
    return f"{view.counts.ready} of {view.counts.desired} pods are ready"


AVAILABLE: Final = Condition(
    type="Available",
    checks=(
        _it_rests,
        _no_pods_are_wanted,
        _no_pod_is_ready,
        _too_few_are_available,
        _enough_are_available,
    ),
)
