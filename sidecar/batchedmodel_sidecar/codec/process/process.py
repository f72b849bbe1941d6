"""One helper process: started, told, asked, killed, and never left behind as a zombie.

The thin shell around the socket pair and the child. It decides nothing; the client above it does.
"""

import asyncio
import logging
import os
import pickle
import socket
import subprocess
import sys
from typing import Any, Final

from batchedmodel_sidecar.codec.process.shared_memory import SharedMemory
from batchedmodel_sidecar.codec.process.wire import Job, News, Reply

logger: Final = logging.getLogger(__name__)

_MODULE: Final = "batchedmodel_sidecar.codec.process.worker"
_LARGEST_MESSAGE: Final = 64 * 1024


class CodecProcessEnded(Exception):
    """The process is gone, or takes nothing any more."""


class CodecProcess:
    """A running helper; one job at a time."""

    def __init__(self) -> None:
        """Start one; needs a running loop. Raises `OSError`."""
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[tuple[Reply, SharedMemory]] | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())]
            # A session of its own: what is sent to the sidecar's group does not concern it.
            self._child = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        ours.setblocking(False)
        self._socket = ours
        self._pidfd = os.pidfd_open(self._child.pid)
        self._loop.add_reader(ours, self._readable)
        self._loop.add_reader(self._pidfd, self._reap)
        logger.info("started a helper for large bodies, process %d", self._child.pid)

    def tell(self, message: News | Job, memory: SharedMemory) -> None:
        """Send a message; raises `CodecProcessEnded`."""
        try:
            socket.send_fds(self._socket, [pickle.dumps(message)], [memory.descriptor])
        except OSError as error:
            raise CodecProcessEnded(f"nothing can be sent to it: {error.strerror}") from error

    async def ask(self, job: Job, memory: SharedMemory) -> tuple[Reply, SharedMemory]:
        """The reply to a job; raises `CodecProcessEnded`."""
        self.tell(job, memory)
        self._answer = self._loop.create_future()
        return await self._answer

    async def end(self) -> None:
        """Kill it, if it is alive, and return when nothing of it is left."""
        if not self._ended.done():
            self._child.kill()
        await asyncio.shield(self._ended)

    def _readable(self) -> None:
        try:
            taken = received(self._socket)
        except BlockingIOError:
            return
        except OSError:
            taken = None
        if taken is None:
            self._loop.remove_reader(self._socket)
        if self._answer is None or self._answer.done():
            return  # nobody waits for it any more
        if taken is None:
            self._answer.set_exception(CodecProcessEnded("it hung up"))
        else:
            self._answer.set_result(taken)

    def _reap(self) -> None:
        code = self._child.wait()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(CodecProcessEnded(f"it ended with {code}"))
        logger.info("the helper for large bodies ended with %d", code)
        self._ended.set_result(None)


def received(connection: socket.socket) -> tuple[Any, SharedMemory] | None:
    """The next message with its memory; None when the other end is gone. Raises `OSError`."""
    content, descriptors, _, _ = socket.recv_fds(
        connection, _LARGEST_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC
    )
    if not content:
        return None
    return pickle.loads(content), SharedMemory(descriptors[0])
