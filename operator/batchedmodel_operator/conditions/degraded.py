"""`Degraded`: whether less serves than is asked for, or something older, and time does not help.

The only condition that is good news when it is False.
"""

from typing import Final

from batchedmodel_operator.conditions.check import Condition, Finding, no, yes
from batchedmodel_operator.conditions.progressing import the_deadline_passed
from batchedmodel_operator.conditions.reasons import Reason
from batchedmodel_operator.conditions.view import View


def _the_last_good_revision_is_back(view: View) -> Finding | None:
    return None if not view.taken_back else yes(Reason.ROLLED_BACK, view.taken_back)


def _pods_are_missing_for_a_reason(view: View) -> Finding | None:
    counts, why = view.counts, _why(view)
    if counts.ready >= counts.desired or not why:
        return None
    reason = Reason.PARTIAL_REPLICAS if counts.ready else Reason.NO_READY_REPLICAS
    return yes(reason, f"{counts.ready} of {counts.desired} pods are ready; {why}")


def _all_is_as_expected(view: View) -> Finding | None:
    return no(Reason.AS_EXPECTED, "nothing is known to be amiss")


def _why(view: View) -> str:
    if view.diagnosis is not None:
        return view.diagnosis.message
    stuck = the_deadline_passed(view)
    return "" if stuck is None else stuck.message


DEGRADED: Final = Condition(
    type="Degraded",
    checks=(
        _the_last_good_revision_is_back,
        _pods_are_missing_for_a_reason,
        _all_is_as_expected,
    ),
)
