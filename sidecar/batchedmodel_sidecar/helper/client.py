"""The sidecar's side of a helper process: bounded, fair, supervised, and started when needed.

In front of it tenants take turns by the bytes that they send; answers go before questions, as they
are for callers who were accepted. What has no turn yet can still be dropped, so the process has no
more than it needs to be busy, and does it in its order. So when it ends, the oldest job without an
answer may be why: a fresh process tries that one once more, and the others as often as it takes.

A job is a record and callbacks, and no task: one is needed only to start a process, to send it a
model, and to write a large content.
"""

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_http.eager_coroutine import DirectFuture
from batchedmodel_scheduling.queue.fair_queue import FairQueue
from batchedmodel_scheduling.queue.shared_room import SharedRoom
from batchedmodel_sidecar.body.buffers import pieces_of
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.errors import RETRY_SOON, Rejected, Unserved
from batchedmodel_sidecar.helper import messages
from batchedmodel_sidecar.helper.messages import (
    INLINE_BYTES,
    Content,
    Job,
    Kind,
    Message,
    Pickled,
    apart,
    content_of,
    with_body,
)
from batchedmodel_sidecar.helper.shared_memory import SharedMemory

logger: Final = logging.getLogger(__name__)

_MODULE: Final = "batchedmodel_sidecar.helper.process"
_BYTES_PER_SECOND: Final = 1 << 20  # a tenth of what a slow core parses
_MOST_TRIES: Final = 2
_AHEAD_BYTES: Final = 4096
"""Of jobs that the process has, from which the next one waits here, where another tenant's goes
before it. A body of 4 KiB takes some milliseconds, so the process never waits for the next one."""
_FIRST_PAUSE_SECONDS: Final = 0.05
_MOST_DOUBLINGS: Final = 4


class HelperProcess:
    """A running helper, which does jobs in their order."""

    def __init__(self, connection: socket.socket, child: asyncio.subprocess.Process) -> None:
        """Call `start`."""
        self.socket: Final = connection
        self._child = child
        self.has_answered = False
        self.has_ended = False

    @classmethod
    async def start(cls, what: str, jobs: str) -> "HelperProcess":
        """A new one for jobs of this module; raises `OSError`. `what` it works on, for the log."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", _MODULE, str(theirs.fileno()), jobs),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                # What is sent to the sidecar's process group does not concern it.
                start_new_session=True,
            )
        ours.setblocking(False)
        logger.info("started a helper for %s, process %d", what, child.pid)
        return cls(ours, child)

    def kill(self) -> None:
        """It works no more."""
        if not self.has_ended:
            self.has_ended = True
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()
            asyncio.get_running_loop().remove_reader(self.socket)
            self.socket.close()

    async def end(self) -> None:
        """Kill it, if it is alive, and return when nothing of it is left."""
        self.kill()
        logger.info("a helper ended with %d", await self._child.wait())


@dataclass(slots=True, eq=False)
class _Job:
    share: Share
    room: int
    content: Content
    body: SharedMemory | None
    model: Pickled | None
    size: int
    """Bytes by which tenants take turns."""
    hold: Hold | None
    must: bool
    answer: DirectFuture[Message]
    kind: Kind = Kind.JOB
    had_turn: bool = False
    memory: SharedMemory | None = None
    """Where a large content lies, from its turn on."""
    lent: Hold | None = None
    tries: int = 0
    has_caller: bool = True
    """Whether its caller still waits; one that left has closed the body's memory."""


class HelperClient:
    """At most one process, and the line in front of it."""

    def __init__(
        self,
        what: str,
        jobs: str,
        *,
        places: int,
        at_once: int = 1,
        stuck_seconds: float = 10.0,
        hold: Hold | None = None,
    ) -> None:
        """Starts nothing yet.

        `what` it works on, in words; `jobs`: the module that holds them. `places`: jobs that wait
        for the process or are with it; more are refused. `at_once`: those that are with it, fewer
        where they are large.
        `stuck_seconds`: how long a small one may take. `hold` lends memory that no caller does.
        """
        self._what = what
        self._module = jobs
        self._at_once = at_once
        self._stuck_seconds = stuck_seconds
        self._hold = hold
        self._room: Final = SharedRoom(places)
        self._answers: FairQueue[_Job] = FairQueue()
        self._others: FairQueue[_Job] = FairQueue()
        self._due: deque[_Job] = deque()
        """Those whose turn it is, and that the process does not have: they go in this order."""
        self._sent: deque[_Job] = deque()
        """Those that it has, the oldest first."""
        self._timer: asyncio.TimerHandle | None = None
        """For the oldest, which may hang."""
        self._process: HelperProcess | None = None
        self._model: Pickled | None = None
        """That the process knows."""
        self._readying: asyncio.Task[None] | None = None
        """Starts a process, and sends it what takes long; meanwhile nothing else is sent."""
        self._failures = 0
        """Processes in a row that ended without an answer."""
        self._closed = False

    def begin(self) -> None:
        """Have the process there before the first job."""
        if self._readying is None:
            self._readying = asyncio.create_task(self._ready())

    def check_place(self, share: Share) -> None:
        """Raise `Rejected` when there is no place for one more job of a tenant."""
        refusal = self._room.refusal(share, 1)
        if refusal is not None:
            message = f"as many {self._what} are being read as may be at once"
            raise Rejected(refusal, message, retry_after=RETRY_SOON)

    async def do(
        self,
        job: Job | bytes,
        body: SharedMemory | Buffer,
        model: Pickled | None = None,
        *,
        share: Share = NOBODY,
        is_answer: bool = False,
        hold: Hold | None = None,
        must: bool = False,
    ) -> tuple[Any, int]:
        """The result of a job, and the bytes of memory that it may refer to.

        A job that is the same for many buffers may be pickled once, by `pickled_job`. One that
        `is_answer` goes before all that are not.

        Raises what the job raises, and `Rejected` where the process cannot do it, or `hold` does
        not lend what the values of the body take, unless it `must`. Of an answer each `Rejected` is
        `Unserved`: its call was accepted. A job whose caller is cancelled is not begun, and not
        tried again.
        """
        lies = None
        if isinstance(body, SharedMemory):
            lies, content = body, content_of((job, None))
        elif isinstance(job, bytes):
            content = with_body(job, body)
        else:
            content = content_of((job, apart(body)))
        entry = _Job(
            share=share,
            room=0 if is_answer else 1,
            content=content,
            body=lies,
            model=model,
            size=content.size + (0 if lies is None else len(lies)),
            hold=hold or self._hold,
            must=must,
            answer=DirectFuture(),
        )
        line = self._answers if is_answer else self._others
        self._room.take(share, entry.room)
        line.push(share, entry, work=entry.size)
        self._send()
        try:
            message = await entry.answer
            return message.load(), len(message.content)
        except Rejected as error:
            if not is_answer:
                raise
            after = error.retry_after
            raise Unserved(error.message, status=error.status, retry_after=after) from error
        finally:
            entry.has_caller = False
            if not entry.had_turn:
                line.cancel(entry)
                self._room.give_back(share.tenant, entry.room)

    async def close(self) -> None:
        """End the process; what waits fails."""
        self._closed = True
        await self._end()
        if self._readying is not None:
            await asyncio.wait([self._readying])
            await self._end()  # what was being started
        self._send()

    def _send(self) -> None:
        """Send what has its turn, as far as that needs no waiting."""
        while self._readying is None and (job := self._next()) is not None:
            process = self._process
            if not job.has_caller:
                self._finish(job, _failed("its caller has left"))
            elif self._closed:
                self._finish(job, _failed("this pod is stopping"))
            elif process is None or process.has_ended or not self._is_ready_for(job):
                self._readying = asyncio.create_task(self._ready())
            elif self._has_sent(process, job, job.kind, job.content, job.memory, job.body):
                self._due.popleft()
                self._sent.append(job)
                if self._timer is None:
                    self._watch()

    def _has_sent(
        self,
        process: HelperProcess,
        job: _Job,
        kind: Kind,
        content: Content,
        *lies: SharedMemory | None,
    ) -> bool:
        """Send something for a job that is due, unless it is given up over it."""
        try:
            messages.send(process.socket, kind, content, *lies)
        except OSError as error:
            self._lose(f"nothing can be sent to it: {error.strerror}")
            self._was_tried(job, "ended")
            return False
        except Exception as bug:
            self._fail(job, bug)
            return False
        return True

    def _next(self) -> _Job | None:
        """The first of the jobs whose turn it is."""
        if not self._due:
            line = self._answers if len(self._answers) else self._others
            job = line.first()
            if job is None or self._is_busy:
                return None
            line.leave(job)
            job.had_turn = True
            self._due.append(job)
        return self._due[0]

    @property
    def _is_busy(self) -> bool:
        """Whether the process has as much to do as it gets at once."""
        has = sum([job.size for job in self._sent])
        return len(self._sent) >= self._at_once or has >= _AHEAD_BYTES

    def _is_ready_for(self, job: _Job) -> bool:
        """Whether the process knows what the job is for, and its content lies where it is read."""
        if job.model is not None and self._model != job.model:
            return False
        return job.memory is not None or job.content.size <= INLINE_BYTES

    async def _ready(self) -> None:
        """Have a process, and make it ready for the first job, if there is one."""
        try:
            process = await self._running()
            job = self._due[0] if self._due else None
            if process is None or job is None or not job.has_caller:
                return
            if job.model is not None and self._model != job.model:
                content = content_of(job.model)
                memory = await _stored(content)
                is_sent = self._has_sent(process, job, Kind.MODEL, content, memory)
                if memory is not None:
                    memory.close()
                if not is_sent:
                    return
                self._model = job.model
            job.memory = job.memory or await _stored(job.content)
        except Exception as bug:
            self._fail(self._due[0] if self._due else None, bug)
        finally:
            self._readying = None
            self._send()

    def _readable(self, process: HelperProcess) -> None:
        try:
            message = messages.receive(process.socket)
        except BlockingIOError:
            return
        except OSError:
            message = None
        if message is None:
            self._lose("it hung up")
            return
        process.has_answered = True
        job = self._sent.popleft()
        self._watch()
        if message.kind is Kind.NEEDS:
            self._due.appendleft(job)
            self._lend(job, message)
        else:
            self._finish(job, message)
        self._send()

    def _watch(self) -> None:
        """The process is stuck when its oldest job takes longer than it may."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sent:
            seconds = self._stuck_seconds + self._sent[0].size / _BYTES_PER_SECOND
            stuck = partial(self._lose, "it is stuck", "is stuck", _MOST_TRIES)
            self._timer = asyncio.get_running_loop().call_later(seconds, stuck)

    def _lose(self, why: str, how: str = "ended", tries: int = 1) -> None:
        """The process works no more. Only its oldest job may be why; all are due again."""
        if self._process is None or self._process.has_ended:
            return
        if self._sent:
            logger.warning("a helper is lost: %s", why)
        self._process.kill()
        sent, self._sent = self._sent, deque()
        self._watch()
        self._due.extendleft(reversed(sent))
        if sent:
            self._was_tried(sent[0], how, tries)
        self._send()

    def _lend(self, job: _Job, asks: Message) -> None:
        """A job asks for memory: it goes once more when that is lent."""
        try:
            needs = asks.load()
        except Exception as bug:
            self._fail(job, bug)
            return
        # A part of its own: its caller may leave before the job is done.
        hold = job.hold if job.has_caller else None
        job.lent = None if hold is None else hold.lend(needs, must=job.must)
        job.kind = Kind.GRANTED
        if job.lent is None:
            refused = Rejection.QUEUE_FULL if hold is None else hold.refused
            self._finish(job, _no_memory(needs, refused, is_answer=not job.room))

    def _was_tried(self, job: _Job, how: str, tries: int = 1) -> None:
        """The process ended with a job that is due: a fresh one tries it once more.

        Once may be an accident. Twice is likely the job's own doing, and others wait.
        """
        job.tries += tries
        if job.tries >= _MOST_TRIES:
            self._finish(job, _failed(f"the process that works on {self._what} {how}"))

    def _fail(self, job: _Job | None, bug: Exception) -> None:
        """What nobody foresaw: the process may be why."""
        logger.error("the helper for %s cannot be used", self._what, exc_info=bug)
        if job is not None:
            self._finish(job, _failed(f"{self._what} cannot be worked on at present"))
        self._lose("it cannot be used")

    def _finish(self, job: _Job, outcome: Message | Exception) -> None:
        """Nothing more is done for a job."""
        if job in self._due:
            self._due.remove(job)
        if job.lent is not None:
            job.lent.release()
        if job.memory is not None:
            job.memory.close()
        self._room.give_back(job.share.tenant, job.room)
        if job.has_caller:
            job.answer.settle(outcome)

    async def _running(self) -> HelperProcess | None:
        """The process; None once this is closed."""
        if self._process is not None and self._process.has_ended:
            self._failures = 0 if self._process.has_answered else self._failures + 1
            await self._end()
            if self._failures:
                doublings = min(self._failures - 1, _MOST_DOUBLINGS)
                await asyncio.sleep(_FIRST_PAUSE_SECONDS * 2**doublings)
        if self._process is None and not self._closed:
            process = self._process = await HelperProcess.start(self._what, self._module)
            asyncio.get_running_loop().add_reader(process.socket, self._readable, process)
        return self._process

    async def _end(self) -> None:
        self._lose("it is not needed")
        if self._process is not None:
            process, self._process, self._model = self._process, None, None
            await process.end()


async def _stored(content: Content) -> SharedMemory | None:
    """A large content in memory, written in pieces between which the loop goes on."""
    if content.size <= INLINE_BYTES:
        return None
    memory = SharedMemory()
    for piece in pieces_of(content.parts):
        memory.write(piece)
        await asyncio.sleep(0)
    return memory


def _no_memory(size: int, reason: Rejection, *, is_answer: bool) -> Rejected:
    """So many bytes, which the values of a body or an answer take at most, are not lent."""
    if is_answer:
        return _failed(f"the values of the answer take up to {size} bytes; so many are not free")
    message = f"the values of the body take up to {size} bytes while they are read"
    if reason is Rejection.TOO_LARGE:
        return Rejected(reason, f"{message}, more than a caller may hold")
    return Rejected(reason, f"{message}; so many are not free", retry_after=RETRY_SOON)


def _failed(message: str) -> Rejected:
    return Rejected(Rejection.NOT_READY, message, retry_after=RETRY_SOON)
