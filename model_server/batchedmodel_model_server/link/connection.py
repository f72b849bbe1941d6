"""One connection of a sidecar: its batches, texts and orders, and the memory that it shares."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from batchedmodel_contract.generation.frames import read_cancel, read_configure, read_submit
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link.batches import read_batch, write_failure, write_reply
from batchedmodel_contract.link.connection import LinkConnection
from batchedmodel_contract.link.kinds import TO_SERVER, Kind
from batchedmodel_contract.link.model_frames import (
    Order,
    read_engine,
    read_order,
    write_answer,
)
from batchedmodel_contract.link.region import mapped
from batchedmodel_model_server.errors import NotReady, Overloaded, UnknownModel
from batchedmodel_model_server.lifecycle.service import MAX_IN_FLIGHT, ModelService
from batchedmodel_model_server.link.announcements import Announcements
from batchedmodel_model_server.link.orders import CANCELLED, carried_out, failure, refused
from batchedmodel_model_server.tasks import begun

MAX_UNREAD_BYTES: Final = 4 << 20
"""Of small frames: what 64 texts are sent in a minute of 50 steps a second."""
MAX_WAITING_FRAMES: Final = 1024
"""Behind a large one that the sidecar does not take."""
_MAX_CHANGES: Final = 16
_log = logging.getLogger(__name__)


def shared_memory(descriptor: int) -> memoryview | None:
    """The memory for rows, behind this descriptor.

    None where it cannot be had, as where this process may open no more files: all is sent then.
    """
    try:
        return memoryview(mapped(descriptor, writable=False))
    except (InvalidInput, OSError) as error:
        _log.warning("no memory is shared with a sidecar: %s", error)
        return None


class SidecarConnection:
    """Handles the frames of one sidecar, until its connection ends."""

    def __init__(self, service: ModelService, memory: memoryview | None) -> None:
        self.link: Final = LinkConnection(self, TO_SERVER)
        self.ended: Final = asyncio.Event()
        self._service: Final = service
        self._memory = memory
        self._announcements: Final = Announcements(service, self._send)
        self._batches: Final[dict[int, asyncio.Task[None]]] = {}
        """Those that may still be cancelled, by the ids of their frames."""
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        """Of batches and orders that have no answer."""
        self._changes = 0
        """Loads and unloads under way."""
        self._frame_ended: Final = asyncio.Event()

    def begin(self) -> None:
        """Send what the sidecar must know first."""
        if not self.ended.is_set():
            self._announcements.begin()

    def frame(self, kind: int, frame_id: int, content: memoryview) -> None:
        """Handle one frame; raises `InvalidInput` for one that no sidecar sends."""
        match kind:
            case Kind.BATCH:
                self._take_batch(frame_id, content)
            case Kind.CANCEL:
                number, cancel = read_cancel(frame_id, content)
                if number:
                    self._announcements.take(number, cancel)
                elif (batch := self._batches.get(frame_id)) is not None:
                    batch.cancel()
            case Kind.SUBMIT:
                self._announcements.take(*read_submit(frame_id, content))
            case Kind.CONFIGURE:
                self._announcements.take(frame_id, read_configure(content))
            case Kind.ORDER:
                self._take_order(frame_id, *read_order(content))
            case Kind.RELEASE:
                with suppress(NotReady, UnknownModel):
                    self._service.of(read_engine(content)).release()
        self._frame_ended.set()

    def disconnected(self, reason: str) -> None:
        """Forget what the sidecar asked for."""
        if reason:
            _log.warning("the connection of a sidecar has ended: %s", reason)
        self._announcements.end()
        # Not once the collector comes: it may be gigabytes.
        self._memory = None
        for task in self._tasks:
            task.cancel()
        self.ended.set()
        self._frame_ended.set()

    async def frames_whole(self) -> None:
        """Return once frames that have come in part are whole and handled."""
        while self.link.is_within_frame and not self.ended.is_set():
            self._frame_ended.clear()
            await self._frame_ended.wait()

    async def close(self) -> None:
        """End the connection behind all answers, once the sidecar has read them."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        self.link.close()
        await self.ended.wait()

    def _take_batch(self, frame_id: int, content: memoryview) -> None:
        if frame_id in self._batches:
            raise InvalidInput("id", "is that of another batch", frame_id)
        task = self._batches[frame_id] = begun(self._answer(frame_id, content), self._tasks)

        def settle(task: asyncio.Task[None]) -> None:
            self._batches.pop(frame_id, None)
            if task.cancelled():
                self._send(Kind.FAILED, frame_id, write_failure(CANCELLED))

        task.add_done_callback(settle)

    async def _answer(self, frame_id: int, content: memoryview) -> None:
        try:
            if self.link.waiting_frames >= MAX_IN_FLIGHT:
                raise Overloaded(f"{MAX_IN_FLIGHT} answers wait to be read")
            batch = read_batch(content, self._memory)
            with self._service.admitted(batch.version) as runner:
                reply = await runner.run(batch)
            self._send(Kind.REPLY, frame_id, write_reply(reply))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._send(Kind.FAILED, frame_id, write_failure(failure(error, "a batch")))

    def _take_order(self, frame_id: int, order: Order, body: bytes) -> None:
        changes = order is not Order.INDEX  # which takes no time
        if changes and self._changes >= _MAX_CHANGES:
            error = Overloaded(f"{_MAX_CHANGES} loads and unloads are under way already")
            self._send(Kind.ANSWER, frame_id, write_answer(refused(error, order)))
            return
        self._changes += changes
        begun(self._carry_out(frame_id, order, body), self._tasks)

    async def _carry_out(self, frame_id: int, order: Order, body: bytes) -> None:
        answer = await carried_out(self._service, order, body)
        self._changes -= order is not Order.INDEX
        self._send(Kind.ANSWER, frame_id, write_answer(answer))

    def _send(self, kind: Kind, frame_id: int, parts: Sequence[Buffer]) -> None:
        self.link.send(kind, frame_id, parts)
        unread, waiting = self.link.unsent_bytes, self.link.waiting_frames
        if unread > MAX_UNREAD_BYTES or waiting > MAX_WAITING_FRAMES:
            self.link.abort(f"it leaves {unread} bytes and {waiting} frames unread")
