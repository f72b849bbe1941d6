"""The one way in which a waiter gets its outcome."""

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
