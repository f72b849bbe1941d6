"""The batches that the model server has, and what becomes of each of them.

Used by the link. A batch is a frame, and one frame answers it. Compiled: it runs once for each
batch.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final, Protocol

from batchedmodel_contract.generation.frames import write_cancel
from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link.batches import read_failure, read_reply, write_batch
from batchedmodel_contract.link.kinds import Kind
from batchedmodel_sidecar.body.shared_regions import SharedRegions
from batchedmodel_sidecar.errors import Busy, Lost, Unserved
from batchedmodel_sidecar.model import FrameChannel

NO_ENGINE: Final = 0
"""In a CANCEL: it is about a batch."""
NONSENSE: Final = "the model server answers nonsense"
_MAX_QUOTED_CHARACTERS: Final = 200
_LOST: Final = "the model server went away while it worked on this"
_SILENT: Final = "the model server does not answer"

Outputs = list[tuple[str, Datatype]]
"""Names and types of what a version of the model answers."""


class BatchListener(Protocol):
    """What the link learns from batches."""

    def batch_answered(self, version: str | None, max_cost: int | None) -> None:
        """That version answered one; what the server's memory holds, as far as is known."""
        ...

    def batch_unanswered(self) -> None:
        """There was no answer in time."""
        ...

    def distrust(self, reason: str) -> None:
        """The server's answers make no sense, or do not come: send it no more batches."""
        ...

    def hang_up(self, reason: str) -> None:
        """A server that is distrusted has no batch any more."""
        ...


class _Batch:
    """One that was sent and is not answered."""

    __slots__ = ("answer", "outputs", "rows", "version")

    def __init__(
        self, answer: "asyncio.Future[BatchReply]", request: BatchRequest, outputs: Outputs
    ) -> None:
        self.answer: Final = answer
        """Done earlier than the frame comes where nobody waits for it any more."""
        self.version: Final = request.version
        self.rows: Final = len(request.inputs[0].shapes)
        self.outputs: Final = outputs


class PendingBatches:
    """Those of one link, by number."""

    def __init__(
        self, channel: FrameChannel, regions: SharedRegions, listener: BatchListener
    ) -> None:
        """Needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._channel: Final = channel
        self._regions: Final = regions
        self._listener: Final = listener
        self._batches: dict[int, _Batch] = {}
        self._distrusted: str | None = None
        """Why the connection ends behind the batches that are under way."""

    def send(
        self, request: BatchRequest, outputs: Outputs, seconds: float
    ) -> Awaitable[BatchReply]:
        """Send a batch now; its reply is awaited so many seconds.

        `outputs`: those that the reply must have. Awaiting raises `Unserved`; who stops waiting
        cancels the batch.
        """
        number = self._channel.next_id()
        batch = _Batch(self._loop.create_future(), request, outputs)
        self._batches[number] = batch
        self._channel.send(Kind.BATCH, number, write_batch(request, self._regions.place))
        # Not `asyncio.timeout`, which costs five times as much and needs a task.
        time_out = self._loop.call_later(seconds, self._time_out, batch)
        return self._answered(number, batch, time_out)

    def replied(self, number: int, content: memoryview) -> None:
        """A REPLY came."""
        batch = self._batches.pop(number, None)
        if batch is None or batch.answer.done():
            return
        try:
            reply = read_reply(content)
        except InvalidInput as error:
            self._nonsense(batch, NONSENSE, f"{NONSENSE}: {error}")
            return
        if len(reply.statuses) != batch.rows:
            rows = f"{len(reply.statuses)} of {batch.rows} rows"
            self._nonsense(batch, f"the model answered {rows}")
        elif [(output.name, output.datatype) for output in reply.outputs] != batch.outputs:
            self._nonsense(batch, "the model answered other outputs than it declares")
        else:
            self._listener.batch_answered(batch.version, reply.max_cost)
            batch.answer.set_result(reply)

    def failed(self, number: int, content: memoryview) -> None:
        """FAILED came: the batch as a whole has no reply."""
        batch = self._batches.pop(number, None)
        if batch is None or batch.answer.done():
            return
        try:
            failure = read_failure(content)
        except InvalidInput as error:
            self._nonsense(batch, NONSENSE, f"{NONSENSE}: {error}")
            return
        answered = f"the model server answered {failure.status}"
        message = f"{answered}: {failure.message[:_MAX_QUOTED_CHARACTERS]}"
        if failure.status == 503:
            batch.answer.set_exception(Lost(message) if failure.at_work else Busy(message))
        else:
            self._nonsense(batch, answered, message)

    def lost(self, *, garbled: bool) -> None:
        """The connection has ended, and with it what was sent over it.

        `garbled`: over what is no frame.
        """
        batches, self._batches, self._distrusted = self._batches, {}, None
        for batch in batches.values():
            if not batch.answer.done():
                error = Unserved(NONSENSE, status=502) if garbled else Lost(_LOST)
                batch.answer.set_exception(error)

    async def _answered(
        self, number: int, batch: _Batch, time_out: asyncio.TimerHandle
    ) -> BatchReply:
        try:
            return await batch.answer
        finally:
            time_out.cancel()
            # Its caller may have been closed: then nobody looks at how it ends.
            batch.answer.cancel()
            if number in self._batches:
                self._channel.send(Kind.CANCEL, number, [write_cancel(NO_ENGINE)])
            if self._distrusted is not None and self._all_done():
                self._listener.hang_up(self._distrusted)

    def _time_out(self, batch: _Batch) -> None:
        if not batch.answer.done():
            batch.answer.set_exception(Unserved(_SILENT, status=504))
            self._listener.batch_unanswered()
            self._distrust(_SILENT)

    def _nonsense(self, batch: _Batch, reason: str, message: str | None = None) -> None:
        """`reason` is logged and told to other callers, so it quotes no answer: that may quote a
        request.
        """
        batch.answer.set_exception(Unserved(message or reason, status=502))
        self._distrust(reason)

    def _distrust(self, reason: str) -> None:
        self._distrusted = reason
        self._listener.distrust(reason)

    def _all_done(self) -> bool:
        return all(batch.answer.done() for batch in self._batches.values())
