"""`Progressing`: whether something is still on its way."""

from typing import Final

from batchedmodel_operator.conditions.available import RESTS
from batchedmodel_operator.conditions.check import Condition, Finding, no, yes
from batchedmodel_operator.conditions.reasons import Reason
from batchedmodel_operator.conditions.reconciled import RECONCILED
from batchedmodel_operator.conditions.view import View
from batchedmodel_operator.reconcile.state import condition

_PASSING: Final = frozenset({Reason.WAITING_FOR_DELETION, Reason.API_ERROR})
"""Reasons of not being reconciled that take only patience."""


def _nothing_can_begin(view: View) -> Finding | None:
    reconciled = RECONCILED.judge(view)
    if view.observed.deployment is not None or reconciled.holds or reconciled.reason in _PASSING:
        return None
    text = f"nothing is on its way: {reconciled.reason}"
    return no(Reason.RECONCILE_FAILED, _held_up(view, text))


def the_deadline_passed(view: View) -> Finding | None:
    """The Deployment's controller has given up waiting for pods."""
    progress = condition(view.deployment_status, "Progressing")
    if progress.get("reason") != "ProgressDeadlineExceeded":
        return None
    text = progress.get("message") or "the rollout is stuck"
    return no(Reason.PROGRESS_DEADLINE_EXCEEDED, _held_up(view, text))


def _the_last_good_revision_comes_back(view: View) -> Finding | None:
    if not view.taken_back or not _is_rolling(view):
        return None
    counts = view.counts
    text = f"{counts.updated} of {counts.desired} pods are of the last good revision"
    return yes(Reason.ROLLING_BACK, _held_up(view, f"{text}; {view.taken_back}"))


def _a_revision_rolls_out(view: View) -> Finding | None:
    if not _is_rolling(view):
        return None
    counts, rollout = view.counts, view.plan.rollout
    text = f"{counts.updated} of {counts.desired} pods are of the newest revision"
    if not view.older:
        return yes(Reason.NEW_REVISION_ROLLING_OUT, _held_up(view, text))
    switched = rollout.latched
    reason = Reason.SWITCHED_TO_IN_PLACE if switched else Reason.NEW_REVISION_ROLLING_OUT
    return yes(reason, _held_up(view, f"{text}; {rollout.sentence}"))


def _is_rolling(view: View) -> bool:
    counts = view.counts
    if view.observed.deployment is None or view.older:
        return True
    # Where its controller has not looked yet the pods say more than the numbers.
    return counts.updated < counts.replicas if counts.current else not view.living


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


def _an_earlier_revision_is_back(view: View) -> Finding | None:
    return None if not view.taken_back else no(Reason.ROLLED_BACK, view.taken_back)


def _all_is_done(view: View) -> Finding | None:
    return no(Reason.COMPLETE, "all pods are ready and use the present settings")


def _held_up(view: View, text: str) -> str:
    return text if view.diagnosis is None else f"{text}; {view.diagnosis.message}"


PROGRESSING: Final = Condition(
    type="Progressing",
    checks=(
        _nothing_can_begin,
        the_deadline_passed,
        _the_last_good_revision_comes_back,
        _a_revision_rolls_out,
        _pods_come_or_go,
        _it_rests,
        _settings_are_on_their_way,
        _an_earlier_revision_is_back,
        _all_is_done,
    ),
)
