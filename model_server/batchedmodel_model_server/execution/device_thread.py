"""The one thread that owns the device: every forward pass runs here, one behind the other.

So do loading and warm-up while nothing is served. The event loop hands work over and waits; nothing
else ever touches a model that is served. A second thread of this kind loads new versions beside
that, and hands its trial passes over to the first.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from batchedmodel_model_server.errors import ModelServerError
from batchedmodel_model_server.execution.torch_errors import words
from batchedmodel_model_server.execution.watchdog import Watchdog

LONGEST_TRIAL_SECONDS: Final = 60.0
"""A trial pass that takes longer counts as hung; nobody knows yet how long it should take."""
Result = TypeVar("Result")
_log = logging.getLogger(__name__)


class DeviceThread:
    """Runs what it is handed, first come first served."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str = "compute") -> None:
        self._loop = loop
        self._jobs: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any] | None] | None]
        self._jobs = SimpleQueue()
        # A thread deep in a library's loading cannot be stopped, and must not hold up the exit.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to take work."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    async def call(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, or its exception.

        Work whose caller left before it began is dropped.
        """
        waiter: asyncio.Future[Result] = self._loop.create_future()
        self._jobs.put((work, waiter))
        return await waiter

    def post(self, work: Callable[[], object]) -> None:
        """Have work done behind what is there, from any thread; what it raises is only logged."""
        self._jobs.put((work, None))

    def finish(self) -> None:
        """End the thread when everything handed over so far is done."""
        self._jobs.put(None)

    def join(self, timeout: float) -> None:
        """Wait for the end; blocks, so only after the loop has nothing left to do."""
        self._thread.join(timeout)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._do(*job)
            except RuntimeError:
                _log.debug("the loop closed before the work was done")
                return
            # A job that is kept until the next one comes keeps the model that it is about.
            del job

    def _do(self, work: Callable[[], Any], waiter: asyncio.Future[Any] | None) -> None:
        """Raises `RuntimeError` when the loop is closed and the waiter cannot be told."""
        if waiter is not None and waiter.done():
            return
        try:
            outcome = work()
        except BaseException as error:
            # Even SystemExit: this thread's death would leave every caller hanging.
            outcome = fit_for_a_future(error)
            if waiter is None:
                _log.error("work that nobody waits for failed", exc_info=outcome)
        if waiter is not None:
            self._loop.call_soon_threadsafe(settle, waiter, outcome)


class TrialScheduling:
    """Lets a thread that loads a model run its trial passes between those of the model that serves.

    One for each load, called on the loading thread. Its clock stands still while it waits, so that
    it measures the pass and not the queue in front of it.
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
            # Whoever is served would wait for ever behind a pass that does not end.
            self._watchdog.pass_begins(LONGEST_TRIAL_SECONDS)
            try:
                return work()
            finally:
                self._watchdog.pass_ends()
                took = self._now() - began

        came = self._now()
        try:
            return asyncio.run_coroutine_threadsafe(self._compute.call(timed), self._loop).result()
        finally:
            self._waited += self._now() - came - took


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
