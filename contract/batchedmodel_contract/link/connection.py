"""One end of the link: frames in, frames out, over one socket."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link.pieces import PIECE_BYTES, FrameReader, FrameWriter

UNREADABLE: Final = "what the other end sent cannot be read"
"""What the reason begins with when a connection ends because of it."""


class FrameHandler(Protocol):
    """Handles what arrives on one connection."""

    def frame(self, kind: int, frame_id: int, content: memoryview) -> None:
        """Handle one frame. Raises `InvalidInput` where it cannot be read: the connection ends."""
        ...

    def disconnected(self, reason: str) -> None:
        """The connection has ended; called once. `reason` is empty where the peer ended it."""
        ...


class LinkConnection(asyncio.BufferedProtocol):
    """Sends and receives the frames of one connection."""

    __slots__ = (
        "_closing", "_handler", "_paused", "_reader", "_reason", "_transport", "_writer",
    )  # fmt: skip

    def __init__(self, handler: FrameHandler, max_bytes: Mapping[int, int]) -> None:
        """`max_bytes`: largest content of each kind of frame that may arrive."""
        self._handler: Final = handler
        self._reader = FrameReader(max_bytes)
        self._writer = FrameWriter()
        self._transport: Any = None
        self._paused = False
        self._closing = False
        self._reason = ""

    @property
    def is_open(self) -> bool:
        """Whether frames are sent: it is connected, and not about to end."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unsent_bytes(self) -> int:
        """Bytes of small frames and pieces that the peer has not taken."""
        return 0 if self._transport is None else int(self._transport.get_write_buffer_size())

    @property
    def waiting_frames(self) -> int:
        """How many frames wait for the peer to take what is in front of them."""
        return self._writer.waiting_frames

    @property
    def is_within_frame(self) -> bool:
        """Whether a frame has come in part."""
        return self._reader.is_within_frame

    def send(self, kind: int, frame_id: int, parts: Sequence[Buffer] = (b"",)) -> None:
        """Send a frame, whose parts must stay as they are; nothing unless it is open.

        A small frame goes in front of the rest of large ones that are on their way.
        """
        if not self.is_open:
            return
        piece = self._writer.add(kind, frame_id, parts)
        if piece is not None:
            self._transport.write(piece[0])
        else:
            self._send_pieces()

    def close(self) -> None:
        """End the connection behind all frames that were sent."""
        self._closing = True
        if self._transport is not None and not self._writer.waiting_frames:
            self._transport.close()

    def abort(self, reason: str = "") -> None:
        """End the connection at once."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._transport = transport
        # One piece waits in this process, and what the socket's own buffer holds.
        self._transport.set_write_buffer_limits(high=PIECE_BYTES, low=PIECE_BYTES // 2)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        # Not once the collector comes: frames that came or were sent in part may be gigabytes.
        self._reader, self._writer = FrameReader({}), FrameWriter()
        self._handler.disconnected(self._reason)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Memory for the next bytes."""
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
        try:
            for kind, frame_id, content in self._reader.received(nbytes):
                if self._transport.is_closing():
                    return
                self._handler.frame(kind, frame_id, content)
        except InvalidInput as error:
            self.abort(f"{UNREADABLE}: {error}")

    def pause_writing(self) -> None:
        """The peer takes less than is written: no further piece of a large frame for now."""
        self._paused = True

    def resume_writing(self) -> None:
        """It has caught up."""
        self._paused = False
        self._send_pieces()

    def _send_pieces(self) -> None:
        while not self._paused and (piece := self._writer.next_piece()) is not None:
            if self._transport.is_closing():
                return  # the peer went away over the last one
            self._transport.writelines(piece)
        if self._closing and not self._writer.waiting_frames:
            self._transport.close()
