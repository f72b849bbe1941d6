"""Memory that the sidecar shares for large rows and answers, taken over a socket of its own.

Asked by whoever reads batches. A region is known as long as the connection lasts over which its
descriptor came, so nothing is left of a sidecar that has died.
"""

import asyncio
import contextlib
import logging
import os
import socket
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from batchedmodel_contract.inference.batch_wire import (
    AnswerRoom,
)
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.processes.shared_region import (
    LEAST,
    LONGEST_OFFER,
    TAKEN,
    lock,
    mapped,
    read_offer,
    unlock,
)
from batchedmodel_model_server.http import unix_socket

_MOST: Final = 8
"""Connections: a sidecar has one, and perhaps one more while it begins anew."""
_BACKLOG: Final = 16
_PAUSE_SECONDS: Final = 1.0
_OFFER_SECONDS: Final = 10.0
_FILES: Final = 2
"""For rows, and for answers; a sidecar may share none for answers."""
_ALIGNMENT: Final = 8
_log = logging.getLogger(__name__)


class AnswerMemory:
    """The memory of one region for answers, and the file with the locks of its rooms."""

    def __init__(self, descriptor: int) -> None:
        """Raises `OSError` and `InvalidInput`, as `mapped` does."""
        self.view: Final = memoryview(mapped(descriptor, writable=True))
        self.descriptor: Final = os.dup(descriptor)
        weakref.finalize(self, os.close, self.descriptor).atexit = False


class Regions(NamedTuple):
    """Shared memory by the names of its regions; whoever holds a view keeps its region."""

    rows: Mapping[str, memoryview]
    answers: Mapping[str, AnswerMemory]

    def placing(self, room: AnswerRoom | None) -> "Placing | None":
        """What puts items of an answer in the room that its request has; None without any.

        Raises `InvalidInput` for room that the region does not have.
        """
        memory = None if room is None else self.answers.get(room.region)
        if room is None or memory is None:
            return None
        if room.start + room.size > len(memory.view):
            rule = f"leads out of the shared memory's {len(memory.view)} bytes"
            raise InvalidInput("parameters.answer_start", rule, room.start)
        return Placing(memory, room)


class Placing:
    """Puts large items one behind the other where the sidecar sees them, in a `with` block."""

    def __init__(self, memory: AnswerMemory, room: AnswerRoom) -> None:
        self._memory = memory
        self._number = room.number
        self._room = np.frombuffer(memory.view, np.uint8, room.size, room.start)
        self._filled = 0
        self._locked = False

    def __enter__(self) -> "Placing | None":
        """None where the sidecar waits for this answer no more: others may lie there."""
        self._locked = lock(self._memory.descriptor, self._number)
        return self if self._locked else None

    def __exit__(self, *error: object) -> None:
        if self._locked:
            unlock(self._memory.descriptor, self._number)

    def __call__(self, item: Buffer) -> int | None:
        """Where in the room the item lies now; None where it must be sent."""
        start, end = self._filled, self._filled + len(item)
        if len(item) < LEAST or end > len(self._room):
            return None
        # Other threads go on meanwhile, which they do not while memoryviews are copied.
        np.copyto(self._room[start:end], np.frombuffer(item, np.uint8))
        # The sidecar views it as numbers.
        self._filled = -(-end // _ALIGNMENT) * _ALIGNMENT
        return start


class SharedRegions:
    """The regions that are known now. Used by one loop."""

    def __init__(self, path: Path) -> None:
        """Offers are taken at this socket once `open` was called."""
        self._path = path
        self._rows: dict[str, memoryview] = {}
        self._answers: dict[str, AnswerMemory] = {}
        self.known: Final = Regions(self._rows, self._answers)
        self._loop = asyncio.get_running_loop()
        self._listening: socket.socket | None = None
        self._connections: dict[socket.socket, str] = {}
        """With the name of the region that came over each; empty before it came."""
        self._bound: tuple[int, int, int] | None = None
        self._again: asyncio.TimerHandle | None = None
        """When connections are taken again, where the last could not be."""

    def open(self) -> None:
        """Take offers. Where that cannot be, batches come whole in their bodies, as without it."""
        try:
            self._listening = unix_socket.bind(self._path)
            self._bound = unix_socket.identity(self._path)
        except OSError as error:
            _log.warning("no memory can be shared at %s: %s", self._path, error.strerror or error)
            return
        self._listening.listen(_BACKLOG)
        self._loop.add_reader(self._listening, self._accept, self._listening)

    def close(self) -> None:
        """Take no more, and forget what came."""
        if self._again is not None:
            self._again.cancel()
        if self._listening is not None and self._bound is not None:
            self._loop.remove_reader(self._listening)
            self._listening.close()
            unix_socket.unlink(self._path, self._bound)
        for connection in list(self._connections):
            self._end(connection)

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except OSError:
            # Nobody is there any more, or no descriptor is: to look at once again would not help.
            self._loop.remove_reader(listening)
            self._again = self._loop.call_later(
                _PAUSE_SECONDS, self._loop.add_reader, listening, self._accept, listening
            )
            return
        if len(self._connections) >= _MOST:
            connection.close()
            return
        connection.setblocking(False)
        self._connections[connection] = ""
        self._loop.add_reader(connection, self._arrived, connection)
        self._loop.call_later(_OFFER_SECONDS, self._is_late, connection)

    def _is_late(self, connection: socket.socket) -> None:
        if self._connections.get(connection) == "":
            self._end(connection)

    def _arrived(self, connection: socket.socket) -> None:
        """An offer, or the end of a connection."""
        try:
            message, descriptors, _, _ = socket.recv_fds(
                connection, LONGEST_OFFER, _FILES, socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            message, descriptors = b"", []
        try:
            if message and not self._connections[connection]:
                self._connections[connection] = self._taken(message, descriptors)
                connection.send(TAKEN)
                return
        except (InvalidInput, OSError) as error:
            _log.warning("shared memory is refused: %s", error)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._end(connection)

    def _taken(self, message: bytes, descriptors: list[int]) -> str:
        """The name of the region that was offered; raises `InvalidInput` or `OSError`."""
        name = read_offer(message)
        if not descriptors:
            raise InvalidInput("region", "came without its memory", name)
        if name in self._rows:
            raise InvalidInput("region", "is known already", name)
        rows = memoryview(mapped(descriptors[0], writable=False))
        if len(descriptors) > 1:
            self._answers[name] = AnswerMemory(descriptors[1])
        self._rows[name] = rows
        return name

    def _end(self, connection: socket.socket) -> None:
        self._loop.remove_reader(connection)
        name = self._connections.pop(connection)
        self._rows.pop(name, None)
        self._answers.pop(name, None)
        with contextlib.suppress(OSError):
            connection.close()
