"""The one thread that owns the device: every forward pass runs here, one behind the other.

So do loading and warm-up while nothing is served. The event loop hands work over and waits; nothing
else ever touches a model that is served. A second one loads new versions beside that.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from batchedmodel_model_server.execution.futures import fit_for_a_future, settle

Result = TypeVar("Result")
_log = logging.getLogger(__name__)


class _Job(NamedTuple):
    work: Callable[[], Any]
    waiter: asyncio.Future[Any]


class DeviceThread:
    """Runs what it is handed, first come first served."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str = "compute") -> None:
        self._loop = loop
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
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
        """The result of `work`, or its exception. Work whose caller left before it began is
        dropped.
        """
        waiter: asyncio.Future[Result] = self._loop.create_future()
        self._jobs.put(_Job(work=work, waiter=waiter))
        return await waiter

    def finish(self) -> None:
        """End the thread when everything handed over so far is done."""
        self._jobs.put(None)

    def join(self, timeout: float) -> None:
        """Wait for the end; blocks, so only after the loop has nothing left to do."""
        self._thread.join(timeout)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._do(job)
            except RuntimeError:
                _log.debug("the loop closed before the work was done")
                return
            # Kept until the next one comes it would keep the model that it is about.
            del job

    def _do(self, job: _Job) -> None:
        """Raises `RuntimeError` when nobody can be told any more."""
        if job.waiter.done():
            return
        try:
            outcome = job.work()
        except BaseException as error:
            # Even SystemExit: this thread's death would leave every caller hanging.
            outcome = fit_for_a_future(error)
        self._loop.call_soon_threadsafe(settle, job.waiter, outcome)
