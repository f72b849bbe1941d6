"""The state of the model and what follows it, and one change of it at a time.

LOADING, WARMING, READY, DRAINING, UNLOADED; from there it may be loaded again. FAILED says why and
stays, so that the reason can be read from the running process. A new version that is loaded beside
the one that serves changes nothing until it is READY. All on the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from typing import Final

from batchedmodel_contract.link.model_frames import State
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_contract.lora import AdapterState
from batchedmodel_model_server.errors import NotReady, legible

Work = Coroutine[None, None, None]
_log = logging.getLogger(__name__)
_LONGEST_DETAIL: Final = 8192


class Topic(Enum):
    """What of the model has changed."""

    STATE = auto()
    ADAPTERS = auto()
    PROFILE = auto()
    """More was measured of the version that is READY."""


Follower = Callable[[Topic], None]


class Lifecycle:
    """Owns the present state."""

    def __init__(self) -> None:
        self.event = State(ModelState.LOADING, "the server has started")
        self.ended = False
        """Whether the process is about to end."""
        self.adapters: tuple[AdapterState, ...] | None = None
        """All adapters of the model; None where it has none."""
        self._followers: dict[Follower, None] = {}

    @property
    def state(self) -> ModelState:
        """The present state."""
        return self.event.state

    def end(self, detail: str) -> None:
        """DRAINING, and nothing comes after it."""
        self.enter(ModelState.DRAINING, detail)
        self.ended = True

    def enter(self, state: ModelState, detail: str, version: str | None = None) -> None:
        """Change the state, unless it has ended; `version`: which is READY."""
        if self.ended:
            return
        # A file may say anything; the sidecar reads no frame without end.
        detail = legible(detail[:_LONGEST_DETAIL])[:_LONGEST_DETAIL]
        self.event = State(state, detail, version)
        self._tell(Topic.STATE)
        level = logging.ERROR if state is ModelState.FAILED else logging.INFO
        _log.log(level, "%s: %s", state, detail)

    def adapters_are(self, adapters: tuple[AdapterState, ...] | None) -> None:
        """Change the adapters; None: the model has none."""
        if adapters != self.adapters:
            self.adapters = adapters
            self._tell(Topic.ADAPTERS)

    def more_is_measured(self) -> None:
        """The version that is READY has another profile."""
        self._tell(Topic.PROFILE)

    def follow(self, follower: Follower) -> None:
        """Call this at each change, until it leaves."""
        self._followers[follower] = None

    def leave(self, follower: Follower) -> None:
        """Call this no more."""
        self._followers.pop(follower, None)

    def _tell(self, topic: Topic) -> None:
        for follower in tuple(self._followers):
            follower(topic)


class Changes:
    """Changes of what is served: one at a time, each to its end unless the server is stopped."""

    def __init__(self, refusal: Callable[[], NotReady]) -> None:
        """`refusal` makes what is raised once no change is taken any more."""
        self._refusal = refusal
        self._one = asyncio.Lock()
        self._loads: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.Task[None]] = set()
        self._has_stopped = False

    async def do(self, work: Callable[[], Work], *, loads: bool) -> None:
        """Do work behind the changes before it; raises the refusal, and what the work raises.

        A stop interrupts what `loads`, and lets other work end.
        """

        async def alone() -> None:
            async with self._one:
                if self._has_stopped:
                    raise self._refusal()
                await work()

        change = _begun(alone(), self._loads if loads else self._ends)
        try:
            # A caller that leaves must not stop it half-way.
            await asyncio.shield(change)
        except asyncio.CancelledError:
            if not change.cancelled():
                raise
            raise self._refusal() from None

    def begin(self, end: Work) -> None:
        """Have a version's end take its course, beside other changes."""
        _begun(end, self._ends)

    def stop(self) -> None:
        """Interrupt what loads, and take no change any more."""
        self._has_stopped = True
        for load in self._loads:
            load.cancel()


def _begun(work: Work, tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    # The loop itself refers to tasks but weakly.
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
