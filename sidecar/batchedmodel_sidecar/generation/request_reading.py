"""A request for text that is being read: its caller may leave meanwhile, and its time may end."""

import asyncio
from collections.abc import Callable
from typing import Final

from batchedmodel_http.eager_coroutine import EagerCoroutine
from batchedmodel_http.interfaces import Reply, Running
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.generation.text_server import Draft
from batchedmodel_sidecar.http.routed_head import RequestHead


class _Ended:
    """A request that has its answer."""

    def cancel(self) -> None:
        """Nothing is left of it."""


ENDED: Final = _Ended()


class RequestReading:
    """Such a request, and then whatever it became."""

    __slots__ = (
        "_left",
        "_timer",
        "_work",
        "arrived",
        "asked",
        "held",
        "limit",
        "reply",
        "running",
    )

    def __init__(
        self,
        asked: RequestHead,
        held: Hold,
        reply: Reply,
        arrived: float,
        left: Callable[["RequestReading"], None],
    ) -> None:
        """`left` hears that its caller did."""
        self.asked: Final = asked
        self.held: Final = held
        self.reply: Final = reply
        self.arrived: Final = arrived
        self.limit = 0.0
        """Seconds from its arrival to the first token."""
        self.running: Running | None = None
        self._left = left
        self._work: EagerCoroutine[Draft] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def goes_on(self, work: EagerCoroutine[Draft], timer: asyncio.TimerHandle) -> None:
        """It could not be read at once; the timer ends it."""
        self._work = work
        self._timer = timer

    def becomes(self, running: Running) -> None:
        """It is read."""
        self.running = running
        self._work = None  # as it knows this request
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def cancel(self) -> None:
        """Its caller has left."""
        if self.running is not None:
            self.running.cancel()
        elif self._work is not None:
            self.drop()
            self._left(self)

    def drop(self) -> None:
        """Nobody waits for what it becomes."""
        assert self._work is not None, "what was read at once has become something: our bug"
        self._work.cancel()
        self.becomes(ENDED)
