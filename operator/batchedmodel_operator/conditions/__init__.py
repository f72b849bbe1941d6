"""The conditions of a BatchedModel's status, each a list of named checks. Pure.

Called by `status`. `check` says what a check is, `view` what it may look at.
"""

from typing import Final

from batchedmodel_operator.conditions.autoscaling_active import AUTOSCALING_ACTIVE
from batchedmodel_operator.conditions.available import AVAILABLE
from batchedmodel_operator.conditions.capacity import CAPACITY_AVAILABLE
from batchedmodel_operator.conditions.check import Condition, Verdict, listed
from batchedmodel_operator.conditions.degraded import DEGRADED
from batchedmodel_operator.conditions.model_loaded import MODEL_LOADED
from batchedmodel_operator.conditions.progressing import PROGRESSING
from batchedmodel_operator.conditions.ready import READY
from batchedmodel_operator.conditions.reasons import Reason
from batchedmodel_operator.conditions.reconciled import RECONCILED
from batchedmodel_operator.conditions.target_feasible import TARGET_FEASIBLE
from batchedmodel_operator.conditions.view import View

CONDITIONS: Final[tuple[Condition, ...]] = (
    READY,
    RECONCILED,
    AVAILABLE,
    PROGRESSING,
    CAPACITY_AVAILABLE,
    MODEL_LOADED,
    AUTOSCALING_ACTIVE,
    TARGET_FEASIBLE,
    DEGRADED,
)
"""In the order in which they are listed and announced."""

__all__ = ["CONDITIONS", "Reason", "Verdict", "View", "listed"]
