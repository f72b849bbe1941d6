"""Every error as an answer: a status and `{"error": ...}`."""

import logging
from typing import Final

import orjson

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.processes.server_api import AT_WORK
from batchedmodel_http.response import Response
from batchedmodel_model_server.errors import (
    CannotLoad,
    DeviceLost,
    NotReady,
    Overloaded,
    RowFailed,
    TooSlow,
    UnknownModel,
)
from batchedmodel_model_server.execution.torch_errors import words

_log = logging.getLogger(__name__)

_STATUSES: Final[dict[type[Exception], int]] = {
    InvalidInput: 400,
    CannotLoad: 400,
    UnknownModel: 404,
    TooSlow: 408,
    NotReady: 503,
    Overloaded: 503,
    DeviceLost: 503,
}


def failure(error: BaseException, asked: str) -> Response:
    """The answer to a request, named by its method and path, that ended with this error."""
    if isinstance(error, RowFailed):
        return told(error.status, str(error))
    for kind, status in _STATUSES.items():
        # By kind and not by exact type: a subclass is one of these, too.
        if isinstance(error, kind):
            answer = told(status, str(error))
            return answer.with_header(AT_WORK, "lost") if kind is DeviceLost else answer
    _log.error("%s failed", asked, exc_info=error)
    return told(500, words(error))


def told(status: int, message: str) -> Response:
    """An error's answer."""
    return Response((orjson.dumps({"error": message}),), status=status)
