"""Bodies into calls and answers into bodies: here when they are small, in the helper when not.

Called by the data handler, and by the link to a foreign server for that server's answers. Both ways
use the same adapters and dialects, and end in the same calls and errors.
"""

from collections.abc import Callable, Sequence
from typing import Final

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_http.response import LARGE
from batchedmodel_sidecar.backends.foreign.protocol import (
    BackendProtocol,
    ForeignAdapter,
    Response,
    SplitReply,
)
from batchedmodel_sidecar.calls import Answer, Row
from batchedmodel_sidecar.codec.process import wire
from batchedmodel_sidecar.codec.process.client import CodecClient, CodecFailed, stored
from batchedmodel_sidecar.codec.process.shared_memory import SharedMemory
from batchedmodel_sidecar.codec.process.wire import (
    DealJob,
    Kept,
    ParseJob,
    RenderJob,
    Result,
    Sizes,
)
from batchedmodel_sidecar.codec.tokenizer import INLINE_CHARACTERS
from batchedmodel_sidecar.errors import Rejected, Unserved
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.adapter import Adapter, Body, Parsed
from batchedmodel_sidecar.protocols.routes import Endpoint
from batchedmodel_sidecar.protocols.table import adapters

LARGE_ANSWER: Final = 64 * 1024
"""Bytes of tensors that become about four times as many of JSON, and two milliseconds."""
_SMALL_ANSWER: Final = 4 * 1024  # of whatever it is, made sooner than it is told of what
_RETRY_SOON: Final = 1.0


class Codec:
    """Knows every protocol, and who does the work."""

    def __init__(self, helper: CodecClient, *, most_rows: Callable[[], int]) -> None:
        """`most_rows`: how many of one call are taken at present, at most."""
        self.adapters: Final = adapters()
        self._process = helper
        self._most_rows = most_rows

    def refuse_large(self, share: Share) -> None:
        """Raise `Rejected` when a body for the helper would find no place there."""
        refusal = self._process.refusal(share)
        if refusal is not None:
            message = "as many large bodies are being read as may be at once"
            raise Rejected(refusal, message, retry_after=self._process.delay)

    async def parse(
        self,
        endpoint: Endpoint,
        adapter: Adapter,
        body: Buffer | SharedMemory,
        header_length: str | None,
        model: ReadyModel,
        share: Share = NOBODY,
    ) -> Parsed:
        """The call in a body for that endpoint's adapter; raises `InvalidInput` or `Rejected`."""
        foreign = adapter if isinstance(adapter, ForeignAdapter) else None
        if not isinstance(body, SharedMemory):
            if foreign is None or foreign.protocol.converts(len(body), header_length) <= LARGE:
                known = model.asked_by(share) if len(body) > INLINE_CHARACTERS else model
                return await adapter.parse(body, header_length, known)
            # Binary data that the server must be sent as JSON.
            self.refuse_large(share)
            _, memory = await stored((Sizes(memo=0, head=0), [body]))
            try:
                return await self.parse(endpoint, adapter, memory, header_length, model, share)
            finally:
                memory.close()
        self.refuse_large(share)
        job = ParseJob(foreign.protocol if foreign else endpoint, header_length, self._most_rows())
        told = None if foreign else model
        try:
            reply, memory = await self._process.do(job, body, told, urgent=False, share=share)
        except CodecFailed as failure:
            raise Rejected(Rejection.NOT_READY, str(failure), retry_after=_RETRY_SOON) from failure
        view = _taken(memory)
        if reply.result is Result.REFUSED:
            raise wire.read_refusal(view, reply.sizes)
        draft = wire.read_parsed(view, reply.sizes)
        if foreign:
            return foreign.parsed(draft, model)
        call = model.call_of(draft.rows, draft.params)
        return Parsed(call=call, memo=draft.memo, options=draft.options)

    async def render(
        self,
        endpoint: Endpoint,
        adapter: Adapter,
        parsed: Parsed,
        answer: Answer,
        model: ReadyModel,
        share: Share = NOBODY,
    ) -> Body:
        """The body that answers a call; raises `InvalidInput` or `Unserved`."""
        if not _is_kept(parsed, answer) and (
            answer.size <= _SMALL_ANSWER or adapter.texts(parsed, answer) <= LARGE_ANSWER
        ):
            return adapter.render(parsed, answer, model)
        foreign = adapter if isinstance(adapter, ForeignAdapter) else None
        lengths = [row.length for row in parsed.call.rows]
        sizes, asked = await stored(wire.write_question(lengths, answer, parsed.memo))
        job = RenderJob(foreign.protocol if foreign else endpoint, sizes)
        body = wire.read_rendered(
            *await self._answered(job, asked, None if foreign else model, share)
        )
        return foreign.addressed(body, answer) if foreign else body

    async def dealt(
        self, protocol: BackendProtocol, response: Response, rows: Sequence[Row], *, alone: bool
    ) -> SplitReply:
        """The answers in a foreign server's response; raises `InvalidInput` or `Unserved`."""
        memory = response.memory
        if memory is None:
            return protocol.dealt(response, rows, alone=alone)
        lengths = [row.length for row in rows]
        sizes, parts = wire.write_dealing(response, lengths, alone=alone)
        for part in parts:
            memory.write(part)
        return wire.read_dealt(*await self._answered(DealJob(protocol, sizes), memory, None))

    async def _answered(
        self,
        job: RenderJob | DealJob,
        memory: SharedMemory,
        model: ReadyModel | None,
        share: Share = NOBODY,
    ) -> tuple[memoryview, Sizes]:
        """What became of an answer, which ends its memory; raises `InvalidInput` or `Unserved`."""
        try:
            reply, filled = await self._process.do(job, memory, model, urgent=True, share=share)
        except CodecFailed as failure:
            raise Unserved(str(failure), status=503, retry_after=_RETRY_SOON) from failure
        finally:
            memory.close()
        view = _taken(filled)
        if reply.result is Result.REFUSED:
            error = wire.read_refusal(view, reply.sizes)
            raise Unserved(error.message, status=500) if isinstance(error, Rejected) else error
        return view, reply.sizes


def _is_kept(parsed: Parsed, answer: Answer) -> bool:
    """Whether something of the question or of the answer can be read by the helper alone."""
    if isinstance(parsed.memo, Kept):
        return True
    return bool(answer.said) and any(isinstance(said.frame, Kept) for said in answer.said)


def _taken(memory: SharedMemory) -> memoryview:
    """The bytes of a reply, which live on without the descriptor that brought them."""
    view = memory.view()
    memory.close()
    return view
