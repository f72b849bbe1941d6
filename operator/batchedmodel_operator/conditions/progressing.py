"""`Progressing`: whether something is still on its way."""

from typing import Final

from batchedmodel_operator.conditions.available import RESTS
from batchedmodel_operator.conditions.check import Condition, Finding, no, yes
from batchedmodel_operator.conditions.reasons import Reason
from batchedmodel_operator.conditions.reconciled import RECONCILED
from batchedmodel_operator.conditions.view import View
from batchedmodel_operator.observed import condition

_PASSING: Final = frozenset({Reason.WAITING_FOR_DELETION, Reason.API_ERROR})
"""Reasons of not being reconciled that take only patience."""


def _nothing_can_begin(view: View) -> Finding | None:
    reconciled = RECONCILED.judge(view)
    if view.observed.deployment is not None or reconciled.holds or reconciled.reason in _PASSING:
        return None
    text = f"nothing is on its way: {reconciled.reason}"
    return no(Reason.RECONCILE_FAILED, _held_up(view, text))


def _the_deadline_passed(view: View) -> Finding | None:
    progress = condition(view.deployment_status, "Progressing")
    if progress.get("reason") != "ProgressDeadlineExceeded":
        return None
    text = progress.get("message") or "the rollout is stuck"
    return no(Reason.PROGRESS_DEADLINE_EXCEEDED, _held_up(view, text))


def _a_revision_rolls_out(view: View) -> Finding | None:
    counts = view.counts
    known = view.observed.deployment is not None and counts.current
    if known and not view.older and counts.updated >= counts.replicas:
        return None
    text = f"{counts.updated} of {counts.desired} pods are of the newest revision"
    return yes(Reason.NEW_REVISION_ROLLING_OUT, _held_up(view, text))


def _pods_come_or_go(view: View) -> Finding | None:
    counts = view.counts
    if counts.ready == counts.desired == counts.replicas:
        return None
    text = f"{counts.ready} of {counts.desired} pods are ready"
    return yes(Reason.SCALING, _held_up(view, text))


def _it_rests(view: View) -> Finding | None:
    return no(Reason.SUSPENDED, RESTS) if view.suspended else None


def _settings_are_on_their_way(view: View) -> Finding | None:
    if not view.plan.unconfirmed:
        return None
    text = f"not known to use the present batch settings: {', '.join(view.plan.unconfirmed)}"
    return yes(Reason.BATCH_SETTINGS_ROLLING_OUT, _held_up(view, text))


def _all_is_done(view: View) -> Finding | None:
    return no(Reason.COMPLETE, "all pods are ready and use the present settings")


def _held_up(view: View, text: str) -> str:
    return text if view.diagnosis is None else f"{text}; {view.diagnosis.message}"


PROGRESSING: Final = Condition(
    type="Progressing",
    checks=(
        _nothing_can_begin,
        _the_deadline_passed,
        _a_revision_rolls_out,
        _pods_come_or_go,
        _it_rests,
        _settings_are_on_their_way,
        _all_is_done,
    ),
)
