"""Lets a thread that loads a model run its trial passes between those of the model that serves.

Nothing but the compute thread runs passes; whoever loads beside a model in service hands each of
his over and waits for it. His clock stands still while he waits, so that what he measures is the
pass and not the queue in front of it.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

from batchedmodel_model_server.execution.device_thread import DeviceThread
from batchedmodel_model_server.execution.watchdog import Watchdog

LONGEST_SECONDS: Final = 60.0
"""A trial pass that takes longer counts as hung; nobody knows yet how long it should take."""

Result = TypeVar("Result")


class TrialScheduling:
    """Of one load; called on its thread, and never on the event loop's."""

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
            # Who is served meanwhile would wait for ever behind a pass that does not end.
            self._watchdog.pass_begins(LONGEST_SECONDS)
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
