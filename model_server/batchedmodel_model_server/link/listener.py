"""The socket that sidecars connect to: accepts them, agrees on a version, takes shared memory."""

import asyncio
import contextlib
import logging
import os
import socket
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link.connection import LinkConnection
from batchedmodel_contract.link.hello import (
    HELLO_BYTES,
    Hello,
    common_version,
    read_hello,
    write_hello,
)
from batchedmodel_model_server.lifecycle.service import ModelService
from batchedmodel_model_server.link.connection import (
    DESCRIPTORS,
    SharedMemory,
    SidecarConnection,
    shared_memory,
)

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
        self._arriving: dict[socket.socket, asyncio.TimerHandle] = {}
        """Connections that have sent no hello, with the end of their time."""
        self._connections: dict[SidecarConnection, None] = {}
        """The oldest first."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        """When connections are accepted again, where the last could not be."""

    def open(self) -> None:
        """Take connections."""
        self._listening.listen(_BACKLOG)
        self._loop.add_reader(self._listening, self._accept)

    async def frames_whole(self) -> None:
        """Return once all frames that have come in part are whole and handled, or are late."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MAX_ARRIVAL_SECONDS):
                await asyncio.gather(*[one.frames_whole() for one in self._connections])

    async def close(self, seconds: float) -> None:
        """Take no more, and end each connection behind its answers, which have so long."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for connection in list(self._arriving):
            self._no_longer_arrives(connection)
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*[one.close() for one in self._connections])
        for one in self._connections:
            one.link.abort()

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:
            # The peer is gone, or no descriptor is left: to look at once again would not help.
            self._loop.remove_reader(self._listening)
            self._again = self._loop.call_later(
                _PAUSE_SECONDS, self._loop.add_reader, self._listening, self._accept
            )
            return
        if len(self._arriving) >= MAX_CONNECTIONS:
            self._late(next(iter(self._arriving)))
        connection.setblocking(False)
        self._arriving[connection] = self._loop.call_later(_HELLO_SECONDS, self._late, connection)
        self._loop.add_reader(connection, self._arrived, connection)

    def _late(self, connection: socket.socket) -> None:
        self._no_longer_arrives(connection)
        connection.close()

    def _no_longer_arrives(self, connection: socket.socket) -> None:
        self._arriving.pop(connection).cancel()
        self._loop.remove_reader(connection)

    def _arrived(self, connection: socket.socket) -> None:
        """A hello, or the end of the connection."""
        try:
            message, descriptors, _, _ = socket.recv_fds(
                connection, HELLO_BYTES, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            message, descriptors = b"", []
        self._no_longer_arrives(connection)
        try:
            memory = _agreed(connection, message, descriptors)
        except (InvalidInput, OSError) as error:
            if message:
                _log.warning("a connection is refused: %s", error)
            connection.close()
            return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if len(self._connections) >= MAX_CONNECTIONS:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.link.abort(f"{MAX_CONNECTIONS} newer ones are open")
        sidecar = SidecarConnection(self._service, memory)
        self._connections[sidecar] = None
        task = self._loop.create_task(self._serve(connection, sidecar))
        # The loop itself refers to tasks but weakly.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket, sidecar: SidecarConnection) -> None:
        def link() -> LinkConnection:
            return sidecar.link

        try:
            await self._loop.connect_accepted_socket(link, connection)
            sidecar.begin()
            await sidecar.ended.wait()
        finally:
            self._connections.pop(sidecar, None)


def _agreed(connection: socket.socket, message: bytes, descriptors: list[int]) -> SharedMemory:
    """Answer a hello; raises `InvalidInput` and `OSError` where nothing can follow it."""
    theirs = read_hello(message)
    version = common_version(theirs)
    memory = _mapped(descriptors) if version and descriptors else SharedMemory()
    connection.send(write_hello(Hello(version, version, memory.rows is not None)))
    if not version:
        rule = "names no version of the frames that this server speaks"
        raise InvalidInput("hello", rule, f"{theirs.min_version} to {theirs.max_version}")
    return memory


def _mapped(descriptors: list[int]) -> SharedMemory:
    """The memory of a sidecar; none where it cannot be had, and then everything is sent."""
    try:
        return shared_memory(descriptors)
    except (InvalidInput, OSError) as error:
        _log.warning("no memory is shared with a sidecar: %s", error)
        return SharedMemory()
