"""Orders of the model repository: index, load and unload, in the form of Triton's extension."""

import asyncio
from typing import Any, Final

import orjson

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link.model_frames import Answer, Order
from batchedmodel_model_server.lifecycle.service import ModelService
from batchedmodel_model_server.link.failures import failure

_DONE: Final = Answer(200, b"{}")
_FIELDS: Final = {
    Order.INDEX: ("ready",),
    Order.LOAD: (),
    # Stock clients send whether dependent models should go, too; there are none.
    Order.UNLOAD: ("unload_dependents",),
}


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
    return _DONE


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
