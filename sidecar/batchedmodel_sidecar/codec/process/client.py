"""The sidecar's side of the helper: bounded, supervised, and started when first needed.

Used by the translator. Every job is settled exactly once, by `_settle`, whatever becomes of the
process or of the caller.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.codec.process import wire
from batchedmodel_sidecar.codec.process.job_queue import JobQueue, patience
from batchedmodel_sidecar.codec.process.process import CodecProcess, CodecProcessEnded
from batchedmodel_sidecar.codec.process.shared_memory import SharedMemory
from batchedmodel_sidecar.codec.process.wire import Content, Job, News, Reply
from batchedmodel_sidecar.model import ReadyModel

logger: Final = logging.getLogger(__name__)

MOST_BODIES: Final = 16
"""Bodies that wait for the helper or are in it; more are refused."""
_STEP: Final = 256 * 1024


class CodecFailed(Exception):
    """The job has no outcome; the message says why."""


@dataclass(slots=True, eq=False)
class _Task:
    job: Job
    memory: SharedMemory
    model: ReadyModel | None
    urgent: bool
    share: Share
    outcome: "asyncio.Future[tuple[Reply, SharedMemory]]"
    losses: int = 0

    @property
    def size(self) -> int:
        """Bytes of its body."""
        return len(self.memory)

    @property
    def wanted(self) -> bool:
        """Whether its caller still waits; one that left has closed the memory."""
        return not self.outcome.done()


class CodecClient:
    """At most one process, and the line in front of it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Starts nothing yet."""
        self._clock = clock
        self._line: JobQueue[_Task] = JobQueue(MOST_BODIES)
        self._process: CodecProcess | None = None
        self._told: ReadyModel | None = None
        self._worker: asyncio.Task[None] | None = None
        self._come = asyncio.Event()

    def refusal(self, share: Share) -> Rejection | None:
        """Why one more body of a tenant would be refused; None if it would not."""
        return self._line.refusal(share)

    @property
    def delay(self) -> float:
        """Seconds after which a refused body may come again."""
        return self._line.delay

    async def do(
        self,
        job: Job,
        memory: SharedMemory,
        model: ReadyModel | None,
        *,
        urgent: bool,
        share: Share = NOBODY,
    ) -> tuple[Reply, SharedMemory]:
        """The reply to a job and its memory; raises `CodecFailed`.

        Without a model the job itself says all that must be known of one. Cancelling the await
        takes the job out of the line.
        """
        outcome: asyncio.Future[tuple[Reply, SharedMemory]]
        outcome = asyncio.get_running_loop().create_future()
        task = _Task(job, memory, model, urgent, share, outcome)
        self._line.join(task)
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        self._come.set()
        try:
            return await outcome
        finally:
            self._line.leave(task)

    async def close(self) -> None:
        """End the process; what waits fails."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        while (task := self._line.next()) is not None:
            self._settle(task, CodecFailed("this pod is stopping"))
        if self._process is not None:
            await self._process.end()

    async def _work(self) -> None:
        while True:
            task = self._line.next()
            if task is None:
                self._come.clear()
                await self._come.wait()
                continue
            started = self._clock()
            try:
                result = await self._carried(task)
            except asyncio.CancelledError:
                self._settle(task, CodecFailed("this pod is stopping"))
                raise
            except CodecProcessEnded as error:
                logger.warning("the helper for large bodies is lost: %s", error)
                await self._end()
                if self._line.lost():
                    continue
                self._settle(task, CodecFailed("the process that works on large bodies ended"))
            except TimeoutError:
                logger.warning("the helper for large bodies is stuck")
                await self._end()
                self._line.done(self._clock() - started)
                self._settle(task, CodecFailed("the process that works on large bodies is stuck"))
            except BaseException as bug:
                logger.error("the helper for large bodies cannot be used", exc_info=bug)
                await self._end()
                self._line.done(self._clock() - started)
                self._settle(task, CodecFailed("large bodies cannot be worked on at present"))
            else:
                if result is not None:
                    self._line.done(self._clock() - started)
                    self._settle(task, result)

    async def _carried(self, task: _Task) -> tuple[Reply, SharedMemory] | None:
        """Do one job, in the process that is there or in a new one; None: its caller has left."""
        async with asyncio.timeout(patience(len(task.memory))):
            if self._process is None:
                self._told = None
                self._process = CodecProcess()
            if task.model is not None and self._told is not task.model:
                await self._introduce(self._process, task.model)
            if not task.wanted:
                return None
            return await self._process.ask(task.job, task.memory)

    async def _introduce(self, process: CodecProcess, model: ReadyModel) -> None:
        known = wire.Model(description=model.description, rows_pad=model.rows_pad)
        tokenizer = model.tokens.tokenizer_json if model.tokens is not None else b""
        sizes, memory = await stored(wire.write_model(known, tokenizer))
        process.tell(News(sizes), memory)
        memory.close()
        self._told = model

    async def _end(self) -> None:
        if self._process is not None:
            await self._process.end()
            self._process = None

    def _settle(self, task: _Task, result: tuple[Reply, SharedMemory] | CodecFailed) -> None:
        if not task.wanted:
            if not isinstance(result, CodecFailed):
                result[1].close()
            return
        if isinstance(result, CodecFailed):
            task.outcome.set_exception(result)
        else:
            task.outcome.set_result(result)


async def stored(content: Content) -> tuple[wire.Sizes, SharedMemory]:
    """The content in memory that can be sent, written in steps between which the loop goes on."""
    sizes, parts = content
    memory = SharedMemory()
    since = 0
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _STEP):
            piece = view[start : start + _STEP]
            memory.write(piece)
            since += len(piece)
            if since >= _STEP:
                since = 0
                await asyncio.sleep(0)
    return sizes, memory
