"""The one way in which a waiter gets its outcome, and waiting for whichever event comes first."""

import asyncio
from typing import TypeVar

Outcome = TypeVar("Outcome")


def settle(waiter: asyncio.Future[Outcome], outcome: Outcome | BaseException) -> None:
    """Give the waiter its result or error, unless it has left; on the loop's thread only."""
    if waiter.done():
        return
    if isinstance(outcome, BaseException):
        waiter.set_exception(outcome)
    else:
        waiter.set_result(outcome)


async def either(*events: asyncio.Event) -> None:
    """Return once one of them is set."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
