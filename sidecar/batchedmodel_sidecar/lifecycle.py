"""Whether the sidecar takes work: serving, then draining, then gone, or back to serving.

A drain loses nothing that was accepted, and refuses nobody who has not heard of it: it takes work
until nobody calls any more. SIGTERM begins it, or the kubelet's hook as soon as the pod
is to end, while the model still runs. A drain that the hook began is taken back when the model
returns, and when no SIGTERM comes: only a pod that is ending stays drained.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final

from batchedmodel_contract.processes.sidecar_api import MOST_DRAIN_DELAYS
from batchedmodel_sidecar.batching.batcher import Batcher
from batchedmodel_sidecar.batching.pending_request import MODEL_GONE
from batchedmodel_sidecar.model import LinkStatus

logger: Final = logging.getLogger(__name__)

BEGINS_SECONDS: Final = 10.0
"""How long `drained` waits for a drain to begin: the hooks of a pod's containers run side by side,
and the one that begins the drain starts a program first."""
FOLLOWED_SECONDS: Final = 30.0
"""If no SIGTERM comes so long after a drain's limit, the drain is taken back. A pod gives its
containers 15 s."""


class DrainEnd(StrEnum):
    """How a drain ended."""

    EMPTY = "empty"
    """Nothing that was accepted is left."""
    LIMIT = "limit reached"
    """Something is left, and its time is over."""
    TAKEN_BACK = "taken back"
    """The model returned, or nobody ended the pod, and work is taken again."""
    NONE = "not draining"
    """There was none, or no model to drain."""


class Lifecycle:
    """One drain at a time; all who ask wait for the same one."""

    def __init__(
        self,
        batcher: Batcher,
        *,
        model: Callable[[], LinkStatus],
        watch: Callable[[bool], None],
        delay: float,
        limit: float,
        passing: Callable[[], Awaitable[None]] | None = None,
        refuses: Callable[[], None] = lambda: None,
        model_gone: Callable[[], None] = lambda: None,
    ) -> None:
        """`delay`: work is accepted until none has come for so many seconds, up to three times as
        long; `limit`: seconds that accepted work may take.

        `watch` is told when a drain begins and ends: meanwhile the link must notice every restart
        of the model, which ends the drain. `passing` returns when no request is on its way past the
        batcher. `refuses` is told when new calls are refused from now on, `model_gone` when no
        model will come back in time for what is not the batcher's.
        """
        self._batcher = batcher
        self._model = model
        self._watch = watch
        self._delay = delay
        self._limit = limit
        self._passing = passing
        self._refuses = refuses
        self._model_gone = model_gone
        self._drain: asyncio.Future[DrainEnd] | None = None
        self._work: asyncio.Task[None] | None = None
        self._draining = asyncio.Event()
        self._called_at = 0.0
        """When a drain took a call last."""
        self.refusing = False
        """Whether new calls are refused."""
        self.terminating = False
        """Whether the process ends behind the drain."""

    @property
    def draining(self) -> bool:
        """Whether the pod is not ready and connections are being closed."""
        return self._drain is not None

    def takes_calls(self) -> bool:
        """Whether one that comes now is taken. A drain notes that one came."""
        if self.draining:
            self._called_at = asyncio.get_running_loop().time()
        return not self.refusing

    def begin_drain(self) -> "asyncio.Future[DrainEnd]":
        """Take no more work from now on, in steps; the future says how that ends.

        Whoever awaits it shields it, or would end the drain for the others.
        """
        if self._drain is None:
            logger.info("draining")
            self._watch(True)
            self._drain = asyncio.get_running_loop().create_future()
            self._work = asyncio.create_task(self._run(self._drain))
            self._draining.set()
            if self._model().model is None:
                self.model_lost()
        return self._drain

    async def drained(self) -> DrainEnd:
        """Return when the model may be stopped: when a drain has ended, or none is to come."""
        if self._drain is None and self._model().model is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEGINS_SECONDS):
                    await self._draining.wait()
        return DrainEnd.NONE if self._drain is None else await asyncio.shield(self._drain)

    async def terminate(self) -> DrainEnd:
        """A drain that is not taken back; returns when it has ended."""
        self.terminating = True
        drain = self.begin_drain()
        if self._model().model is None:
            self.model_lost()
        return await asyncio.shield(drain)

    def model_lost(self) -> None:
        """While draining no model will come back in time for what waits: answer it now."""
        if self.draining:
            # A server that is stopping still answers what it has; one that hangs does not.
            self._batcher.give_up(MODEL_GONE, in_flight=self._model().stuck)
            self._model_gone()

    def resume(self) -> None:
        """Serve again after a drain that no termination followed."""
        if self._drain is None or self._work is None or self.terminating:
            return
        logger.info("serving again")
        self._watch(False)
        self._work.cancel()
        if not self._drain.done():
            self._drain.set_result(DrainEnd.TAKEN_BACK)
        self._drain = None
        self._draining.clear()
        self.refusing = False
        self._batcher.flush(False)

    async def _run(self, ended: asyncio.Future[DrainEnd]) -> None:
        loop = asyncio.get_running_loop()
        self._called_at = loop.time()
        latest = self._called_at + MOST_DRAIN_DELAYS * self._delay
        while (rest := min(self._called_at + self._delay, latest) - loop.time()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(rest)  # calls that came meanwhile put the end off
        followed_by = loop.time() + self._limit + FOLLOWED_SECONDS
        self.refusing = True
        self._refuses()
        self._batcher.flush(True)
        if self._model().model is None:
            self.model_lost()
        try:
            async with asyncio.timeout(self._limit):
                await self._batcher.idle()
                if self._passing is not None:
                    await self._passing()
        except TimeoutError:
            logger.warning("drain limit of %g s reached with work left", self._limit)
            ended.set_result(DrainEnd.LIMIT)
        else:
            ended.set_result(DrainEnd.EMPTY)
        await asyncio.sleep(followed_by - loop.time())
        # Had the pod been ending, SIGTERM would have come.
        self.resume()
