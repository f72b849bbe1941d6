"""Conditions about the load: AutoscalingActive and TargetFeasible. Pure.

In each function the first case that applies decides.
"""

from dataclasses import dataclass
from typing import Final

from batchedmodel_kube.capacity import capacity_of
from batchedmodel_kube.names import BLIND
from batchedmodel_operator.conditions.findings import Finding, Reason, no, unknown, yes
from batchedmodel_operator.conditions.view import View
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.observed.state import condition

_API_MISSING: Final = ("no metrics returned", "could not find", "the server is currently unable")
"""Parts of what the HPA's controller says where nobody serves the metrics API, or not yet."""
_OF_PODS: Final = (BLIND, "no metrics returned", "did not receive metrics for targeted pods")
"""Parts of what it says where the metrics API is served, but no pod has reported its load."""
_NONE_READY: Final = "none of its 0 ready pods"
"""Follows `BLIND` where no pod was ready when the HPA asked. The HPA keeps the sentence until it
asks again, when pods may long be ready."""
_SEVERAL: Final = "AmbiguousSelector"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What an HPA says of itself, without what is another each time it looks."""

    unable: str = ""
    """Why it cannot scale at all; empty where it can."""
    active: str = ""
    """Whether it follows a metric, as its condition says; empty where it has not looked yet."""
    reason: str = ""
    """Why it does not."""
    message: str = ""
    """The same in words."""
    at_maximum: bool = False
    """Whether it wants more pods than it may have."""

    @classmethod
    def of(cls, status: Body) -> "Heard":
        """Of the HPA's status: neither numbers nor times, nor what a condition adds when all is
        well. What is kept of a status holds it already, as `heard`."""
        if "heard" in status:
            return cls(**status["heard"])
        able, active = condition(status, "AbleToScale"), condition(status, "ScalingActive")
        limited = condition(status, "ScalingLimited")
        fails = bool(active) and active.get("status") != "True"
        reason, message = active.get("reason", ""), active.get("message", "")
        if reason == _SEVERAL:
            # It ends with their names in brackets, in another order each time.
            message = ", ".join(sorted(message.rpartition("[")[2].rstrip("]").split()))
        return cls(
            unable=_sentence(able) if able.get("status") == "False" else "",
            active=active.get("status", ""),
            reason=reason if fails else "",
            message=message if fails else "",
            at_maximum=(limited.get("status"), limited.get("reason"))
            == ("True", "TooManyReplicas"),
        )


def autoscaling_active(view: View) -> Finding:
    """Whether the number of pods follows the load, as the HPA itself says it."""
    spec, autoscaler = view.observed.model.spec, view.observed.children.get(Kind.AUTOSCALER)
    heard = Heard() if autoscaler is None else Heard.of(autoscaler.body.get("status") or {})
    message, sentence = heard.message, f"{heard.reason}: {heard.message}"
    if spec is not None and spec.autoscaling is None:
        return yes(Reason.SCALING_DISABLED, "the manifest says how many pods there are")
    if view.suspended:
        return unknown(Reason.SUSPENDED, "no pods are wanted while spec.suspend is true")
    if not heard.active:
        return unknown(Reason.NOT_LOOKED, "the HorizontalPodAutoscaler has not looked yet")
    if heard.unable:
        return no(Reason.HPA_FAILING, heard.unable)
    if (heard.active, heard.reason) == ("False", _SEVERAL):
        text = "several HorizontalPodAutoscalers scale its pods, so that none does; delete all but"
        return no(Reason.SEVERAL_AUTOSCALERS, f"{text} ours: {message}")
    if heard.active != "True":
        none_ready = _NONE_READY in message or not any(pod.ready for pod in view.observed.pods)
        if none_ready and any(part in message for part in _OF_PODS):
            return unknown(Reason.NO_READY_REPLICAS, "no pod was ready that could tell of its load")
        if BLIND in message:
            return no(Reason.METRICS_STALE, sentence)
        missing = any(part in message for part in _API_MISSING)
        return no(Reason.METRICS_API_MISSING if missing else Reason.HPA_FAILING, sentence)
    if heard.at_maximum:
        return yes(Reason.AT_MAXIMUM, "the load asks for more pods than maxReplicas allows")
    return yes(Reason.METRIC_VALID, "the number of pods follows the metric")


def target_feasible(view: View) -> Finding:
    """Whether an idle pod could answer one row within the latency target.

    If it could not, neither more pods nor other batch settings help, and the target must change.
    """
    spec, learnt = view.observed.model.spec, capacity_of(view.observed.model.status)
    target = None if spec is None else spec.batching.target_latency_milliseconds
    if spec is None or target is None:
        return yes(Reason.NO_TARGET, "no targetLatencyMilliseconds is given")
    seconds = None
    # What was measured of pods of another revision says nothing of these.
    if learnt is not None and learnt.revision == view.observed.revision:
        seconds = learnt.shortest_latency_seconds
    if seconds is None:
        whose = (
            "no pod of the present revision has measured"
            if spec.model.protocol is None
            else "of a container of one's own nobody measures"
        )
        return unknown(Reason.NOT_MEASURED, f"{whose} how long a row takes")
    alone = seconds * 1000
    text = f"a row alone takes {alone:.3g} ms on an idle pod"
    if alone > target:
        return no(
            Reason.OUT_OF_REACH,
            f"{text}, longer than targetLatencyMilliseconds ({target}): rows will be late "
            "whatever the number of pods",
        )
    return yes(Reason.WITHIN_REACH, f"{text}, within targetLatencyMilliseconds ({target})")


def _sentence(condition: Body) -> str:
    return f"{condition.get('reason')}: {condition.get('message', '')}"
