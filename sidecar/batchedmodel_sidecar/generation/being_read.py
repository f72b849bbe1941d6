"""A request for generated text that is being read, and then whatever it became."""

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


class BeingRead:
    """A request that is being read, and then whatever it became."""

    __slots__ = ("_left", "_work", "arrived", "asked", "held", "reply", "running")

    def __init__(
        self,
        asked: RequestHead,
        held: Hold,
        reply: Reply,
        arrived: float,
        left: Callable[["BeingRead"], None],
    ) -> None:
        self.asked: Final = asked
        self.held: Final = held
        self.reply: Final = reply
        self.arrived: Final = arrived
        self.running: Running | None = None
        self._left = left
        self._work: EagerCoroutine[Draft] | None = None

    def goes_on(self, work: EagerCoroutine[Draft]) -> None:
        """It could not be read at once."""
        self._work = work

    def cancel(self) -> None:
        """Its caller has left."""
        if self.running is not None:
            self.running.cancel()
        elif self._work is not None:
            self._work.cancel()
            self.running = ENDED
            self._left(self)
