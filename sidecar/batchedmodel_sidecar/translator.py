"""Bodies into calls and answers into bodies: here when they are small, in the helper when not.

Called by the front. Both ways use the same adapters and end in the same calls and errors.
"""

from typing import Final

from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_contract.tensors import Buffer
from batchedmodel_sidecar.calls import Answer
from batchedmodel_sidecar.errors import Rejected, Unserved
from batchedmodel_sidecar.helper import wire
from batchedmodel_sidecar.helper.client import Helper, HelperFailed, stored
from batchedmodel_sidecar.helper.memory import SharedMemory
from batchedmodel_sidecar.helper.wire import Kept, ParseJob, RenderJob, Result
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.adapter import Body, Parsed
from batchedmodel_sidecar.protocols.table import adapters
from batchedmodel_sidecar.routes import Endpoint

LARGE_ANSWER: Final = 64 * 1024
"""Bytes of tensors that become about four times as many of JSON, and two milliseconds."""
_RETRY_SOON: Final = 1.0


class Translator:
    """Knows every protocol, and who does the work."""

    def __init__(self, helper: Helper) -> None:
        self.adapters: Final = adapters()
        self._helper = helper

    def refuse_large(self) -> None:
        """Raise `Rejected` when a body for the helper would find no place there."""
        if self._helper.full:
            message = "as many large bodies are being read as may be at once"
            raise Rejected(Rejection.QUEUE_FULL, message, retry_after=self._helper.delay)

    async def parse(
        self,
        endpoint: Endpoint,
        body: Buffer | SharedMemory,
        header_length: str | None,
        model: ReadyModel,
    ) -> Parsed:
        """The call in a body; raises `InvalidInput` or `Rejected`."""
        if not isinstance(body, SharedMemory):
            return await self.adapters[endpoint].parse(body, header_length, model)
        self.refuse_large()
        job = ParseJob(endpoint, header_length)
        try:
            reply, memory = await self._helper.do(job, body, model, urgent=False)
        except HelperFailed as failure:
            raise Rejected(Rejection.NOT_READY, str(failure), retry_after=_RETRY_SOON) from failure
        view = _taken(memory)
        if reply.result is Result.REFUSED:
            raise wire.read_refusal(view, reply.sizes)
        rows, wishes, memo = wire.read_parsed(view, reply.sizes)
        return Parsed(call=model.call_of(rows), memo=memo, wishes=wishes)

    async def render(
        self, endpoint: Endpoint, parsed: Parsed, answer: Answer, model: ReadyModel
    ) -> Body:
        """The body that answers a call; raises `InvalidInput` or `Unserved`."""
        adapter = self.adapters[endpoint]
        if not isinstance(parsed.memo, Kept) and (
            answer.size <= LARGE_ANSWER or adapter.texts(parsed, answer) <= LARGE_ANSWER
        ):
            return adapter.render(parsed, answer, model)
        lengths = [row.length for row in parsed.call.rows]
        sizes, asked = await stored(wire.write_question(lengths, answer, parsed.memo))
        try:
            job = RenderJob(endpoint, sizes)
            reply, memory = await self._helper.do(job, asked, model, urgent=True)
        except HelperFailed as failure:
            raise Unserved(str(failure), status=503, retry_after=_RETRY_SOON) from failure
        finally:
            asked.close()
        view = _taken(memory)
        if reply.result is Result.REFUSED:
            error = wire.read_refusal(view, reply.sizes)
            raise error if isinstance(error, InvalidInput) else Unserved(error.message, status=500)
        return wire.read_rendered(view, reply.sizes)


def _taken(memory: SharedMemory) -> memoryview:
    """The bytes of a reply, which live on without the descriptor that brought them."""
    view = memory.view()
    memory.close()
    return view
