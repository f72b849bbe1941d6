"""The state of the model, and everybody who follows it.

LOADING, WARMING, READY, DRAINING, UNLOADED; from there it may be loaded again. FAILED says why and
stays, so that the reason can be read from the running process. A new version that is loaded beside
the one that serves changes nothing until it is READY. All on the event loop's thread.
"""

import asyncio
import logging
from collections.abc import AsyncIterator

from batchedmodel_contract.processes.server_api import ModelState, StateEvent

_log = logging.getLogger(__name__)


class Lifecycle:
    """Owns the present state."""

    def __init__(self) -> None:
        self.event = StateEvent(state=ModelState.LOADING, detail="the server has started")
        self.ended = False
        """Whether the process is about to end."""
        self._followers: set[asyncio.Queue[StateEvent | None]] = set()

    @property
    def state(self) -> ModelState:
        """The present state."""
        return self.event.state

    def end(self, detail: str) -> None:
        """DRAINING, and nothing comes after it."""
        self.enter(ModelState.DRAINING, detail)
        self.ended = True

    def enter(self, state: ModelState, detail: str, version: str | None = None) -> None:
        """Change the state and tell everybody, unless it has ended; `version`: which is READY."""
        if self.ended:
            return
        self.event = StateEvent(state=state, detail=detail, version=version)
        level = logging.ERROR if state is ModelState.FAILED else logging.INFO
        _log.log(level, "%s: %s", state, detail)
        for follower in self._followers:
            follower.put_nowait(self.event)

    async def follow(self) -> AsyncIterator[StateEvent]:
        """The present state, then every change, until the process goes."""
        changes: asyncio.Queue[StateEvent | None] = asyncio.Queue()
        changes.put_nowait(self.event)
        self._followers.add(changes)
        try:
            while (event := await changes.get()) is not None:
                yield event
        finally:
            self._followers.discard(changes)

    def close(self) -> None:
        """End every follower's stream."""
        for follower in self._followers:
            follower.put_nowait(None)
