"""The codec process: jobs in, replies out, with the same adapters as in the sidecar's process.

It takes jobs from the socket that it was given, one model at a time, and ends when the other end of
the socket does, however the sidecar ended. It outlives the signals that begin a drain: bodies are
still read and answers written meanwhile.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from dataclasses import replace
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_contract.processes import logs
from batchedmodel_sidecar.backends.foreign.protocol import ParsedRequest, drafted
from batchedmodel_sidecar.body.buffers import json_bytes
from batchedmodel_sidecar.calls import Call, Row
from batchedmodel_sidecar.codec.process import wire
from batchedmodel_sidecar.codec.process.shared_memory import SharedMemory, received, send
from batchedmodel_sidecar.codec.process.values_memory import (
    TIMES_BINARY,
    memory_of_values,
    times_as_text,
)
from batchedmodel_sidecar.codec.process.wire import (
    Content,
    DealJob,
    Job,
    News,
    ParseJob,
    RenderJob,
)
from batchedmodel_sidecar.codec.tokenizer import Tokens, text_threads
from batchedmodel_sidecar.errors import Rejected, Unserved
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.adapter import Body, Parsed
from batchedmodel_sidecar.protocols.routes import Endpoint
from batchedmodel_sidecar.protocols.table import adapters

logger: Final = logging.getLogger(__name__)

FREE_MEMORY: Final = 32 << 20
"""Bytes that the values of a body take without asking for them: one body is read at a time."""
_NICER: Final = 5  # the loop beside it should not wait for a core


class Worker:
    """Does one job after the other."""

    def __init__(self) -> None:
        self._adapters = adapters()
        self._threads = text_threads(1)
        self._model: ReadyModel | None = None
        self._unreadable = ""
        """Why there is no model, where the sidecar sent one that cannot be read."""

    async def work(
        self, message: News | Job, memory: SharedMemory
    ) -> tuple[wire.Reply, SharedMemory] | None:
        """The reply to a message, with its memory; none for news."""
        view = memory.view()
        if isinstance(message, News):
            self._learn(view, message)
            return None
        try:
            if not message.granted and (needs := _needs(message, view)) > FREE_MEMORY:
                return wire.Reply(head=0, needs=needs), SharedMemory()
            head, parts = await self._done(message, view)
        except (InvalidInput, Rejected, Unserved) as error:
            head, parts = wire.write_refusal(error)
        except BaseException as bug:
            logger.error("error in the helper: %s", message, exc_info=bug)
            text = f"error in the sidecar while reading or writing this: {type(bug).__name__}"
            head, parts = wire.write_refusal(Rejected(Rejection.INVALID, text, status=500))
        filled = SharedMemory()
        for part in parts:
            filled.write(part)
        return wire.Reply(head), filled

    async def _done(self, job: Job, view: memoryview) -> Content:
        match job:
            case ParseJob():
                return wire.write_parsed(await self._parsed(job, view))
            case RenderJob():
                return wire.write_rendered(self._rendered(job, view))
            case DealJob():
                response, lengths, alone = wire.read_dealing(view, job.head)
                return wire.write_dealt(job.by.dealt(response, _rows(lengths), alone=alone))

    async def _parsed(self, job: ParseJob, view: memoryview) -> ParsedRequest:
        if not isinstance(job.by, Endpoint):
            return drafted(job.by, view, job.header_length, job.most_rows)
        parsed = await self._adapters[job.by].parse(
            view, job.header_length, self._known(), job.most_rows
        )
        return ParsedRequest(
            rows=parsed.call.rows,
            frame=None,
            memo=parsed.memo,
            options=parsed.options,
            params=parsed.call.params,
            named=parsed.named,
        )

    def _rendered(self, job: RenderJob, view: memoryview) -> Body:
        lengths, answer, memo = wire.read_question(view, job.head)
        if not isinstance(job.by, Endpoint):
            return job.by.render(memo, answer)
        model = self._known()
        call = Call(rows=_rows(lengths), description=model.description, key=None)
        parsed = Parsed(call=call, memo=memo, named=job.named, labels=job.labels)
        return self._adapters[job.by].render(parsed, answer, model)

    def _known(self) -> ReadyModel:
        if self._unreadable:
            raise Rejected(Rejection.INVALID, self._unreadable, status=500)
        assert self._model is not None, "a job came before the model: our bug"
        return self._model

    def _learn(self, view: memoryview, message: News) -> None:
        """Take the model. News has no answer: if the model cannot be read, its jobs are told so."""
        self._unreadable = ""
        try:
            model, tokenizer = wire.read_model(view, message.head)
            if (text := model.description.text) and tokenizer:
                model = replace(model, tokens=Tokens(bytes(tokenizer), text, self._threads))
            self._model = model
        except BaseException as error:
            logger.error("the model cannot be read: %s", type(error).__name__)
            self._unreadable = f"the model cannot be read in the sidecar: {type(error).__name__}"


def _needs(job: Job, view: memoryview) -> int:
    """The bytes that values and texts take, at most, while the job is done."""
    match job:
        case ParseJob():
            of_json = json_bytes(len(view), job.header_length)
            if isinstance(job.by, Endpoint):
                return memory_of_values(view[:of_json])
            # Binary data may become text as well.
            binary = job.by.converts(len(view), job.header_length) - of_json
            return memory_of_values(view[:of_json], as_text=True) + TIMES_BINARY * max(0, binary)
        case RenderJob():
            _, answer, _ = wire.read_question(view, job.head)
            ours = isinstance(job.by, Endpoint)
            sizes = [output.datatype.size for output in answer.outputs]
            return sum(
                len(value.data) * times_as_text(size, values=ours)
                for row in answer.rows
                for value, size in zip(row, sizes, strict=True)
            )
        case DealJob():
            response, _, _ = wire.read_dealing(view, job.head)
            of_json = json_bytes(len(response.body), response.header_length)
            return memory_of_values(memoryview(response.body)[:of_json], as_text=True)


def _rows(lengths: list[int]) -> tuple[Row, ...]:
    """As much of a call's rows as its answer depends on."""
    return tuple(Row(values=(), length=length) for length in lengths)


def main() -> None:
    """Work until the socket ends."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICER)
    logs.configure("warning", logs.inherited_format(os.environ), logs.Process.CODEC)
    worker = Worker()
    # Bodies make millions of objects and no cycles: looking for some takes longer than parsing.
    gc.collect()
    gc.freeze()
    gc.disable()
    with socket.socket(fileno=int(sys.argv[1])) as connection, asyncio.Runner() as runner:
        while (taken := received(connection)) is not None:
            message, memory = taken
            answered = runner.run(worker.work(message, memory))
            memory.close()
            if answered is not None:
                reply, filled = answered
                send(connection, reply, filled)
                filled.close()
            # Let go of it before the next body comes, and not after.
            del taken, memory, answered
            gc.collect()


if __name__ == "__main__":
    main()
