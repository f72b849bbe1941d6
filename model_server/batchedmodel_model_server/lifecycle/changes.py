"""Keeps order among changes of what is served: one at a time, each to its end.

Owned by the service, which says what a change does. An order to stop interrupts what loads; what
unloads is waited for.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

from batchedmodel_model_server.errors import NotReady

Work = Coroutine[None, None, None]


class Changes:
    """All on the event loop's thread."""

    def __init__(self, refusal: Callable[[], NotReady]) -> None:
        """`refusal` makes what is raised once no change is taken any more."""
        self._refusal = refusal
        self._one = asyncio.Lock()
        self._loads: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.Task[None]] = set()
        self._has_stopped = False

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Around a change: those before it have ended. Raises the refusal."""
        async with self._one:
            if self._has_stopped:
                raise self._refusal()
            yield

    async def load(self, work: Callable[[], Work]) -> None:
        """Load something; raises the refusal, and what the work raises."""
        await self._change(work, self._loads)

    async def unload(self, work: Callable[[], Work]) -> None:
        """Unload something; raises the refusal, and what the work raises."""
        await self._change(work, self._ends)

    def begin(self, end: Work) -> None:
        """Have a version's end take its course, beside other changes."""
        _begun(end, self._ends)

    def stop(self) -> None:
        """Interrupt what loads, and take no change any more."""
        self._has_stopped = True
        for load in self._loads:
            load.cancel()

    async def _change(self, work: Callable[[], Work], tasks: set[asyncio.Task[None]]) -> None:
        async def changed() -> None:
            async with self.alone():
                await work()

        change = _begun(changed(), tasks)
        try:
            # A caller that leaves must not stop it half-way.
            await asyncio.shield(change)
        except asyncio.CancelledError:
            if not change.cancelled():
                raise
            raise self._refusal() from None


def _begun(work: Work, tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    # The loop itself refers to tasks but weakly.
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
