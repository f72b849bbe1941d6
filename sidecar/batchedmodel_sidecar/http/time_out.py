"""Bounds in time what is mostly done at once, and sets a timer only where it is not.

Most bodies are parsed without waiting for anything, and a timer that is set and cancelled costs as
much as parsing a small one. The caller need not be a task; work that has to wait becomes one.
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

Result = TypeVar("Result")


async def within(seconds: float, work: Coroutine[Any, Any, Result]) -> tuple[Result, bool]:
    """What the work returns, and whether it had to wait, so that others ran meanwhile.

    Raises `TimeoutError` when the wait is longer.
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
        # An error keeps this frame. If the frame kept the error too, all that the work held would
        # stay until cycles are collected.
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
                # No name of this frame keeps an error, nor a future that may have it: the error's
                # traceback keeps the frame, and so all that the work held.
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
