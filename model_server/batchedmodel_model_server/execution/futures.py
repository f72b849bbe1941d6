"""The one way in which a waiter gets its outcome, and waiting for whichever event comes first."""

import asyncio
from typing import TypeVar

from batchedmodel_model_server.errors import ModelServerError
from batchedmodel_model_server.execution.torch_errors import words

Outcome = TypeVar("Outcome")


def settle(waiter: asyncio.Future[Outcome], outcome: Outcome | BaseException) -> None:
    """Give the waiter its result or error, unless it has left; on the loop's thread only."""
    if waiter.done():
        return
    if isinstance(outcome, BaseException):
        waiter.set_exception(outcome)
    else:
        waiter.set_result(outcome)


def fit_for_a_future(error: BaseException) -> Exception:
    """The error of work in a thread, as its waiter can be told of it.

    A future refuses StopIteration, SystemExit would end the loop that awaits it, and panics of
    libraries in other languages are no `Exception` either.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = ModelServerError(f"the handler raised {words(error)}")
    wrapped.__cause__ = error
    return wrapped


async def either(*events: asyncio.Event) -> None:
    """Return once one of them is set."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
