"""Memory that the sidecar shares for the large rows of its batches, taken over a socket of its own.

Asked by whoever reads batches. A region is known as long as the connection lasts over which its
descriptor came, so nothing is left of a sidecar that has died.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.processes.shared_region import LONGEST_OFFER, TAKEN, mapped, read_offer
from batchedmodel_model_server.http import unix_socket

_MOST: Final = 8
"""Connections: a sidecar has one, and perhaps one more while it begins anew."""
_BACKLOG: Final = 16
_PAUSE_SECONDS: Final = 1.0
_OFFER_SECONDS: Final = 10.0
_log = logging.getLogger(__name__)


class SharedRegions:
    """The regions that are known now. Used by one loop."""

    def __init__(self, path: Path) -> None:
        """Offers are taken at this socket once `open` was called."""
        self._path = path
        self._known: dict[str, memoryview] = {}
        self.known: Final[Mapping[str, memoryview]] = MappingProxyType(self._known)
        """Their bytes by their names; whoever holds a view keeps its region."""
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
                connection, LONGEST_OFFER, 1, socket.MSG_CMSG_CLOEXEC
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
        if name in self._known:
            raise InvalidInput("region", "is known already", name)
        self._known[name] = memoryview(mapped(descriptors[0], writable=False))
        return name

    def _end(self, connection: socket.socket) -> None:
        self._loop.remove_reader(connection)
        self._known.pop(self._connections.pop(connection), None)
        with contextlib.suppress(OSError):
            connection.close()
