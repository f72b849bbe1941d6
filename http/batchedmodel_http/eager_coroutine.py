"""A coroutine that runs at once and without a task until it has to wait, and then goes on.

Used by the connections for each request: a task costs a turn of the loop and some microseconds of
registration. The price: within it nothing can ask for the current task, as time limits do; what
needs one is given a task of its own.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class EagerCoroutine(Generic[Result]):
    """Runs one coroutine to its end, and tells its result or its error to `ended`, once."""

    __slots__ = ("_cancelled", "_ended", "_loop", "_waits_for", "_work")

    def __init__(
        self,
        work: Coroutine[Any, Any, Result],
        ended: Callable[[Result | None, BaseException | None], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`ended` may be called before this returns, if the work never waits."""
        self._work = work
        self._ended = ended
        self._loop = loop
        self._waits_for: asyncio.Future[Any] | None = None
        self._cancelled = False
        self._go_on()

    def cancel(self) -> None:
        """End it: whoever it waits for is cancelled, as by a task. `ended` is not called."""
        self._ended = _unheard
        if self._waits_for is None or not self._waits_for.cancel():
            self._cancelled = True

    def _go_on(self, done: asyncio.Future[Any] | None = None) -> None:
        self._waits_for = None
        try:
            if self._cancelled:
                self._cancelled = False
                awaited = self._work.throw(asyncio.CancelledError())
            else:
                awaited = self._work.send(None)
        except StopIteration as end:
            self._ended(end.value, None)
        except asyncio.CancelledError:
            self._ended(None, None)
        except BaseException as error:
            # Libraries in other languages raise such too, and whoever asked must hear of it.
            self._ended(None, error)
        else:
            if awaited is None:  # a bare turn of the loop
                self._loop.call_soon(self._go_on)
                return
            # What a future sets for its task, so that one which is merely yielded is seen as wrong.
            # The name is the protocol of all futures and their tasks, asyncio's or not.
            awaited._asyncio_future_blocking = False  # noqa: SLF001
            self._waits_for = awaited
            awaited.add_done_callback(self._go_on)


def _unheard(result: object, error: BaseException | None) -> None:
    """Nobody is interested any more."""
