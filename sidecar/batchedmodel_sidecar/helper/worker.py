"""The helper's own work: jobs in, replies out, with the same adapters as in the sidecar's process.

Run by `__main__` in the helper. It knows no socket, and one model at a time.
"""

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.calls import Call, Row
from batchedmodel_sidecar.errors import Rejected
from batchedmodel_sidecar.helper import wire
from batchedmodel_sidecar.helper.memory import SharedMemory
from batchedmodel_sidecar.helper.wire import Content, News, ParseJob, RenderJob, Reply, Result
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.adapter import Parsed
from batchedmodel_sidecar.protocols.table import adapters
from batchedmodel_sidecar.tokens import Tokens

logger: Final = logging.getLogger(__name__)


class Worker:
    """Does one job after the other."""

    def __init__(self) -> None:
        self._adapters = adapters()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="tokenise")
        self._model: ReadyModel | None = None

    async def work(
        self, message: News | ParseJob | RenderJob, memory: SharedMemory
    ) -> tuple[Reply, SharedMemory] | None:
        """The reply to a message, with its memory; none for news."""
        view = memory.view()
        if isinstance(message, News):
            self._learn(*wire.read_model(view, message.sizes))
            return None
        try:
            result, (sizes, parts) = await self._done(message, view)
        except (InvalidInput, Rejected) as error:
            result, (sizes, parts) = Result.REFUSED, wire.write_refusal(error)
        except Exception as bug:
            logger.error("error in the helper: %s", message, exc_info=bug)
            text = f"error in the sidecar while reading or writing this: {type(bug).__name__}"
            refusal = Rejected(Rejection.INVALID, text, status=500)
            result, (sizes, parts) = Result.REFUSED, wire.write_refusal(refusal)
        filled = SharedMemory()
        for part in parts:
            filled.write(part)
        return Reply(result, sizes), filled

    async def _done(
        self, message: ParseJob | RenderJob, view: memoryview
    ) -> tuple[Result, Content]:
        assert self._model is not None, "a job came before the model: our bug"
        adapter = self._adapters[message.endpoint]
        if isinstance(message, ParseJob):
            parsed = await adapter.parse(view, message.header_length, self._model)
            rows = parsed.call.rows
            return Result.PARSED, wire.write_parsed(rows, parsed.wishes, parsed.memo)
        asked = wire.read_question(view, message.sizes)
        rows = tuple(Row(values=(), length=length) for length in asked.lengths)
        call = Call(rows=rows, description=self._model.description, key=None)
        body = adapter.render(Parsed(call=call, memo=asked.memo), asked.answer, self._model)
        return Result.RENDERED, wire.write_rendered(body)

    def _learn(self, model: wire.Model, tokenizer: bytes) -> None:
        text = model.description.text
        tokens = Tokens(tokenizer, text, self._threads) if text and tokenizer else None
        self._model = ReadyModel(
            description=model.description,
            profile=None,
            tokens=tokens,
            depth=1,
            rows_pad=model.rows_pad,
        )
