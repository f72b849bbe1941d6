"""An error that is answered keeps nothing of the request that it answers."""

import asyncio
import gc
import weakref

from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.errors import Rejected
from batchedmodel_sidecar.http.request import RequestHead
from batchedmodel_sidecar.http.responses import Refusals
from batchedmodel_sidecar.protocols.table import public_protocols
from batchedmodel_sidecar.telemetry.ledger import Ledger


class Body:
    """What a frame holds."""


async def refused(body: Body, future: asyncio.Future[None]) -> None:
    """As who reads a body by way of a future: the frame has both, and the future has the error."""
    try:
        await future
    except Rejected as error:
        raise Rejected(Rejection.INVALID, "translated") from error


async def test_a_body_goes_with_its_refusal_though_a_future_keeps_the_error() -> None:
    refusals = Refusals(Ledger(), public_protocols())
    head = RequestHead(method="POST", target="/v1/embeddings", headers={}, declared=0)
    body, future = Body(), asyncio.get_running_loop().create_future()
    future.set_exception(Rejected(Rejection.INVALID, "wrong"))
    known = weakref.ref(body)
    gc.disable()
    try:
        try:
            await refused(body, future)
        except Rejected as error:
            status = refusals.response(head, error).status
        assert status == 400
        del body, future
        assert known() is None
    finally:
        gc.enable()
