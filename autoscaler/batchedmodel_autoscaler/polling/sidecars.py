"""Asks sidecars for their stats over HTTP: the only module that knows how they are reached."""

import asyncio
import json
from typing import Final

from batchedmodel_autoscaler.errors import SidecarSilent, SomebodyElse
from batchedmodel_autoscaler.polling.connection import Connection
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.kubernetes.names import ADMIN_PORT
from batchedmodel_contract.processes.admin_answer import Head, question
from batchedmodel_contract.processes.sidecar_api import STATS, Whom
from batchedmodel_contract.processes.stats import SidecarStats, stats_from_mapping

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
