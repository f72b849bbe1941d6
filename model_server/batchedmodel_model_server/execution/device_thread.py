"""The one thread that owns the device: every forward pass runs here, one behind the other.

So do loading and warm-up while nothing is served. The event loop hands work over and waits; nothing
else ever touches a model that is served. A second thread of this kind loads new versions beside
that, and hands its trial passes over to the first.

Steps of texts have a line of their own. Batches that can run in parts share the device with them as
`DeviceShares` says; everything else counts as a batch of one part.
"""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from batchedmodel_model_server.errors import ModelServerError, words
from batchedmodel_model_server.execution.watchdog import Watchdog
from batchedmodel_scheduling.engine.device_shares import DEFAULT_TOKEN_SECONDS, DeviceShares

LONGEST_TRIAL_SECONDS: Final = 60.0
"""A trial pass that takes longer counts as hung; nobody knows yet how long it should take."""
Result = TypeVar("Result")
_log = logging.getLogger(__name__)


class Divisible(Protocol):
    """Work that the device may do in parts, with steps of texts between them."""

    def smallest_seconds(self) -> float:
        """How long its next part takes where that is as small as can be."""
        ...

    def run(self, seconds: float) -> bool:
        """Do as much of it as takes so long, and the smallest part at least; whether all is done.

        It is called again until that is so, or raises.
        """
        ...


class _Whole(Generic[Result]):
    """Work in one part, and its result."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work: Final = work
        self.result: Result

    def smallest_seconds(self) -> float:
        """Unknown, so it counts as nothing."""
        return 0.0

    def run(self, seconds: float) -> bool:
        """All of it, however long it takes."""
        self.result = self._work()
        return True


class _Step(NamedTuple):
    work: Callable[[bool], object]
    target: float | None


class _Batch(NamedTuple):
    work: Divisible
    waiter: asyncio.Future[None]


class DeviceThread:
    """Runs what it is handed: of steps and of all else what came first."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str = "compute",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._arrived: SimpleQueue[_Step | _Batch | None] = SimpleQueue()
        # Of the thread alone:
        self._steps: deque[_Step] = deque()
        self._batches: deque[_Batch] = deque()
        self._shares = DeviceShares()
        self._longest = math.inf
        """Seconds that a batch may run where no step waits. A text that comes meanwhile waits as
        long for its first token, so they are bounded once there are texts at all."""
        self._ends = False
        # A thread deep in a library's loading cannot be stopped, and must not hold up the exit.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to take work."""
        self._thread.start()

    async def call(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, or its exception.

        Work whose caller left before it began is dropped.
        """
        whole = _Whole(work)
        await self.divided(whole)
        return whole.result

    async def divided(self, work: Divisible) -> None:
        """Return when all of the work is done, or raise its exception.

        Its parts run one behind the other, and no other batch between them. What is left of it when
        its caller leaves is dropped.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._arrived.put(_Batch(work, waiter))
        await waiter

    def post(self, work: Callable[[bool], object], target: float | None = None) -> None:
        """Have a step of texts done, from any thread; what it raises is only logged.

        `work` is told whether a batch waits. `target`: seconds between two tokens, if one is set.
        """
        self._arrived.put(_Step(work, target))

    def finish(self) -> None:
        """End the thread when everything handed over so far is done."""
        self._arrived.put(None)

    def join(self, timeout: float) -> None:
        """Wait for the end; blocks, so only after the loop has nothing left to do."""
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while self._has_work or not self._ends:
                self._sort_arrived(wait=not self._has_work)
                if (seconds := self._for_batch()) > 0:
                    self._run_batch(seconds)
                elif self._steps:
                    self._run_step()
        except RuntimeError:
            _log.debug("the loop closed before the work was done")

    @property
    def _has_work(self) -> bool:
        return bool(self._steps or self._batches)

    def _sort_arrived(self, *, wait: bool) -> None:
        """Put what has come into its line; `wait` for something to come."""
        while not self._ends:
            try:
                came = self._arrived.get(block=wait)
            except Empty:
                break
            wait = False
            if came is None:
                self._ends = True
            elif isinstance(came, _Step):
                self._steps.append(came)
            else:
                self._batches.append(came)
            # A name that is kept until the next comes keeps the model that the work is about.
            del came
        while self._batches and self._batches[0].waiter.done():
            self._batches.popleft()

    def _for_batch(self) -> float:
        """How long the first batch may run now; 0 where a step is next, or nothing.

        Raises as `_end_batch` does.
        """
        if not self._batches:
            return 0.0
        if not self._steps:
            return self._longest
        try:
            smallest = self._batches[0].work.smallest_seconds()
        except BaseException as error:
            self._end_batch(fit_for_a_future(error))
            return 0.0
        return self._shares.for_batch(self._steps[0].target, smallest)

    def _run_step(self) -> None:
        began = self._clock()
        self._longest = DEFAULT_TOKEN_SECONDS
        try:
            self._steps.popleft().work(bool(self._batches))
        except BaseException as error:
            # Even SystemExit: this thread's death would leave every caller hanging.
            _log.error("work that nobody waits for failed", exc_info=fit_for_a_future(error))
        seconds = self._clock() - began
        self._sort_arrived(wait=False)
        self._shares.step_ran(seconds, batch_waits=bool(self._batches))

    def _run_batch(self, seconds: float) -> None:
        """Raises as `_end_batch` does."""
        work = self._batches[0].work
        began, step_waited = self._clock(), bool(self._steps)
        done, error = True, None
        try:
            done = work.run(seconds)
        except BaseException as raised:
            error = fit_for_a_future(raised)
        self._shares.batch_ran(self._clock() - began, step_waited=step_waited)
        if done:
            self._end_batch(error)

    def _end_batch(self, error: Exception | None) -> None:
        """Raises `RuntimeError` when the loop is closed and the waiter cannot be told."""
        self._loop.call_soon_threadsafe(settle, self._batches.popleft().waiter, error)


class TrialScheduling:
    """Lets trial passes run between those of the model that serves.

    A thread that loads a model calls `take`. Its clock stands still while it waits, so that it
    measures the pass and not the queue in front of it. The event loop calls `turn`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        compute: DeviceThread,
        watchdog: Watchdog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = loop
        self._compute = compute
        self._watchdog = watchdog
        self._now = clock
        self._waited = 0.0

    def clock(self) -> float:
        """Seconds of a clock that stands still between turns."""
        return self._now() - self._waited

    def take(self, work: Callable[[], Result]) -> Result:
        """The result of work that the compute thread does, or its exception."""
        took = 0.0

        def timed() -> Result:
            nonlocal took
            began = self._now()
            try:
                return work()
            finally:
                took = self._now() - began

        came = self._now()
        try:
            return asyncio.run_coroutine_threadsafe(self.turn(timed), self._loop).result()
        finally:
            self._waited += self._now() - came - took

    async def turn(self, work: Callable[[], Result]) -> Result:
        """The same, on the event loop."""

        def watched() -> Result:
            # Whoever is served would wait for ever behind a pass that does not end.
            self._watchdog.pass_begins(LONGEST_TRIAL_SECONDS)
            try:
                return work()
            finally:
                self._watchdog.pass_ends()

        return await self._compute.call(watched)


def settle(waiter: asyncio.Future[Result], outcome: Result | BaseException) -> None:
    """Give the waiter its result or error, unless it has left; on the loop's thread only."""
    if waiter.done():
        return
    if isinstance(outcome, BaseException):
        waiter.set_exception(outcome)
    else:
        waiter.set_result(outcome)


def fit_for_a_future(error: BaseException) -> Exception:
    """The error of work in a thread, in a form that a future takes.

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
