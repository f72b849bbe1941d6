"""The sidecar's side of the processes that prepare requests: bounded, fair, supervised.

A large body takes seconds, so those have a process of their own, and small ones never wait for it.
In front of each tenants take turns by the bytes of their bodies. What has no turn yet can still be
dropped, so a process has no more than it needs to be busy, and works on it in its order. So when it
ends, the first body without an answer may be why: it is tried once more, and the other as often as
it takes.
"""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from typing import Any, Final

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.body.fair_threads import FairTurns
from batchedmodel_sidecar.errors import RETRY_SOON, Rejected
from batchedmodel_sidecar.generation.native.requests.preparer import TextPreparer
from batchedmodel_sidecar.generation.native.requests.process_wire import (
    MessageReader,
    Model,
    read_answer,
    write_body,
    write_model,
)
from batchedmodel_sidecar.generation.native.requests.text_request import TextEndpoint, TextRequest

logger: Final = logging.getLogger(__name__)

_MODULE: Final = "batchedmodel_sidecar.generation.native.requests.preparing_process"
_MOST_BODIES: Final = 1024
"""That wait or are with a process; more are refused."""
_LARGE: Final = 32 * 1024
"""Bytes, which take about 20 ms."""
_SMALL_AT_ONCE: Final = 2
"""So that the process has the next one when it has answered."""
_LARGE_AT_ONCE: Final = 1
_MOST_TRIES: Final = 2
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_MOST_DOUBLINGS: Final = 10
_STUCK_SECONDS: Final = 20.0
"""A body that takes longer hangs: a template is ended by itself after a second of CPU."""


class Preparing:
    """Prepares requests in one process, and large ones in another, which starts when needed."""

    def __init__(self) -> None:
        """Starts nothing yet; needs a running loop."""
        self._small = PreparingLine(_SMALL_AT_ONCE)
        self._large = PreparingLine(_LARGE_AT_ONCE)

    def begin(self) -> None:
        """Have the process for small bodies there before the first one."""
        self._small.begin()

    async def prepare(
        self, texts: TextPreparer, endpoint: TextEndpoint, body: Buffer, share: Share
    ) -> TextRequest:
        """The request in a body; raises `InvalidInput` and `Rejected`."""
        line = self._large if len(body) > _LARGE else self._small
        return await line.prepare(texts, endpoint, body, share)

    async def close(self) -> None:
        """End the processes; what is with them fails."""
        await self._small.close()
        await self._large.close()


class _Body:
    """A body that is with the process, or was when it ended."""

    __slots__ = ("body", "endpoint", "texts", "tries", "waiter", "wanted")

    def __init__(
        self,
        endpoint: TextEndpoint,
        body: Buffer,
        texts: TextPreparer,
        waiter: "asyncio.Future[TextRequest]",
    ) -> None:
        self.endpoint = endpoint
        self.body = body
        self.texts = texts
        self.waiter = waiter
        self.tries = 0
        self.wanted = True
        """Whether its caller is still there."""


class PreparingLine:
    """At most one process, and the line in front of it."""

    def __init__(self, at_once: int, stuck_seconds: float = _STUCK_SECONDS) -> None:
        """Starts nothing yet; needs a running loop. `at_once`: bodies that are with the process."""
        self._stuck_seconds = stuck_seconds
        self._loop = asyncio.get_running_loop()
        self._turns = FairTurns(at_once=lambda: at_once, room=_MOST_BODIES)
        self._bodies: dict[int, _Body] = {}
        """By number, the oldest first."""
        self._next = 0
        self._told: TextPreparer | None = None
        self._process: _Process | None = None
        self._starting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0
        """Processes in a row that ended without an answer."""
        self._closed = False

    def begin(self) -> None:
        """Have the process there before the first body."""
        if self._process is None and self._starting is None and not self._closed:
            self._starting = self._loop.create_task(self._start())

    async def prepare(
        self, texts: TextPreparer, endpoint: TextEndpoint, body: Buffer, share: Share
    ) -> TextRequest:
        """The request in a body; raises `InvalidInput` and `Rejected`."""
        if self._closed:
            raise Rejected(Rejection.DRAINING, "this pod is stopping")
        if (refusal := self._turns.refusal(share, 1)) is not None:
            message = "as many requests are being read as may be at once"
            raise Rejected(refusal, message, retry_after=RETRY_SOON)

        one = _Body(endpoint, body, texts, self._loop.create_future())

        def begin() -> "asyncio.Future[TextRequest]":
            self._next += 1
            self._bodies[self._next] = one
            self._send(self._next, one)
            return one.waiter

        try:
            return await self._turns.take_turn(share, len(body), begin, room=1)
        finally:
            one.wanted = False

    async def close(self) -> None:
        """End the process; what is with it fails."""
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
        self._fail_all("this pod is stopping")
        if self._process is not None:
            await self._process.end()

    def answered(self, data: bytes, reader: MessageReader) -> None:
        """From the process: some bytes."""
        self._failures = 0
        for message in reader.feed(data):
            one = self._bodies.pop(message.number, None)
            if one is None or one.waiter.done():
                continue
            answer = read_answer(message)
            if isinstance(answer, TextRequest):
                one.waiter.set_result(answer)
            else:
                one.waiter.set_exception(answer)
        self._watch()

    def lost(self, process: "_Process") -> None:
        """From the process: it has ended."""
        if process is not self._process:
            return
        self._process = self._told = None
        self._stop_watch()
        self._failures += 1
        if self._closed:
            return
        logger.warning("the process that reads requests for text ended")
        if self._bodies:
            number, first = next(iter(self._bodies.items()))
            first.tries += 1
            if first.tries >= _MOST_TRIES:
                del self._bodies[number]
                self._fail(first, "the process that reads requests ended over this one, twice")
        self.begin()

    async def _start(self) -> None:
        if self._failures:
            doublings = min(self._failures - 1, _MOST_DOUBLINGS)
            await asyncio.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**doublings))
        try:
            process = await _Process.start(self)
        except OSError as error:
            self._starting = None
            logger.error("the process that reads requests cannot be started: %s", error.strerror)
            self._fail_all("requests cannot be read at present")
            return
        self._starting = None
        self._process = process
        for number, one in list(self._bodies.items()):
            if one.wanted:
                self._send(number, one)
            else:
                del self._bodies[number]
                one.waiter.cancel()

    def _send(self, number: int, one: _Body) -> None:
        if self._process is None:
            self.begin()
            return
        if self._told is not one.texts:
            self._told = texts = one.texts
            model = Model(texts.name, texts.description, texts.tokenizer_json)
            self._process.write(write_model(model))
        self._process.write(write_body(number, one.endpoint, one.body))
        if self._timer is None:
            self._watch()

    def _watch(self) -> None:
        """The oldest must be answered in time."""
        self._stop_watch()
        if self._bodies and self._process is not None:
            self._timer = self._loop.call_later(self._stuck_seconds, self._process.kill)

    def _stop_watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail_all(self, reason: str) -> None:
        bodies, self._bodies = self._bodies, {}
        for one in bodies.values():
            self._fail(one, reason)

    def _fail(self, one: _Body, reason: str) -> None:
        if not one.waiter.done():
            error = Rejected(Rejection.NOT_READY, reason, retry_after=RETRY_SOON)
            one.waiter.set_exception(error)


class _Process(asyncio.Protocol):
    """One process, and the connection to it."""

    def __init__(self, line: PreparingLine) -> None:
        self._line = line
        self._reader = MessageReader()
        self._transport: Any = None
        self._child: asyncio.subprocess.Process | None = None

    @classmethod
    async def start(cls, line: PreparingLine) -> "_Process":
        """A new one; raises `OSError`."""
        made = cls(line)
        ours, theirs = socket.socketpair()
        with theirs:
            made._child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                # It tokenises one text at a time.
                env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
                # What is sent to the sidecar's process group does not concern it.
                start_new_session=True,
            )
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: made, ours)
        logger.info("started a process that reads requests for text, %d", made._child.pid)
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._line.answered(data, self._reader)

    def connection_lost(self, error: Exception | None) -> None:
        self.kill()
        self._line.lost(self)

    def write(self, parts: list[Buffer]) -> None:
        """Send a message."""
        if not self._transport.is_closing():
            self._transport.writelines(parts)

    def kill(self) -> None:
        """End it at once; `lost` follows."""
        with contextlib.suppress(ProcessLookupError):
            if self._child is not None:
                self._child.kill()
        self._transport.abort()

    async def end(self) -> None:
        """Kill it and return when nothing of it is left."""
        self.kill()
        if self._child is not None:
            await self._child.wait()
