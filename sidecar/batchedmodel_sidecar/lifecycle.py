"""Whether the sidecar takes work: serving, then draining, then gone, or back to serving.

A drain loses nothing that was accepted. It is asked for by SIGTERM, or by the kubelet's hook before
it stops the model; the latter is taken back when the model returns, because the hook also runs when
only the model is restarted.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final

from batchedmodel_sidecar.batcher import Batcher
from batchedmodel_sidecar.link import LinkStatus
from batchedmodel_sidecar.verdicts import MODEL_GONE

logger: Final = logging.getLogger(__name__)


class DrainEnd(StrEnum):
    """How a drain ended."""

    EMPTY = "empty"
    """Nothing that was accepted is left."""
    LIMIT = "limit reached"
    """Something is left, and its time is over."""
    TAKEN_BACK = "taken back"
    """The model returned, and work is taken again."""


class Lifecycle:
    """One drain at a time; whoever asks meanwhile waits for the same one."""

    def __init__(
        self,
        batcher: Batcher,
        *,
        model: Callable[[], LinkStatus],
        watch: Callable[[bool], None],
        delay: float,
        limit: float,
        passing: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`delay`: seconds that still accept work; `limit`: seconds that accepted work may take.

        `watch` is told while a restart of the model must not be overlooked: it ends the drain.
        `passing` returns when nothing is on its way past the batcher, where that is possible.
        """
        self._batcher = batcher
        self._model = model
        self._watch = watch
        self._delay = delay
        self._limit = limit
        self._passing = passing
        self._drain: asyncio.Future[DrainEnd] | None = None
        self._work: asyncio.Task[None] | None = None
        self._refusing = False
        self._terminating = False

    @property
    def draining(self) -> bool:
        """Not ready for more, connections are being closed."""
        return self._drain is not None

    @property
    def refusing(self) -> bool:
        """New calls are refused."""
        return self._refusing

    async def drain(self) -> DrainEnd:
        """Return when the drain has ended, however it did."""
        if self._drain is None:
            logger.info("draining")
            self._watch(True)
            self._drain = asyncio.get_running_loop().create_future()
            self._work = asyncio.create_task(self._run(self._drain))
            if self._model().model is None:
                self.model_lost()
        # Shielded: a caller that gives up must not end the drain for the others.
        return await asyncio.shield(self._drain)

    async def terminate(self) -> DrainEnd:
        """A drain that is not taken back."""
        self._terminating = True
        return await self.drain()

    def model_lost(self) -> None:
        """While draining no model will come back in time for what waits: answer it now."""
        if self.draining:
            # A server that says that it stops still answers what it has; one that hangs does not.
            self._batcher.give_up(MODEL_GONE, in_flight=self._model().stuck)

    def resume(self) -> None:
        """Serve again after a drain that no termination followed."""
        if self._drain is None or self._work is None or self._terminating:
            return
        logger.info("serving again")
        self._watch(False)
        self._work.cancel()
        if not self._drain.done():
            self._drain.set_result(DrainEnd.TAKEN_BACK)
        self._drain = None
        self._refusing = False
        self._batcher.flush(False)

    async def _run(self, ended: asyncio.Future[DrainEnd]) -> None:
        if self._delay:
            await asyncio.sleep(self._delay)
        self._refusing = True
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
