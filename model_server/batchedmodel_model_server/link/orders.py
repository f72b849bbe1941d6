"""Orders of the model repository (Triton's extension), and errors as a sidecar gets them."""

import asyncio
import logging
from typing import Any, Final

import orjson

from batchedmodel_contract.inference.batch import BatchFailure
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link.model_frames import Answer, Order
from batchedmodel_model_server.errors import (
    CannotLoad,
    DeviceLost,
    NotReady,
    Overloaded,
    UnknownModel,
    legible,
    words,
)
from batchedmodel_model_server.lifecycle.service import ModelService

_MAX_MESSAGE_CHARACTERS: Final = 8192  # of 4 bytes: half of what FAILED may have
_FIELDS: Final = {
    Order.INDEX: ("ready",),
    Order.LOAD: (),
    # Stock clients send whether dependent models should go, too; there are none.
    Order.UNLOAD: ("unload_dependents",),
}
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
            message = _bounded(str(error))
            return BatchFailure(status=status, message=message, at_work=kind is DeviceLost)
    _log.error("%s failed", work, exc_info=error)
    return BatchFailure(status=500, message=_bounded(words(error)))


def _bounded(message: str) -> str:
    return legible(message[:_MAX_MESSAGE_CHARACTERS])[:_MAX_MESSAGE_CHARACTERS]


async def carried_out(service: ModelService, order: Order, body: bytes) -> Answer:
    """What came of an order, once it is carried out; `body`: its JSON, or nothing."""
    try:
        fields = _read(body, _FIELDS[order])
        if order is Order.INDEX:
            rows = service.index(ready_only=fields.get("ready") is True)
            return Answer(200, orjson.dumps(rows))
        await (service.load() if order is Order.LOAD else service.unload())
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return refused(error, order)
    return Answer(200, b"{}")


def refused(error: BaseException, order: Order) -> Answer:
    """Why an order is not carried out."""
    failed = failure(error, order)
    return Answer(failed.status, orjson.dumps({"error": failed.message}))


def _read(body: bytes, known: tuple[str, ...]) -> dict[str, Any]:
    """Fields of the body, as themselves or as parameters.

    Raises `InvalidInput` for what is not known: a configuration or files that are sent along, which
    Triton takes, would otherwise seem to be in force.
    """
    try:
        document = orjson.loads(body) if body.strip() else {}
    except orjson.JSONDecodeError as error:
        raise InvalidInput("body", f"is no JSON: {error}") from error
    parameters = document.pop("parameters", {}) if isinstance(document, dict) else None
    if not isinstance(parameters, dict):
        raise InvalidInput("body", "is not an object whose parameters are one, too")
    fields = {**document, **parameters}
    for name in fields:
        if name not in known:
            raise InvalidInput(name, "is not taken here")
    return fields
