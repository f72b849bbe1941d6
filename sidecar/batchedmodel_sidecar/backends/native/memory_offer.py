"""Shares memory with our model server, for as long as the two of them live.

Used by the link. The server takes regions over a socket of its own. Where it cannot or will not,
large rows and answers travel in bodies, as all others do.
"""

import asyncio
import logging
import socket
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.processes.shared_region import TAKEN, offer, socket_path
from batchedmodel_sidecar.backends.native.answer_rooms import AnswerRooms
from batchedmodel_sidecar.body.shared_slots import Region, SharedSlots

logger: Final = logging.getLogger(__name__)

_SECONDS: Final = 5.0


class MemoryOffer:
    """The regions that are shared at present, and the connection on which that depends."""

    def __init__(self, model_socket: str, slots: SharedSlots, rooms: AnswerRooms) -> None:
        self._path = socket_path(model_socket)
        self._slots = slots
        self._rooms = rooms
        self._connection: socket.socket | None = None
        self._offering: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Share new regions, soon, unless some are shared already."""
        if self._connection is None and self._offering is None:
            self._offering = asyncio.get_running_loop().create_task(self._offered())
            self._offering.add_done_callback(self._is_over)

    def end(self) -> None:
        """Share nothing any more; what lies in the regions stays for whoever reads it."""
        self._slots.retire()
        self._rooms.retire()
        if self._offering is not None:
            self._offering.cancel()
            self._offering = None
        if self._connection is not None:
            asyncio.get_running_loop().remove_reader(self._connection)
            self._connection.close()
            self._connection = None

    def _is_over(self, task: asyncio.Task[None]) -> None:
        if self._offering is task:
            self._offering = None
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.info("no memory is shared with the model server: %s", error)

    async def _offered(self) -> None:
        """Raises `OSError`, `TimeoutError` or `InvalidInput` where nothing can be shared."""
        region = Region.of(self._slots.size)
        answers = Region.of(self._rooms.size, region.name)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_SECONDS):
                await loop.sock_connect(connection, self._path)
                descriptors = [region.descriptor, answers.descriptor]
                socket.send_fds(connection, [offer(region.name)], descriptors)
                answer = await loop.sock_recv(connection, len(TAKEN))
            if answer != TAKEN:
                raise InvalidInput("region", "is not taken")
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        # The server says nothing more on it, so it has ended it: batches must not name the region.
        loop.add_reader(connection, self.end)
        self._slots.use(region)
        self._rooms.use(answers)
        logger.info("large rows and answers lie in memory that the model server sees")
