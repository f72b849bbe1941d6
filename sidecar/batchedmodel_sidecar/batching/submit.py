"""To await a call, for whoever does not hear of its end by a call of its own."""

import asyncio
from functools import partial

from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_sidecar.answers import Answer
from batchedmodel_sidecar.batching.batcher import Batcher
from batchedmodel_sidecar.batching.pending_request import Keep, Result
from batchedmodel_sidecar.calls import Call
from batchedmodel_sidecar.protocols.headers import NO_OPTIONS, RequestOptions


async def submit(
    to: Batcher,
    call: Call,
    arrived: float | None = None,
    options: RequestOptions = NO_OPTIONS,
    share: Share = NOBODY,
    keep: Keep | None = None,
) -> Answer:
    """The answer to a call; raises `Rejected`, `Unserved`, `Expired` or `GivenUp`.

    Its time counts from `arrived`, by default from now. `keep`: see `PendingRequest`. Cancelling
    the await withdraws it.
    """
    future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    pending = to.offer(call, arrived, options, share, partial(_settle, future), keep)
    try:
        return await future
    except asyncio.CancelledError:
        to.withdraw(pending)
        raise
    finally:
        # Its error holds this frame, which would keep the error, the call and its rows alive.
        del pending, future


def _settle(future: asyncio.Future[Answer], result: Result) -> None:
    """Tell whoever awaits a call how it ended, unless it has left."""
    if future.done():
        return
    if isinstance(result, Answer):
        future.set_result(result)
    elif result is not None:
        future.set_exception(result)
