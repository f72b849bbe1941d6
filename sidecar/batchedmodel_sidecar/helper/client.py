"""The sidecar's side of a helper process: bounded, fair, supervised, and started when needed.

In front of it tenants take turns by the bytes that they send; answers go before questions, as they
are for callers who were accepted. What has no turn yet can still be dropped, so the process has no
more than it needs to be busy, and does it in its order. So when it ends, the oldest job without an
answer may be why: a fresh process tries that one once more, and the others as often as it takes.
"""

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.body.buffers import pieces_of
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.body.fair_threads import FairTurns
from batchedmodel_sidecar.errors import RETRY_SOON, Rejected
from batchedmodel_sidecar.helper import messages
from batchedmodel_sidecar.helper.messages import (
    INLINE_BYTES,
    Content,
    Job,
    Kind,
    Message,
    NoMemory,
    Pickled,
    apart,
    content_of,
)
from batchedmodel_sidecar.helper.shared_memory import SharedMemory

logger: Final = logging.getLogger(__name__)

_MODULE: Final = "batchedmodel_sidecar.helper.process"
_BYTES_PER_SECOND: Final = 1 << 20  # a tenth of what a slow core parses
_MOST_TRIES: Final = 2
_LEAST_DELAY_SECONDS: Final = 1.0
_WEIGHT: Final = 0.2
_FIRST_PAUSE_SECONDS: Final = 0.05
_MOST_DOUBLINGS: Final = 4


class HelperEnded(Exception):
    """The process has ended; the message says how."""

    def __init__(self, how: str, tries: int) -> None:
        """`tries`: how many of the job's own this was."""
        super().__init__(how)
        self.tries: Final = tries


class HelperProcess:
    """A running helper, which does jobs in their order."""

    def __init__(self, connection: socket.socket, child: asyncio.subprocess.Process) -> None:
        """Call `start`."""
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._child = child
        self._asked: deque[tuple[asyncio.Future[Message], float]] = deque()
        """The oldest first, with the seconds that it may take."""
        self._timer: asyncio.TimerHandle | None = None
        self.has_answered = False
        self.has_ended = False
        self._loop.add_reader(connection, self._readable)

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

    def send(self, kind: Kind, content: Content, *lies: SharedMemory | None) -> None:
        """See `messages.send`; raises `HelperEnded`."""
        try:
            messages.send(self._socket, kind, content, *lies)
        except OSError as error:
            self._lose(f"nothing can be sent to it: {error.strerror}")
            raise HelperEnded("ended", 1) from error

    def answer(self, seconds: float) -> asyncio.Future[Message]:
        """The answer to the job that was sent last, or `HelperEnded`.

        The process is stuck when the oldest job takes longer than its seconds.
        """
        answer: asyncio.Future[Message] = self._loop.create_future()
        self._asked.append((answer, seconds))
        if len(self._asked) == 1:
            self._watch()
        return answer

    async def end(self) -> None:
        """Kill it, if it is alive, and return when nothing of it is left."""
        self._lose("it is not needed")
        logger.info("a helper ended with %d", await self._child.wait())

    def _readable(self) -> None:
        try:
            message = messages.receive(self._socket)
        except BlockingIOError:
            return
        except OSError:
            message = None
        if message is None:
            self._lose("it hung up")
            return
        self.has_answered = True
        answer, _ = self._asked.popleft()
        self._watch()
        if not answer.done():
            answer.set_result(message)

    def _watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._asked:
            stuck = partial(self._lose, "it is stuck", "is stuck", _MOST_TRIES)
            self._timer = self._loop.call_later(self._asked[0][1], stuck)

    def _lose(self, why: str, how: str = "ended", tries: int = 1) -> None:
        """It works no more. Only the oldest job may be why."""
        if self.has_ended:
            return
        self.has_ended = True
        if self._asked:
            logger.warning("a helper is lost: %s", why)
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for answer, _ in self._asked:
            if not answer.done():
                answer.set_exception(HelperEnded(how, tries))
            tries = 0
        self._asked.clear()
        self._watch()


@dataclass(slots=True, eq=False)
class _Task:
    content: Content
    body: SharedMemory | None
    model: Pickled | None
    size: int
    hold: Hold | None
    must: bool
    wanted: bool = True
    """Whether its caller still waits; one that left has closed the body's memory."""


class HelperClient:
    """At most one process, and the line in front of it."""

    def __init__(
        self,
        what: str,
        jobs: str,
        clock: Callable[[], float],
        *,
        places: int,
        at_once: int = 1,
        stuck_seconds: float = 10.0,
        hold: Hold | None = None,
    ) -> None:
        """Starts nothing yet.

        `what` it works on, in words; `jobs`: the module that holds them. `places`: jobs that wait
        for the process or are with it; more are refused. `at_once`: those that are with it.
        `stuck_seconds`: how long a small one may take. `hold` lends memory that no caller does.
        """
        self._what = what
        self._jobs = jobs
        self._clock = clock
        self._stuck_seconds = stuck_seconds
        self._hold = hold
        self._turns = FairTurns(at_once=lambda: at_once, room=places)
        self._process: HelperProcess | None = None
        self._model: Pickled | None = None
        """That the process knows."""
        self._sending = asyncio.Lock()
        """Held while a process is started, sent a model and sent a job."""
        self._beginning: asyncio.Task[None] | None = None
        self._failures = 0
        """Processes in a row that ended without an answer."""
        self._seconds = 0.0
        """How long a job takes, on average."""
        self._closed = False

    def begin(self) -> None:
        """Have the process there before the first job."""
        self._beginning = asyncio.create_task(self._begin())

    def check_place(self, share: Share) -> None:
        """Raise `Rejected` when there is no place for one more job of a tenant."""
        refusal = self._turns.refusal(share, 1)
        if refusal is not None:
            message = f"as many {self._what} are being read as may be at once"
            raise Rejected(refusal, message, retry_after=self.delay)

    @property
    def delay(self) -> float:
        """Seconds after which what was refused may come again: when half of what waits is done."""
        return max(_LEAST_DELAY_SECONDS, self._seconds * self._turns.waiting / 2)

    async def do(
        self,
        job: Job,
        body: SharedMemory | Buffer,
        model: Pickled | None = None,
        *,
        share: Share = NOBODY,
        urgent: bool = False,
        hold: Hold | None = None,
        must: bool = False,
    ) -> tuple[Any, int]:
        """The result of a job, and the bytes of memory that it may refer to.

        Raises what the job raises, `Rejected` where the process cannot do it, and `NoMemory` where
        `hold` does not lend what the values of the body take, unless it `must`. A job whose caller
        is cancelled is not begun, and not tried again.
        """
        lies = body if isinstance(body, SharedMemory) else None
        content = content_of((job, apart(body) if lies is None else None))
        size = content.size + (0 if lies is None else len(lies))
        task = _Task(content, lies, model, size, hold or self._hold, must)
        begin = partial(self._begun, task)
        room = 0 if urgent else 1
        try:
            message = await self._turns.take_turn(share, size, begin, room=room, urgent=urgent)
        finally:
            task.wanted = False
        return message.load(), len(message.content)

    async def close(self) -> None:
        """End the process; what waits fails."""
        self._closed = True
        await self._end()
        async with self._sending:
            await self._end()  # what was being started

    async def _begin(self) -> None:
        # Jobs say why they fail.
        with contextlib.suppress(OSError, Rejected):
            async with self._sending:
                await self._running()

    def _begun(self, task: _Task) -> asyncio.Task[Message]:
        return asyncio.create_task(self._carried(task))

    async def _carried(self, task: _Task) -> Message:
        """Do one job. When the process ends over it, a fresh one tries it once more.

        Once may be an accident. Twice is likely the job's own doing, and others wait.
        """
        started, tries = self._clock(), 0
        memory: SharedMemory | None = None
        try:
            memory = await _stored(task.content)
            while True:
                try:
                    return await self._granted(task, memory)
                except HelperEnded as ended:
                    tries += ended.tries
                    if tries >= _MOST_TRIES:
                        text = f"the process that works on {self._what} {ended}"
                        raise _failed(text) from None
        except (Rejected, NoMemory, asyncio.CancelledError):
            raise
        except BaseException as bug:
            logger.error("the helper for %s cannot be used", self._what, exc_info=bug)
            await self._end()
            raise _failed(f"{self._what} cannot be worked on at present") from None
        finally:
            if memory is not None:
                memory.close()
            if task.wanted:
                seconds = self._clock() - started
                self._seconds += _WEIGHT * (seconds - self._seconds) if self._seconds else seconds

    async def _granted(self, task: _Task, memory: SharedMemory | None) -> Message:
        """Do one job, with the memory that it asks for; raises `NoMemory`."""
        message = await self._asked(task, Kind.JOB, memory)
        if message.kind is not Kind.NEEDS:
            return message
        needs = message.load()
        # A part of its own: its caller may leave before the job is done.
        hold = task.hold if task.wanted else None
        lent = None if hold is None else hold.lend(needs, must=task.must)
        if lent is None:
            raise NoMemory(needs)
        with lent:
            return await self._asked(task, Kind.GRANTED, memory)

    async def _asked(self, task: _Task, kind: Kind, memory: SharedMemory | None) -> Message:
        """Do one job in the process that is there, or in a new one."""
        async with self._sending:
            if task.wanted:
                process = await self._running()
                if task.model is not None and self._model != task.model:
                    await self._introduce(process, task.model)
            if not task.wanted:
                raise _failed("its caller has left")
            process.send(kind, task.content, memory, task.body)
            answer = process.answer(self._stuck_seconds + task.size / _BYTES_PER_SECOND)
        return await answer

    async def _running(self) -> HelperProcess:
        if self._process is not None and self._process.has_ended:
            self._failures = 0 if self._process.has_answered else self._failures + 1
            await self._end()
            if self._failures:
                doublings = min(self._failures - 1, _MOST_DOUBLINGS)
                await asyncio.sleep(_FIRST_PAUSE_SECONDS * 2**doublings)
        if self._closed:
            raise _failed("this pod is stopping")
        if self._process is None:
            self._process = await HelperProcess.start(self._what, self._jobs)
        return self._process

    async def _introduce(self, process: HelperProcess, model: Pickled) -> None:
        content = content_of(model)
        memory = await _stored(content)
        process.send(Kind.MODEL, content, memory)
        if memory is not None:
            memory.close()
        self._model = model

    async def _end(self) -> None:
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


def _failed(message: str) -> Rejected:
    return Rejected(Rejection.NOT_READY, message, retry_after=RETRY_SOON)
