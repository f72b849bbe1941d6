"""Bounds in time what is mostly done at once, and pays for a timer only where it is not.

Called by the data handler around the reading of bodies: most are parsed without waiting for
anything, and a timer that is set and cancelled costs as much as parsing a small one. Its caller
need not be a task; what has to wait becomes one.
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

Result = TypeVar("Result")


async def within(seconds: float, work: Coroutine[Any, Any, Result]) -> tuple[Result, bool]:
    """What the work returns, and whether it had to wait, so that others ran meanwhile.

    Raises `TimeoutError` when it has to wait and that lasts longer.
    """
    try:
        begun = _Rest(work.send(None), work)
    except StopIteration as done:
        result: Result = done.value
        return result, False
    rest = asyncio.create_task(_finished(begun))
    try:
        await asyncio.wait([rest], timeout=seconds)
        if not rest.done():
            await _cut_short(rest)
            if rest.cancelled():
                raise TimeoutError
        return rest.result(), True
    except asyncio.CancelledError:
        await _cut_short(rest)
        raise
    finally:
        # An error keeps this frame, which must not keep the error, in no name and no set of tasks:
        # all that the work held would stay until cycles are collected.
        del rest


async def _finished(begun: "_Rest") -> Any:
    return await begun


async def _cut_short(rest: asyncio.Task[Any]) -> None:
    rest.cancel()
    await asyncio.wait([rest])  # it may hold what its caller is about to take away


class _Rest:
    """A coroutine that has begun and waits for something."""

    def __init__(self, awaited: Any, work: Coroutine[Any, Any, Any]) -> None:
        self._awaited = awaited
        self._work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        awaited, self._awaited = self._awaited, None
        while True:
            try:
                # Each error goes straight on: kept in a name of this frame it would, by its
                # traceback, keep the frame, and so all that the work held. A future that is
                # awaited no more may have it as well.
                try:
                    sent = yield awaited
                except BaseException as error:
                    # A cancellation, the timer's as well, is the work's to handle.
                    awaited = None
                    awaited = self._work.throw(error)
                else:
                    awaited = None
                    awaited = self._work.send(sent)
            except StopIteration as done:
                return done.value
