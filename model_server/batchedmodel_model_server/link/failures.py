"""Every error as the status and the message that a sidecar gets."""

import logging
from typing import Final

from batchedmodel_contract.inference.batch import BatchFailure
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_model_server.errors import (
    CannotLoad,
    DeviceLost,
    NotReady,
    Overloaded,
    UnknownModel,
    legible,
    words,
)

CANCELLED: Final = BatchFailure(status=499, message="cancelled")
_STATUSES: Final[dict[type[Exception], int]] = {
    InvalidInput: 400,
    CannotLoad: 400,
    UnknownModel: 404,
    NotReady: 503,
    Overloaded: 503,
    DeviceLost: 503,
}
_log = logging.getLogger(__name__)


def failure(error: BaseException, work: str) -> BatchFailure:
    """Why a batch or an order has no result; `work` names it in the log."""
    for kind, status in _STATUSES.items():
        # By kind and not by exact type: a subclass is one of these, too.
        if isinstance(error, kind):
            message = legible(str(error))
            return BatchFailure(status=status, message=message, at_work=kind is DeviceLost)
    _log.error("%s failed", work, exc_info=error)
    return BatchFailure(status=500, message=legible(words(error)))
