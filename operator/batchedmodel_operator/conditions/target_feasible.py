"""`TargetFeasible`: whether an idle pod could answer one row within the latency target.

A target that not even one row alone meets is met by no number of pods and by no settings of the
batching, and whoever wrote it should be told.
"""

from typing import Final

from batchedmodel_contract.kubernetes.capacity import capacity_of
from batchedmodel_operator.conditions.check import Condition, Finding, no, unknown, yes
from batchedmodel_operator.conditions.reasons import Reason
from batchedmodel_operator.conditions.view import View


def _there_is_no_target(view: View) -> Finding | None:
    if _target(view) is not None:
        return None
    return yes(Reason.NO_TARGET, "no targetLatencyMilliseconds is given")


def _nobody_has_measured(view: View) -> Finding | None:
    if _alone(view) is not None:
        return None
    spec = view.observed.model.spec
    whose = (
        "no pod of the present revision has measured"
        if spec is None or spec.model.protocol is None
        else "of a container of one's own nobody measures"
    )
    return unknown(Reason.NOT_MEASURED, f"{whose} how long a row takes")


def _a_row_alone_is_late(view: View) -> Finding | None:
    target, alone = _target(view), _alone(view)
    if target is None or alone is None or alone <= target:
        return None
    return no(
        Reason.OUT_OF_REACH,
        f"{_told(alone)}, longer than targetLatencyMilliseconds ({target}): rows will be late "
        "whatever the number of pods",
    )


def _a_row_alone_is_in_time(view: View) -> Finding | None:
    alone = _alone(view) or 0.0
    told = f"{_told(alone)}, within targetLatencyMilliseconds ({_target(view)})"
    return yes(Reason.WITHIN_REACH, told)


def _target(view: View) -> int | None:
    spec = view.observed.model.spec
    return None if spec is None else spec.batching.target_latency_milliseconds


def _alone(view: View) -> float | None:
    """Milliseconds, learnt of pods of the present revision; of others they say nothing."""
    learnt = capacity_of(view.observed.model.status)
    if learnt is None or learnt.revision != view.observed.revision:
        return None
    seconds = learnt.shortest_latency_seconds
    return None if seconds is None else seconds * 1000


def _told(milliseconds: float) -> str:
    return f"a row alone takes {milliseconds:.3g} ms on an idle pod"


TARGET_FEASIBLE: Final = Condition(
    type="TargetFeasible",
    checks=(
        _there_is_no_target,
        _nobody_has_measured,
        _a_row_alone_is_late,
        _a_row_alone_is_in_time,
    ),
)
