"""The helper's own work: jobs in, replies out, with the same adapters as in the sidecar's process.

Run by `__main__` in the helper. It knows no socket, and one model at a time.
"""

import logging
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.backends.foreign.protocol import ParsedRequest, drafted
from batchedmodel_sidecar.batching.rejections import too_many
from batchedmodel_sidecar.calls import Call, Row
from batchedmodel_sidecar.codec.process import wire
from batchedmodel_sidecar.codec.process.shared_memory import SharedMemory
from batchedmodel_sidecar.codec.process.wire import (
    Content,
    DealJob,
    Job,
    News,
    ParseJob,
    RenderJob,
    Reply,
    Result,
)
from batchedmodel_sidecar.codec.tokenizer import Tokens, text_threads
from batchedmodel_sidecar.errors import Rejected, Unserved
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.adapter import Body, Parsed
from batchedmodel_sidecar.protocols.routes import Endpoint
from batchedmodel_sidecar.protocols.table import adapters

logger: Final = logging.getLogger(__name__)


class Worker:
    """Does one job after the other."""

    def __init__(self) -> None:
        self._adapters = adapters()
        self._threads = text_threads(1)
        self._model: ReadyModel | None = None
        self._unreadable = ""
        """Why there is none, if it was told."""

    async def work(
        self, message: News | Job, memory: SharedMemory
    ) -> tuple[Reply, SharedMemory] | None:
        """The reply to a message, with its memory; none for news."""
        view = memory.view()
        if isinstance(message, News):
            self._learn_if_possible(view, message)
            return None
        try:
            result, (sizes, parts) = await self._done(message, view)
        except (InvalidInput, Rejected, Unserved) as error:
            result, (sizes, parts) = Result.REFUSED, wire.write_refusal(error)
        except BaseException as bug:
            logger.error("error in the helper: %s", message, exc_info=bug)
            text = f"error in the sidecar while reading or writing this: {type(bug).__name__}"
            refusal = Rejected(Rejection.INVALID, text, status=500)
            result, (sizes, parts) = Result.REFUSED, wire.write_refusal(refusal)
        filled = SharedMemory()
        for part in parts:
            filled.write(part)
        return Reply(result, sizes), filled

    async def _done(self, job: Job, view: memoryview) -> tuple[Result, Content]:
        match job:
            case ParseJob():
                draft = await self._parsed(job, view)
                if len(draft.rows) > job.most_rows:
                    raise too_many(len(draft.rows), job.most_rows)
                return Result.PARSED, wire.write_parsed(draft)
            case RenderJob():
                return Result.RENDERED, wire.write_rendered(self._rendered(job, view))
            case DealJob():
                given = wire.read_dealing(view, job.sizes)
                dealt = job.by.dealt(given.response, _rows(given.lengths), alone=given.alone)
                return Result.DEALT, wire.write_dealt(dealt)

    async def _parsed(self, job: ParseJob, view: memoryview) -> ParsedRequest:
        if not isinstance(job.by, Endpoint):
            return drafted(job.by, view, job.header_length)
        parsed = await self._adapters[job.by].parse(view, job.header_length, self._known())
        return ParsedRequest(
            rows=parsed.call.rows,
            frame=None,
            memo=parsed.memo,
            options=parsed.options,
            params=parsed.call.params,
        )

    def _rendered(self, job: RenderJob, view: memoryview) -> Body:
        asked = wire.read_question(view, job.sizes)
        if not isinstance(job.by, Endpoint):
            return job.by.render(asked.memo, asked.answer)
        model = self._known()
        call = Call(rows=_rows(asked.lengths), description=model.description, key=None)
        parsed = Parsed(call=call, memo=asked.memo)
        return self._adapters[job.by].render(parsed, asked.answer, model)

    def _known(self) -> ReadyModel:
        if self._unreadable:
            raise Rejected(Rejection.INVALID, self._unreadable, status=500)
        assert self._model is not None, "a job came before the model: our bug"
        return self._model

    def _learn_if_possible(self, view: memoryview, message: News) -> None:
        """News is not answered: the jobs behind it are told why the model is not known here."""
        self._unreadable = ""
        try:
            self._learn(*wire.read_model(view, message.sizes))
        except BaseException as error:
            logger.error("the model cannot be read: %s", type(error).__name__)
            self._unreadable = f"the model cannot be read in the sidecar: {type(error).__name__}"

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


def _rows(lengths: list[int]) -> tuple[Row, ...]:
    """As much of a call's rows as its answer depends on."""
    return tuple(Row(values=(), length=length) for length in lengths)
