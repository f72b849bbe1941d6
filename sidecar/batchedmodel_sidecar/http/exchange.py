"""One inference, from its head to its answer: what is known of it, and who hears of its end."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from batchedmodel_http.eager_coroutine import EagerCoroutine
from batchedmodel_http.interfaces import Reply, unheard
from batchedmodel_http.response import Response
from batchedmodel_sidecar.answers import Answer
from batchedmodel_sidecar.backends.native.version_lease import VersionLease
from batchedmodel_sidecar.batching.pending_request import PendingRequest, Result
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.errors import CallError
from batchedmodel_sidecar.http.responses import named
from batchedmodel_sidecar.http.routed_head import RequestHead
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.adapter import Adapter, Parsed


class Inferences(Protocol):
    """Who answers it."""

    def withdraw(self, pending: PendingRequest) -> None:
        """The caller of an accepted call has left."""
        ...

    def settled(self, exchange: "Exchange", result: Answer | CallError) -> None:
        """The batcher is done with a call; raises nothing."""
        ...

    def finished(
        self, exchange: "Exchange", response: Response | None, error: BaseException | None
    ) -> None:
        """An answer is made, or could not be made; raises nothing."""
        ...


class Exchange:
    """One inference, from its head to its answer."""

    __slots__ = (
        "_ends",
        "_inferences",
        "_pending",
        "_reply",
        "_running",
        "adapter",
        "asked",
        "caller",
        "held",
        "lease",
        "model",
        "parsed",
        "timed",
    )

    model: ReadyModel
    """Set with `parsed`, when its body was read; none of both is asked for before."""
    parsed: Parsed

    def __init__(
        self,
        inferences: Inferences,
        asked: RequestHead,
        adapter: Adapter,
        caller: str,
        held: Hold,
        reply: Reply,
    ) -> None:
        """`held`: the memory that it uses; `reply` hears of its end, where nobody awaits it."""
        self._inferences = inferences
        self.asked: Final = asked
        self.adapter: Final = adapter
        self.caller: Final = caller
        self.held: Final = held
        self.lease: Final = VersionLease()
        self.timed = False
        """Whether its caller wants to know how it was served."""
        self._reply = reply
        self._pending: PendingRequest | None = None
        self._running: EagerCoroutine[Response] | None = None
        self._ends = False
        """Whether what ran for its answer has ended."""

    def __enter__(self) -> "Exchange":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        """Its body is not needed any more, nor is the version that it was read for."""
        self.held.release()
        self.lease.close()

    def cancel(self) -> None:
        """Its caller has left."""
        self._reply = unheard
        if self._pending is not None:
            self._inferences.withdraw(self._pending)
        if self._running is not None:
            self._running.cancel()
            self.release()

    def accepted(self, pending: PendingRequest) -> None:
        """The batcher has it, and will say how it ended."""
        self._pending = pending

    def settled(self, result: Result) -> None:
        """The batcher is done with it; raises nothing."""
        self._pending = None
        if result is None:
            self.release()
        else:
            self._inferences.settled(self, result)

    def goes_on(self, answering: Coroutine[Any, Any, Response]) -> None:
        """Its answer has to wait for something."""
        loop = asyncio.get_running_loop()
        self._ends = False
        running = EagerCoroutine(answering, self._finished, loop)
        if not self._ends:  # or each would keep the other
            self._running = running

    def end(self, response: Response) -> None:
        """This is its answer."""
        self.release()
        reply, self._reply = self._reply, unheard
        reply(named(response, self.asked.request_id), None)

    def _finished(self, response: Response | None, error: BaseException | None) -> None:
        self._running, self._ends = None, True
        self._inferences.finished(self, response, error)
