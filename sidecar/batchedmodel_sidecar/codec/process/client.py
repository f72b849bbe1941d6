"""The sidecar's side of the codec process: bounded, supervised, and started when first needed.

Answers go before questions: they are for callers who were accepted. Both come in fair turns of
tenants, by their bytes. Tenants share the places of questions.
"""

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_http.response import size_of
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.body.fair_threads import FairTurns
from batchedmodel_sidecar.codec.process import wire
from batchedmodel_sidecar.codec.process.shared_memory import SharedMemory, received, send
from batchedmodel_sidecar.codec.process.wire import DealJob, Job, News, Reply
from batchedmodel_sidecar.model import ReadyModel

logger: Final = logging.getLogger(__name__)

MOST_BODIES: Final = 16
"""Bodies that wait for the helper or are in it; more are refused."""
_MODULE: Final = "batchedmodel_sidecar.codec.process.worker"
_STEP: Final = 256 * 1024
_SECONDS: Final = 10.0
_BYTES_PER_SECOND: Final = 1 << 20  # a tenth of what a slow core parses
_MOST_TRIES: Final = 2
_LEAST_DELAY: Final = 1.0
_WEIGHT: Final = 0.2


class CodecProcessEnded(Exception):
    """The process is gone, or takes nothing any more."""


class CodecProcess:
    """A running helper; one job at a time."""

    def __init__(self, connection: socket.socket, child: asyncio.subprocess.Process) -> None:
        """Call `start`."""
        self._socket = connection
        self._child = child

    @classmethod
    async def start(cls) -> "CodecProcess":
        """A new one; raises `OSError`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                # What is sent to the sidecar's process group does not concern it.
                start_new_session=True,
            )
        ours.setblocking(False)
        logger.info("started a helper for large bodies, process %d", child.pid)
        return cls(ours, child)

    def tell(self, message: News | Job, memory: SharedMemory) -> None:
        """Send a message; raises `CodecProcessEnded`."""
        try:
            send(self._socket, message, memory)
        except OSError as error:
            raise CodecProcessEnded(f"nothing can be sent to it: {error.strerror}") from error

    async def ask(self, job: Job, memory: SharedMemory) -> tuple[Reply, SharedMemory]:
        """The reply to a job; raises `CodecProcessEnded`."""
        self.tell(job, memory)
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._socket, readable.set)
        try:
            await readable.wait()
            replied = received(self._socket)
        except OSError as error:
            raise CodecProcessEnded(f"nothing comes from it: {error.strerror}") from error
        finally:
            loop.remove_reader(self._socket)
        if replied is None:
            raise CodecProcessEnded("it hung up")
        return replied

    async def end(self) -> None:
        """Kill it, if it is alive, and return when nothing of it is left."""
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()
        code = await self._child.wait()
        self._socket.close()
        logger.info("the helper for large bodies ended with %d", code)


class CodecFailed(Exception):
    """The job has no outcome; the message says why."""


class NoMemory(Exception):
    """The values of a body take so many bytes, which the budget has not."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size: Final = size


@dataclass(slots=True, eq=False)
class _Task:
    job: Job
    lies: SharedMemory | Sequence[Buffer]
    """What it works on. Buffers are put in memory of their own when its turn has come."""
    model: ReadyModel | None
    size: int
    held: Hold | None
    wanted: bool = True
    """Whether its caller still waits; one that left has closed the memory."""


def patience(size: int) -> float:
    """Seconds after which a helper that has so many bytes to work on is taken for stuck."""
    return _SECONDS + size / _BYTES_PER_SECOND


class CodecClient:
    """At most one process, and the line in front of it."""

    def __init__(self, clock: Callable[[], float], hold: Hold | None = None) -> None:
        """Starts nothing yet. `hold` lends the memory that answers take, which are nobody's."""
        self._clock = clock
        self._hold = hold
        self._turns = FairTurns(at_once=lambda: 1, room=MOST_BODIES)
        self._process: CodecProcess | None = None
        self._told: ReadyModel | None = None
        self._seconds = 0.0
        """How long a job takes, on average."""
        self._closed = False

    def refusal(self, share: Share) -> Rejection | None:
        """Why one more body of a tenant would be refused; None if it would not."""
        return self._turns.refusal(share, 1)

    @property
    def delay(self) -> float:
        """Seconds after which a refused body may come again: when half of what waits is done."""
        return max(_LEAST_DELAY, self._seconds * self._turns.waiting / 2)

    async def do(
        self,
        job: Job,
        lies: SharedMemory | Sequence[Buffer],
        model: ReadyModel | None,
        *,
        urgent: bool,
        share: Share = NOBODY,
        held: Hold | None = None,
    ) -> tuple[memoryview, int]:
        """The reply's memory, and how many bytes at its end are pickled; raises `CodecFailed`.

        Without a model the job itself says all that must be known of one. A job whose caller is
        cancelled is not begun, and not tried again. What the values of a body take while it is
        read is charged to `held`; raises `NoMemory` where it has no room for them.
        """
        size = len(lies) if isinstance(lies, SharedMemory) else size_of(lies)
        task = _Task(job, lies, model, size, held or self._hold)
        begin = partial(self._begun, task)
        room = 0 if urgent else 1
        try:
            reply, filled = await self._turns.take_turn(
                share, task.size, begin, room=room, urgent=urgent
            )
        finally:
            task.wanted = False
        view = filled.view()
        filled.close()
        return view, reply.head

    async def close(self) -> None:
        """End the process; what waits fails."""
        self._closed = True
        await self._end()

    def _begun(self, task: _Task) -> "asyncio.Task[tuple[Reply, SharedMemory]]":
        return asyncio.create_task(self._carried(task))

    async def _carried(self, task: _Task) -> tuple[Reply, SharedMemory]:
        """Do one job. When the process ends meanwhile, a fresh one tries it once more.

        Once may be an accident. Twice is likely the job's own doing, and others wait.
        """
        started = self._clock()
        memory: SharedMemory | None = None
        try:
            lies = task.lies
            memory = lies if isinstance(lies, SharedMemory) else await stored(lies)
            for _ in range(_MOST_TRIES):
                try:
                    async with asyncio.timeout(patience(task.size)):
                        return await self._read(task, memory)
                except CodecProcessEnded as error:
                    logger.warning("the helper for large bodies is lost: %s", error)
                    await self._end()
            raise CodecFailed("the process that works on large bodies ended")
        except (CodecFailed, NoMemory, asyncio.CancelledError):
            raise
        except TimeoutError:
            logger.warning("the helper for large bodies is stuck")
            await self._end()
            raise CodecFailed("the process that works on large bodies is stuck") from None
        except BaseException as bug:
            logger.error("the helper for large bodies cannot be used", exc_info=bug)
            await self._end()
            raise CodecFailed("large bodies cannot be worked on at present") from None
        finally:
            if memory is not None and memory is not task.lies:
                memory.close()
            if task.wanted:
                seconds = self._clock() - started
                self._seconds += _WEIGHT * (seconds - self._seconds) if self._seconds else seconds

    async def _read(self, task: _Task, memory: SharedMemory) -> tuple[Reply, SharedMemory]:
        """Do one job, with the memory that it asks for; raises `NoMemory`."""
        replied = await self._asked(task, task.job, memory)
        reply, filled = replied
        if not reply.needs:
            return replied
        filled.close()
        # Of an answer to several callers none must be refused for what another's part of it takes.
        must = isinstance(task.job, DealJob)
        # A part of its own: its caller may leave before the job is done.
        hold = task.held if task.wanted else None
        lent = None if hold is None else hold.lend(reply.needs, must=must)
        if lent is None:
            raise NoMemory(reply.needs)
        with lent:
            return await self._asked(task, task.job._replace(granted=True), memory)

    async def _asked(
        self, task: _Task, job: Job, memory: SharedMemory
    ) -> tuple[Reply, SharedMemory]:
        """Do one job in the process that is there, or in a new one."""
        if self._closed:
            raise CodecFailed("this pod is stopping")
        if not task.wanted:
            raise CodecFailed("its caller has left")
        if self._process is None:
            self._told, self._process = None, await CodecProcess.start()
        process = self._process
        if self._closed:
            raise CodecProcessEnded("it is not wanted any more")
        if task.model is not None and self._told is not task.model:
            await self._introduce(process, task.model)
        if not task.wanted:
            raise CodecFailed("its caller has left")
        return await process.ask(job, memory)

    async def _introduce(self, process: CodecProcess, model: ReadyModel) -> None:
        head, parts = wire.write_model(model)
        memory = await stored(parts)
        process.tell(News(head), memory)
        memory.close()
        self._told = model

    async def _end(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            await process.end()


async def stored(parts: Sequence[Buffer]) -> SharedMemory:
    """The parts in memory that can be sent, written in steps between which the loop goes on."""
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
    return memory
