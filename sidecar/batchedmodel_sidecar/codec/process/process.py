"""One helper process: started, told, asked and killed. The client decides when."""

import asyncio
import contextlib
import logging
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
            socket.send_fds(self._socket, [pickle.dumps(message)], [memory.descriptor])
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


def received(connection: socket.socket) -> tuple[Any, SharedMemory] | None:
    """The next message with its memory; None when the other end is gone. Raises `OSError`."""
    content, descriptors, _, _ = socket.recv_fds(
        connection, _LARGEST_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC
    )
    if not content:
        return None
    return pickle.loads(content), SharedMemory(descriptors[0])
