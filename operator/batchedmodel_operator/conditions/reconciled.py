"""`Reconciled`: whether the cluster took what the operator made of the manifest."""

from typing import Final

from batchedmodel_kube.errors import Forbidden, Invalid, NameTaken, QuotaExceeded
from batchedmodel_operator.conditions.check import Condition, Finding, no, yes
from batchedmodel_operator.conditions.reasons import Reason
from batchedmodel_operator.conditions.view import View
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.reconcile.plan import Failure
from batchedmodel_operator.reconcile.pod_failures import refused_pod


def _the_spec_cannot_be_read(view: View) -> Finding | None:
    why = view.observed.model.unread
    return no(Reason.INVALID_OBJECT, why) if why else None


def _the_spec_is_refused(view: View) -> Finding | None:
    if view.observed.model.spec is not None:
        return None
    return no(Reason.INVALID_SPEC, "; ".join(view.observed.model.mistakes))


def _it_was_altered(view: View) -> Finding | None:
    if not view.plan.altered:
        return None
    text = (
        "the manifest reads otherwise than when it was applied, though nobody has edited it: "
        "another definition of BatchedModel drops what it does not know. Its objects are left as "
        "they are: bring the definition back, or edit the manifest"
    )
    return no(Reason.DEFINITION_CHANGED, text)


def _a_step_failed(view: View) -> Finding | None:
    failure = view.failure
    if failure is None:
        return None
    return no(_reason_of(failure), f"{failure.kind} {failure.name}: {failure.error}")


def _a_name_is_taken(view: View) -> Finding | None:
    for obstacle in sorted(view.plan.obstacles, key=lambda one: not one.by_stranger):
        what = f"{obstacle.kind} {obstacle.name}"
        if obstacle.by_stranger:
            known = f" ({obstacle.owner})" if obstacle.owner else ""
            text = f"{what} exists{known} and is none of this BatchedModel's; delete or rename one"
            return no(Reason.NAME_CONFLICT, text)
        return no(Reason.WAITING_FOR_DELETION, f"{what} is being deleted and will be made anew")
    return None


def _somebody_undoes_it(view: View) -> Finding | None:
    for contest in view.plan.contests:
        who = contest.by or "somebody else"
        text = f"{contest.kind} {contest.name} is changed again by {who} whenever it is put right"
        return no(Reason.CONTESTED, text)
    return None


def _all_is_applied(view: View) -> Finding | None:
    return yes(Reason.APPLIED, "everything is applied as the manifest says")


def _reason_of(failure: Failure) -> str:
    error = failure.error
    if isinstance(error, QuotaExceeded):
        return Reason.QUOTA_EXCEEDED
    if isinstance(error, Forbidden):
        return Reason.FORBIDDEN
    if isinstance(error, NameTaken):
        return Reason.NAME_CONFLICT
    if isinstance(error, Invalid):
        if failure.kind is Kind.DEPLOYMENT:
            return refused_pod(str(error))
        return Reason.INVALID_OBJECT
    return Reason.API_ERROR


RECONCILED: Final = Condition(
    type="Reconciled",
    checks=(
        _the_spec_cannot_be_read,
        _the_spec_is_refused,
        _it_was_altered,
        _a_step_failed,
        _a_name_is_taken,
        _somebody_undoes_it,
        _all_is_applied,
    ),
)
