"""A transport that is only pretended: what is written to it can be read, and its reader be slow."""

import asyncio
import re
import socket
from typing import Any, Final


class _Socket:
    """As much of a socket as is asked about."""

    family: Final = socket.AF_UNIX  # which has none of TCP's options

    def setsockopt(self, *option: int) -> None:
        """There is nothing to set."""


class Wire(asyncio.Transport):
    """One caller's side of a connection to a protocol."""

    def __init__(
        self, protocol: asyncio.Protocol | asyncio.BufferedProtocol, address: str | None = None
    ) -> None:
        """The caller comes at once, and reads what it is told until `stops_reading`."""
        super().__init__()
        self.written = bytearray()
        self.reading = True
        """Whether the protocol takes what the caller sends."""
        self.aborted = False
        self.gone = False
        self._protocol = protocol
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._unread = 0
        self._reads = True
        protocol.connection_made(self)

    def sends(self, *pieces: bytes) -> None:
        """The caller sends so much; held back, it would send no more."""
        for piece in pieces:
            assert self.reading, "the caller is held back"
            if not self._closing:
                self._deliver(piece)

    def _deliver(self, piece: bytes) -> None:
        while piece and isinstance(self._protocol, asyncio.BufferedProtocol):
            room = memoryview(self._protocol.get_buffer(-1))
            taken = min(len(room), len(piece))
            room[:taken] = piece[:taken]
            self._protocol.buffer_updated(taken)
            piece = piece[taken:]
        if piece:
            assert isinstance(self._protocol, asyncio.Protocol)
            self._protocol.data_received(piece)

    def stops_reading(self) -> None:
        """From now on what is written stays unread."""
        self._reads = False

    def reads(self) -> None:
        """The caller reads all."""
        self._reads = True
        paused, self._unread = self._unread > 0, 0
        if self._closing:
            self._lose()
        elif paused:
            self._protocol.resume_writing()

    def reads_some(self) -> None:
        """The caller reads one byte."""
        self._unread -= 1

    def leaves(self) -> None:
        """The caller is gone."""
        self.abort()

    @property
    def answers(self) -> list[tuple[int, bytes]]:
        """Status and body of each answer; all that was written must be answers."""
        found, rest = [], bytes(self.written)
        while rest:
            head, _, behind = rest.partition(b"\r\n\r\n")
            status = re.match(rb"HTTP/1\.[01] (\d{3}) ", head)
            length = re.search(rb"(?i)\r\nContent-Length: (\d+)", head)
            assert status, rest
            assert length, rest
            size = int(length[1])
            assert len(behind) >= size, "an answer that is not whole"
            found.append((int(status[1]), behind[:size]))
            rest = behind[size:]
        return found

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Its socket and its address."""
        if name == "peername" and self._address is not None:
            return (self._address, 1)
        return _Socket() if name == "socket" else default

    def is_closing(self) -> bool:
        """Whether it was closed by this side, or the caller left."""
        return self._closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Lost once it is closed, as on a real one."""
        if self._closing:
            return
        self.written += data
        if not self._reads:
            before, self._unread = self._unread, self._unread + len(data)
            if not before and self._unread:
                self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        """All of it. Once it is closed that is an error, as on uvloop's."""
        if self._closing:
            raise RuntimeError("the handler is closed")
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        """Bytes that the caller has not read."""
        return self._unread

    def pause_reading(self) -> None:
        """Hold the caller back."""
        self.reading = False

    def resume_reading(self) -> None:
        """Let it go on."""
        self.reading = True

    def close(self) -> None:
        """Hang up once everything is read."""
        if not self._closing:
            self._closing = True
            if not self._unread:
                self._lose()

    def abort(self) -> None:
        """Hang up now."""
        self._closing = self.aborted = True
        self._lose()

    def _lose(self) -> None:
        if not self.gone:
            self.gone = True
            self._loop.call_soon(self._protocol.connection_lost, None)
