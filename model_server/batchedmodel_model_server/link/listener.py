"""The socket that sidecars connect to: accepts them, agrees on a version, takes shared memory."""

import asyncio
import contextlib
import logging
import os
import socket
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link.hello import (
    HELLO_BYTES,
    Hello,
    common_version,
    read_hello,
    write_hello,
)
from batchedmodel_model_server.lifecycle.service import ModelService
from batchedmodel_model_server.link.connection import (
    SidecarConnection,
    shared_memory,
)
from batchedmodel_model_server.tasks import begun

MAX_CONNECTIONS: Final = 8
"""A sidecar has one, and perhaps one more while it begins anew. One more ends the oldest, so that
whatever holds connections keeps no sidecar out that was started again."""
_BACKLOG: Final = 64
"""A full queue of a Unix socket refuses callers instead of letting them wait."""
_PAUSE_SECONDS: Final = 1.0
_HELLO_SECONDS: Final = 10.0
_MAX_ARRIVAL_SECONDS: Final = 30.0
"""For the rest of frames that have come in part: a gigabyte takes a second over this socket."""
_log = logging.getLogger(__name__)


class Listener:
    """Keeps the connections of sidecars. Used by one loop."""

    def __init__(self, service: ModelService, listening: socket.socket) -> None:
        """`listening`: a bound socket, from which `open` takes connections."""
        self._service = service
        self._listening = listening
        self._loop = asyncio.get_running_loop()
        self._accepting: asyncio.Task[None]
        self._arriving: dict[asyncio.Task[None], None] = {}
        """Each waits for the hello of one connection; the oldest first."""
        self._connections: dict[SidecarConnection, None] = {}
        """The oldest first."""
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Take connections."""
        self._listening.listen(_BACKLOG)
        self._accepting = begun(self._accept(), self._tasks)

    async def frames_whole(self) -> None:
        """Return once all frames that have come in part are whole and handled, or are late."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MAX_ARRIVAL_SECONDS):
                await asyncio.gather(*[one.frames_whole() for one in self._connections])

    async def close(self, seconds: float) -> None:
        """Take no more, and end each connection behind its answers, which have so long."""
        ending = [self._accepting, *self._arriving]
        for task in ending:
            task.cancel()
        await asyncio.wait(ending)
        self._listening.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*[one.close() for one in self._connections])
        for one in self._connections:
            one.link.abort()

    async def _accept(self) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(self._listening)
            except OSError:
                # The peer is gone, or no descriptor is left: to try at once again would not help.
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if len(self._arriving) >= MAX_CONNECTIONS:
                oldest = next(iter(self._arriving))
                del self._arriving[oldest]
                oldest.cancel()
            task = self._loop.create_task(self._greet(connection))
            self._arriving[task] = None
            task.add_done_callback(lambda task: self._arriving.pop(task, None))
            await asyncio.sleep(0)  # a task that is cancelled before it begins closes nothing

    async def _greet(self, connection: socket.socket) -> None:
        """Wait for a hello, and begin with what sent it."""
        with contextlib.ExitStack() as refused:
            refused.callback(connection.close)
            try:
                await self._readable(connection)
                memory = _agreed(connection)
            except InvalidInput as error:
                _log.warning("a connection is refused: %s", error)
                return
            except OSError:
                return  # it is gone, or silent for too long
            refused.pop_all()
        if len(self._connections) >= MAX_CONNECTIONS:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.link.abort(f"{MAX_CONNECTIONS} newer ones are open")
        sidecar = SidecarConnection(self._service, memory)
        self._connections[sidecar] = None
        begun(self._serve(connection, sidecar), self._tasks)

    async def _readable(self, connection: socket.socket) -> None:
        """Return once something has come; raises `TimeoutError`."""
        came = asyncio.Event()
        self._loop.add_reader(connection, came.set)
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                await came.wait()
        finally:
            self._loop.remove_reader(connection)

    async def _serve(self, connection: socket.socket, sidecar: SidecarConnection) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: sidecar.link, connection)
            sidecar.begin()
            await sidecar.ended.wait()
        finally:
            self._connections.pop(sidecar, None)


def _agreed(connection: socket.socket) -> memoryview | None:
    """Answer a hello; raises `InvalidInput` and `OSError` where nothing can follow it."""
    message, descriptors, _, _ = socket.recv_fds(
        connection, HELLO_BYTES, 1, socket.MSG_CMSG_CLOEXEC
    )
    try:
        if not message:
            raise ConnectionResetError("it has ended before its hello")
        theirs = read_hello(message)
        version = common_version(theirs)
        memory = shared_memory(descriptors[0]) if version and descriptors else None
        connection.send(write_hello(Hello(version, version, memory is not None)))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    if not version:
        rule = "names no version of the frames that this server speaks"
        raise InvalidInput("hello", rule, f"{theirs.min_version} to {theirs.max_version}")
    return memory
