"""`AutoscalingActive`: whether the number of pods follows the load, as the HPA itself says it."""

from typing import Final

from batchedmodel_contract.kubernetes.names import BLIND
from batchedmodel_operator.conditions.check import Condition, Finding, no, unknown, yes
from batchedmodel_operator.conditions.reasons import Reason
from batchedmodel_operator.conditions.view import View
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.reconcile.state import condition

_API_MISSING: Final = ("no metrics returned", "could not find", "the server is currently unable")
"""Parts of what the HPA's controller says where nobody serves the metrics API, or not yet."""
_OF_PODS: Final = (BLIND, "no metrics returned", "did not receive metrics for targeted pods")
"""Parts of what it says where the metrics API is served, but no pod has told anything."""
_NONE_READY: Final = "none of its 0 ready pods"
"""What stands behind `BLIND` where no pod was ready when the HPA asked. It repeats that until its
next look, while pods may have become ready."""


def _nothing_scales_it(view: View) -> Finding | None:
    spec = view.observed.model.spec
    if spec is None or spec.autoscaling is not None:
        return None
    return yes(Reason.SCALING_DISABLED, "the manifest says how many pods there are")


def _it_rests(view: View) -> Finding | None:
    if not view.suspended:
        return None
    return unknown(Reason.SUSPENDED, "no pods are wanted while spec.suspend is true")


def _the_hpa_has_not_looked(view: View) -> Finding | None:
    if condition(_status(view), "ScalingActive"):
        return None
    return unknown(Reason.NOT_LOOKED, "the HorizontalPodAutoscaler has not looked yet")


def _it_cannot_scale(view: View) -> Finding | None:
    able = condition(_status(view), "AbleToScale")
    if able.get("status") != "False":
        return None
    return no(Reason.HPA_FAILING, f"{able.get('reason')}: {able.get('message', '')}")


def _others_scale_it_too(view: View) -> Finding | None:
    active = condition(_status(view), "ScalingActive")
    if (active.get("status"), active.get("reason")) != ("False", "AmbiguousSelector"):
        return None
    # They stand at its end in brackets, in another order each time.
    _, _, names = active.get("message", "").rpartition("[")
    known = ", ".join(sorted(names.rstrip("]").split()))
    text = "several HorizontalPodAutoscalers scale its pods, so that none does; delete all but ours"
    return no(Reason.SEVERAL_AUTOSCALERS, f"{text}: {known}")


def _no_pod_is_ready_to_tell(view: View) -> Finding | None:
    active = condition(_status(view), "ScalingActive")
    said = active.get("message", "")
    if active.get("status") == "True" or not any(part in said for part in _OF_PODS):
        return None
    if any(pod.ready for pod in view.observed.pods) and _NONE_READY not in said:
        return None
    return unknown(Reason.NO_READY_REPLICAS, "no pod was ready that could tell of its load")


def _it_lacks_the_metric(view: View) -> Finding | None:
    active = condition(_status(view), "ScalingActive")
    if active.get("status") == "True":
        return None
    said = active.get("message", "")
    return no(_reason_of(said), f"{active.get('reason')}: {said}")


def _it_is_at_its_maximum(view: View) -> Finding | None:
    limited = condition(_status(view), "ScalingLimited")
    if (limited.get("status"), limited.get("reason")) != ("True", "TooManyReplicas"):
        return None
    return yes(Reason.AT_MAXIMUM, "the load asks for more pods than maxReplicas allows")


def _it_follows(view: View) -> Finding | None:
    # Without the metric's present value: that changes with every look of the HPA.
    return yes(Reason.METRIC_VALID, "the number of pods follows the metric")


def _reason_of(said: str) -> Reason:
    if BLIND in said:
        return Reason.METRICS_STALE
    missing = any(part in said for part in _API_MISSING)
    return Reason.METRICS_API_MISSING if missing else Reason.HPA_FAILING


def _status(view: View) -> Body:
    autoscaler = view.observed.children.get(Kind.AUTOSCALER)
    status: Body = {} if autoscaler is None else autoscaler.body.get("status") or {}
    return status


AUTOSCALING_ACTIVE: Final = Condition(
    type="AutoscalingActive",
    checks=(
        _nothing_scales_it,
        _it_rests,
        _the_hpa_has_not_looked,
        _it_cannot_scale,
        _others_scale_it_too,
        _no_pod_is_ready_to_tell,
        _it_lacks_the_metric,
        _it_is_at_its_maximum,
        _it_follows,
    ),
)
