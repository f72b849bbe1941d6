"""Bounds in time what is mostly done at once, and sets a timer only where it is not.

Most bodies are parsed without waiting for anything, and a timer that is set and cancelled costs as
much as parsing a small one. Neither the caller nor the work need be a task: what the work waits for
when its time is over is cancelled.
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

Result = TypeVar("Result")


async def within(seconds: float, work: Coroutine[Any, Any, Result]) -> tuple[Result, bool]:
    """What the work returns, and whether it had to wait, so that others ran meanwhile.

    Raises `TimeoutError` when the wait is longer, once the work has ended.
    """
    try:
        rest = _Rest(work.send(None), work)
    except StopIteration as done:
        result: Result = done.value
        return result, False
    timer = asyncio.get_running_loop().call_later(seconds, rest.cut_short)
    try:
        return await rest, True
    except asyncio.CancelledError:
        if rest.is_late:
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()


class _Rest:
    """A coroutine that has begun and waits for something."""

    def __init__(self, awaited: Any, work: Coroutine[Any, Any, Any]) -> None:
        self._awaited = awaited
        self._work = work
        self.is_late = False

    def cut_short(self) -> None:
        """Its time is over."""
        self.is_late = True
        if self._awaited is not None:
            self._awaited.cancel()

    def __await__(self) -> Generator[Any, Any, Any]:
        while True:
            try:
                # Nothing here keeps an error, nor a future that may have it: the error's traceback
                # keeps this frame, and so all that the work held.
                try:
                    sent = yield self._awaited
                except BaseException as error:
                    # A cancellation is the work's to handle.
                    self._awaited = None
                    self._awaited = self._work.throw(error)
                else:
                    self._awaited = None
                    self._awaited = self._work.send(sent)
            except StopIteration as done:
                return done.value
            if self.is_late:
                asyncio.get_running_loop().call_soon(self.cut_short)
