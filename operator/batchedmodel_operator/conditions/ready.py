"""`Ready`, the summary: whether what the manifest says is what serves."""

from typing import Final

from batchedmodel_operator.conditions.available import RESTS
from batchedmodel_operator.conditions.check import Condition, Finding, no, yes
from batchedmodel_operator.conditions.reasons import Reason
from batchedmodel_operator.conditions.reconciled import RECONCILED
from batchedmodel_operator.conditions.view import View


def _it_is_not_reconciled(view: View) -> Finding | None:
    reconciled = RECONCILED.judge(view)
    # What the API server could not take just now changes nothing about what serves.
    if reconciled.holds or reconciled.reason == Reason.API_ERROR:
        return None
    text = f"{reconciled.reason}: {reconciled.message}"
    return no(Reason.RECONCILE_FAILED, _beside_older(view, text))


def _it_rests(view: View) -> Finding | None:
    return no(Reason.SUSPENDED, RESTS) if view.suspended else None


def _the_revision_failed(view: View) -> Finding | None:
    if not view.taken_back:
        return None
    return no(Reason.ROLLOUT_FAILED, _beside_older(view, view.taken_back))


def _no_pods_are_wanted(view: View) -> Finding | None:
    return yes(Reason.SCALED_TO_ZERO, "no pods are wanted") if view.empty else None


def _new_pods_serve(view: View) -> Finding | None:
    serving = sum(pod.ready for pod in view.living)
    if not serving:
        return None
    return yes(Reason.SERVING, f"{serving} of {view.counts.desired} pods serve")


def _pods_are_in_trouble(view: View) -> Finding | None:
    if view.diagnosis is None:
        return None
    return no(view.diagnosis.trouble, _beside_older(view, view.diagnosis.message))


def _pods_load(view: View) -> Finding | None:
    if not view.living:
        return None
    text = f"{len(view.living)} pods load their model"
    return no(Reason.MODEL_LOADING, _beside_older(view, text))


def _there_are_no_pods(view: View) -> Finding | None:
    return no(Reason.NO_READY_REPLICAS, _beside_older(view, "the pods are not there yet"))


def _beside_older(view: View, text: str) -> str:
    ready = view.counts.ready
    return f"{text}; {ready} pods of an earlier revision serve" if ready else text


READY: Final = Condition(
    type="Ready",
    checks=(
        _it_is_not_reconciled,
        _it_rests,
        _the_revision_failed,
        _no_pods_are_wanted,
        _new_pods_serve,
        _pods_are_in_trouble,
        _pods_load,
        _there_are_no_pods,
    ),
)
