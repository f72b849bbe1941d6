"""A coroutine that runs at once and without a task until it has to wait, and then goes on.

Each request is one, and each batch: a task costs a turn of the loop and some microseconds of
registration. Where it waits for a bare turn of the loop (`asyncio.sleep(0)`), a task goes on with
it: so what asks for the current task, as time limits do, waits a turn before.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Generic, TypeVar

Result = TypeVar("Result")

_OVER: Final = object()


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
        self._work: Any = self._told(work)
        self._ended = ended
        self._loop = loop
        self._waits_for: Any = None
        self._cancelled = False
        self.go_on()

    def cancel(self) -> None:
        """End it: what it waits for is cancelled, as by a task. `ended` is not called."""
        self._ended = _unheard
        if self._waits_for is None or not self._waits_for.cancel():
            self._cancelled = True

    def go_on(self, done: Any = None) -> None:
        """From what it waits for, which is done."""
        self._waits_for = None
        try:
            if self._cancelled:
                self._cancelled = False
                awaited = self._work.throw(asyncio.CancelledError())
            else:
                # Unlike `send` it raises nothing at the end: to catch that took a microsecond.
                awaited = next(self._work.__await__(), _OVER)
        except StopIteration:
            return
        if awaited is _OVER:
            return
        if awaited is None:
            self._waits_for = self._loop.create_task(self._work)
            return
        self._waits_for = awaited
        if isinstance(awaited, DirectFuture):  # as nearly always: without Python's lookups
            awaited.wake(self)
            return
        # What a future sets for its task, so that one which is merely yielded is seen as wrong.
        # The name is the protocol of all futures and their tasks, asyncio's or not.
        awaited._asyncio_future_blocking = False  # noqa: SLF001
        awaited.add_done_callback(self.go_on)

    async def _told(self, work: Coroutine[Any, Any, Result]) -> None:
        """The work, and then the word of its end."""
        try:
            result = await work
        except GeneratorExit:
            raise
        except asyncio.CancelledError:
            self._end(None, None)
        except BaseException as error:
            # Libraries in other languages raise such too, and its caller must hear of it.
            self._end(None, error)
        else:
            self._end(result, None)

    def _end(self, result: Result | None, error: BaseException | None) -> None:
        self._work = self._waits_for = None  # or both would keep each other
        self._ended(result, error)


class DirectFuture(Generic[Result]):
    """A result that one coroutine awaits, which goes on within the call that settles it.

    A future of asyncio's would wake it in another turn of the loop, as this one wakes a task: none
    can go on within another. Awaited once; what was awaited is kept no longer.
    """

    __slots__ = ("_asyncio_future_blocking", "_coroutine", "_end", "_settled", "_waiter")

    def __init__(self) -> None:
        """It is not settled."""
        self._asyncio_future_blocking = False
        """What tasks look at in what is yielded to them, of whatever class."""
        self._settled = False
        self._end: Any = None
        self._coroutine: EagerCoroutine[Any] | None = None
        self._waiter: Callable[[Any], object] | None = None

    def settle(self, end: Result | BaseException) -> None:
        """End it by a result or an error, and go on with its waiter; later ends change nothing."""
        if self._settled:
            return
        self._settled, self._end = True, end
        coroutine, self._coroutine = self._coroutine, None
        if coroutine is not None:
            coroutine.go_on()
            return
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter(self)

    def cancel(self, msg: Any = None) -> bool:
        """Its waiter has left; whether that ends it. `msg` is a part of how tasks ask."""
        was_settled = self._settled
        self.settle(asyncio.CancelledError())
        return not was_settled

    def left(self) -> None:
        """What awaited it was cancelled."""

    def wake(self, coroutine: EagerCoroutine[Any]) -> None:
        """That coroutine, which awaits it, goes on when it is settled."""
        self._asyncio_future_blocking = False
        self._coroutine = coroutine

    def add_done_callback(self, waiter: Callable[[Any], object], *, context: Any = None) -> None:
        """What goes on when it is settled; a task's has a context, and goes on a turn later."""
        self._waiter = waiter if context is None else _later(waiter, context, self.get_loop())

    def result(self) -> None:
        """As tasks ask it before they go on; what it is, `__await__` returns or raises."""

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """As tasks ask it."""
        return asyncio.get_running_loop()

    def __await__(self) -> Generator[Any, Any, Result]:
        """Wait until it is settled; raises its error."""
        if not self._settled:
            self._asyncio_future_blocking = True
            yield self
        end, self._end = self._end, None
        if isinstance(end, BaseException):
            if isinstance(end, asyncio.CancelledError):
                self.left()
            try:
                raise end
            finally:
                del end  # it keeps this frame
        result: Result = end
        return result


def _later(
    waiter: Callable[[Any], object], context: Any, loop: asyncio.AbstractEventLoop
) -> Callable[[Any], object]:
    def wake(done: object) -> None:
        loop.call_soon(waiter, done, context=context)

    return wake


def _unheard(result: object, error: BaseException | None) -> None:
    """Nobody is interested any more."""
