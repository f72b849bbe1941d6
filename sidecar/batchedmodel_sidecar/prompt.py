"""Bounds in time what is mostly done at once, and pays for a timer only where it is not.

Called by the front around the reading of bodies: most are parsed without waiting for anything, and
a timer that is set and cancelled costs as much as parsing a small one.
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

Result = TypeVar("Result")


async def within(seconds: float, work: Coroutine[Any, Any, Result]) -> Result:
    """What the work returns; raises `TimeoutError` when it has to wait and that lasts longer."""
    try:
        awaited = work.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    async with asyncio.timeout(seconds):
        rest: Result = await _Rest(awaited, work)
        return rest


class _Rest:
    """A coroutine that has begun and waits for something."""

    def __init__(self, awaited: Any, work: Coroutine[Any, Any, Any]) -> None:
        self._awaited = awaited
        self._work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        awaited = self._awaited
        while True:
            try:
                # Each error goes straight on: kept in a name of this frame it would, by its
                # traceback, keep the frame, and so all that the work held.
                try:
                    sent = yield awaited
                except BaseException as error:
                    # A cancellation, the timer's as well, is the work's to handle.
                    awaited = self._work.throw(error)
                else:
                    awaited = self._work.send(sent)
            except StopIteration as done:
                return done.value
