"""Asks sidecars for their stats over HTTP, by connections that read nothing unasked.

Clients of libraries go on reading from connections that they keep, so that one pod could fill the
memory with answers to nothing.
"""

import asyncio
import json
from typing import Final

from batchedmodel_autoscaler.errors import SidecarSilent, SomebodyElse
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.kubernetes.names import ADMIN_PORT
from batchedmodel_contract.processes.admin_answer import (
    END_OF_HEAD,
    LARGEST_HEAD,
    Head,
    question,
    read_head,
)
from batchedmodel_contract.processes.sidecar_api import STATS, Whom
from batchedmodel_contract.processes.stats import SidecarStats, stats_from_mapping

LARGEST_ANSWER: Final = 16_384
"""Bytes of a body. A sidecar's have less than two thousand."""
POLL_TIMEOUT_SECONDS: Final = 1.0
"""For all of an exchange, from the connection to the last byte."""
KEPT_SECONDS: Final = 45.0
"""How long a connection waits for the next question: three times the longest pause that can be set.
It is shorter than a sidecar waits, which would else close a connection just as it is used."""
_OWN_DESCRIPTORS: Final = 512
"""For HPAs, watches, probes, and the questions of which no connection is kept."""
_MOST_KEPT: Final = 10_000
"""The connections that there is memory for beside all else: 9 KB each."""


def most_kept(descriptors: int) -> int:
    """How many connections a process may keep that may have so many descriptors."""
    return max(0, min(_MOST_KEPT, descriptors - _OWN_DESCRIPTORS))


class Connection(asyncio.Protocol):
    """One to a sidecar; used inside one event loop, by one question at a time."""

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


class Sidecars:
    """A client of all sidecars; used inside one event loop.

    Connections are kept, since opening one costs nearly as much as the question. A pod that got the
    address of another resets the other's connection, which it does not know, and is then asked
    through a new one. A question that was given up ends its connection, so that a late answer is
    not taken for that to the next question.
    """

    def __init__(self, most_kept: int, *, kept_seconds: float = KEPT_SECONDS) -> None:
        """At most `most_kept` connections are kept, and those of questions under way besides."""
        self._most_kept = most_kept
        self._kept_seconds = kept_seconds
        self._idle: dict[str, tuple[Connection, asyncio.TimerHandle]] = {}
        """By address, each with the timer that closes it when it is not used for long."""

    async def stats(self, address: str, whom: Whom) -> SidecarStats:
        """What the pod at an IP address tells; raises `SidecarSilent`, also when it is another."""
        try:
            async with asyncio.timeout(POLL_TIMEOUT_SECONDS):
                head, body = await self._asked(address)
            if head.status != 200:
                raise SidecarSilent(f"{address} answers with status {head.status}")
            if other := whom.other(head.header):
                raise SomebodyElse(f"{address} is {other}, and not {whom.pod} of {whom.model}")
            return stats_from_mapping(json.loads(body))
        except OSError as error:  # TimeoutError is one too
            raise SidecarSilent(f"{address}: {error!r}") from error
        except (InvalidInput, ValueError, RecursionError) as error:
            raise SidecarSilent(f"{address} answers nonsense: {error}") from error

    async def close(self) -> None:
        """Drop all connections."""
        for address in list(self._idle):
            self._drop(address)

    async def _asked(self, address: str) -> tuple[Head, bytes]:
        kept = self._taken(address)
        stays = len(self._idle) < self._most_kept
        asked = question(STATS, address, ADMIN_PORT, stays=stays)
        if kept is not None:
            try:
                return await self._exchange(kept, address, asked, stays=stays)
            except ConnectionError:
                # Its pod has gone, or did not keep it.
                pass
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, address, ADMIN_PORT)
        return await self._exchange(connection, address, asked, stays=stays)

    async def _exchange(
        self, connection: Connection, address: str, asked: bytes, *, stays: bool
    ) -> tuple[Head, bytes]:
        head = None
        try:
            head, body = await connection.ask(asked)
            return head, body
        finally:
            if stays and head is not None and head.stays:
                self._keep(address, connection)
            else:
                connection.abort()

    def _keep(self, address: str, connection: Connection) -> None:
        self._drop(address)
        loop = asyncio.get_running_loop()
        self._idle[address] = (
            connection,
            loop.call_later(self._kept_seconds, self._drop, address),
        )

    def _taken(self, address: str) -> Connection | None:
        connection, closing = self._idle.pop(address, (None, None))
        if closing is not None:
            closing.cancel()
        return connection if connection is not None and connection.is_open else None

    def _drop(self, address: str) -> None:
        connection = self._taken(address)
        if connection is not None:
            connection.abort()
