"""One connection to a sidecar: a question, its answer, and nothing that was not asked for.

Clients of libraries go on reading from connections that they keep, so that one pod could fill the
memory with answers to nothing.
"""

import asyncio
from typing import Final

from batchedmodel_contract.processes.admin_answer import END_OF_HEAD, LARGEST_HEAD, Head, read_head

LARGEST_ANSWER: Final = 16_384
"""Bytes of a body. A sidecar's have less than two thousand."""


class Connection(asyncio.Protocol):
    """Used inside one event loop, by one question at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[Head, bytes]] | None = None
        """Of the question that waits for it."""
        self._got = bytearray()
        self._head: Head | None = None

    @property
    def is_open(self) -> bool:
        """Whether a question can be asked."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, question: bytes) -> tuple[Head, bytes]:
        """The answer's head and body.

        Raises `ConnectionError` when the connection ends before the answer does, and `ValueError`
        when the answer is none of a sidecar's. Call `abort` after both, and after a cancellation.
        """
        if self._transport is None:
            raise ConnectionResetError("the connection has ended")
        self._got.clear()
        self._head = None
        self._answer = asyncio.get_running_loop().create_future()
        try:
            self._transport.write(question)
            return await self._answer
        finally:
            self._answer = None

    def abort(self) -> None:
        """End it now."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport), "TCP has transports of streams"
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._transport = None
        if self._answer is None or self._answer.done():
            return
        if exc is None and self._head is not None and self._head.length is None:
            self._answer.set_result((self._head, bytes(self._got)))
        else:
            self._answer.set_exception(ConnectionResetError("it has ended before its answer"))

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._answer is None or self._answer.done():
            self.abort()
            return
        self._got += data
        try:
            self._read(self._answer)
        except ValueError as error:
            self._answer.set_exception(error)
            self.abort()

    def _read(self, answer: asyncio.Future[tuple[Head, bytes]]) -> None:
        if self._head is None:
            end = self._got.find(END_OF_HEAD, 0, LARGEST_HEAD)
            if end < 0 and len(self._got) < LARGEST_HEAD:
                return
            end += len(END_OF_HEAD)
            self._head = read_head(bytes(self._got[:end])) if end >= len(END_OF_HEAD) else None
            if self._head is None:
                raise ValueError("the head is none of a sidecar's")
            del self._got[:end]
        length = self._head.length
        if max(length or 0, len(self._got)) > LARGEST_ANSWER:
            raise ValueError(f"more than {LARGEST_ANSWER} bytes")
        if length is not None and len(self._got) > length:
            raise ValueError("more than it says")
        if length == len(self._got):
            answer.set_result((self._head, bytes(self._got)))
