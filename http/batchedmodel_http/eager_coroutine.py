"""A coroutine that runs at once and without a task until it has to wait, and then goes on.

Used by the connections for each request: a task costs a turn of the loop and some microseconds of
registration. The price: within it nothing can ask for the current task, as time limits do; what
needs one is given a task of its own. `Begun` is for what a task goes on with.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
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


class Begun(Generic[Result]):
    """A coroutine that has run until it has to wait; whoever awaits this goes on with it.

    What runs at once runs without a task, or in that of whoever makes this: nothing there may ask
    for the current task. A bare turn of the loop (`asyncio.sleep(0)`) waits for who awaits this.

    Awaited once. An error that was thrown into it holds its frame, and may itself be what the
    result holds: so the frame keeps neither, or a circle would keep all of the work.
    """

    __slots__ = ("_ended", "_result", "_waits_for", "_work")

    def __init__(self, work: Coroutine[Any, Any, Result]) -> None:
        """Raises what the work raises before it waits."""
        self._work = work
        self._ended = False
        self._result: Any = None
        self._waits_for: Any = None
        try:
            self._waits_for = work.send(None)
        except StopIteration as end:
            self._ended, self._result = True, end.value

    def __await__(self) -> Generator[Any, Any, Result]:
        awaited, skips = self._waits_for, self._waits_for is None
        self._waits_for = None
        while not self._ended:
            try:
                try:
                    if not skips:
                        yield awaited
                except BaseException as thrown:
                    awaited = self._work.throw(thrown)
                else:
                    awaited = self._work.send(None)
            except StopIteration as end:
                self._ended, self._result, awaited = True, end.value, None
            skips = False
        return self._taken()

    def _taken(self) -> Result:
        result: Result = self._result
        self._result = None
        return result

    def close(self) -> None:
        """End it where it waits, if it does."""
        self._work.close()


def _unheard(result: object, error: BaseException | None) -> None:
    """Nobody is interested any more."""
