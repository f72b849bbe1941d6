"""The connections of the data port: of bounded number, age and idleness.

A pooled client keeps its connections for ever and would never reach a pod that was added later. So
a connection that has reached its age is closed behind its next answer. When nearly as many are open
as may be, the address that holds most of them loses its idle ones.
"""

import asyncio
import contextlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from batchedmodel_contract.manifest.tenants import address_group
from batchedmodel_http.connection import Answers, Connection, HeadCache
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.http.body_reader import UnreadAnswers
from batchedmodel_sidecar.http.request import RequestHead

_SPREAD: Final = 0.2
_IDLE_SECONDS: Final = 75.0
_REFUSED_IDLE_SECONDS: Final = 1.0
"""While calls are refused. On one that was used just now a request may be on its way."""
_NEARLY_ALL: Final = 0.9
"""Above this share of connections each new one ends an idle one."""
_LOOKED_AT: Final = 1000
"""An idle connection is looked for among so many of an address."""


@dataclass(slots=True, kw_only=True)
class _Term:
    """When a connection should end, at the latest and for want of use."""

    retires_at: float
    look: asyncio.TimerHandle
    behind: Hold | None = None
    """Memory for what the caller sent of requests that wait or are not whole."""
    unread: float = math.inf
    """Bytes of answers that were unread when the connection was last found idle."""


class Front(Answers[RequestHead], Protocol):
    """Who answers what comes on the connections."""

    @property
    def closing(self) -> bool:
        """Whether connections should end behind their answers."""
        ...

    @property
    def refusing(self) -> bool:
        """Whether a call that comes now is refused."""
        ...


class Connections:
    """Bounds the connections in number, and ends each in time."""

    def __init__(
        self,
        front: Front,
        *,
        unread: UnreadAnswers,
        hold: Callable[[str], Hold],
        mean_age: float,
        at_most: int,
    ) -> None:
        """Needs a running loop. `mean_age` is in seconds; `hold` charges memory to an address."""
        self._loop = asyncio.get_running_loop()
        self._front = front
        self._unread = unread
        self._hold = hold
        self._of_address: dict[str, dict[Connection[RequestHead], None]] = {}
        """The connections of each address or network, in the order in which they came."""
        self._mean_age = mean_age
        self._at_most = at_most
        self._terms: dict[Connection[RequestHead], _Term] = {}
        self._closing = False
        """Whether each connection ends behind its present answer."""
        self._empty = asyncio.Event()
        self._empty.set()
        self._heads = HeadCache(self._loop, RequestHead)

    def open(self) -> Connection[RequestHead]:
        """The connection of a caller that comes."""
        return Connection(self, self._front, self._heads, self._loop)

    def end_idle(self) -> None:
        """Calls are refused from now on: close idle connections, each in its time.

        The next call of their caller then goes to another pod.
        """
        for connection, term in list(self._terms.items()):
            term.look.cancel()
            self._look_for_life(connection)

    async def close(self, seconds: float) -> None:
        """Hang up behind the answers that are under way, which have so long."""
        self._closing = True
        for connection in self._terms:
            if not connection.at_work:
                connection.transport.close()
        await self._all_left(seconds)
        for connection in self._terms:
            connection.transport.abort()
        await self._all_left(seconds)

    async def _all_left(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()

    def entered(self, connection: Connection[RequestHead]) -> bool:
        """A caller has come, and has an age; False when there are too many."""
        group = address_group(connection.caller)
        if len(self._terms) >= self._at_most * _NEARLY_ALL:
            self._end_one_of_many(group)
        if len(self._terms) >= self._at_most:
            return False
        self._of_address.setdefault(group, {})[connection] = None
        self._empty.clear()
        age = self._mean_age * random.uniform(1 - _SPREAD, 1 + _SPREAD)
        self._terms[connection] = _Term(
            retires_at=self._loop.time() + age,
            look=self._loop.call_later(min(age, self._patience()), self._look_for_life, connection),
        )
        return True

    def left(self, connection: Connection[RequestHead]) -> None:
        """Forget a caller."""
        term = self._terms.pop(connection, None)
        if term is not None:
            term.look.cancel()
            group = address_group(connection.caller)
            del self._of_address[group][connection]
            if not self._of_address[group]:
                del self._of_address[group]
            self._unread.forget(connection.transport)
            if term.behind is not None:
                term.behind.become(0)
        if not self._terms:
            self._empty.set()

    def pipelined(self, connection: Connection[RequestHead], size: int) -> bool:
        """So many bytes are kept of requests that wait or are not whole; False: they do not fit."""
        term = self._terms.get(connection)
        if term is None:
            return True
        if term.behind is None:
            term.behind = self._hold(connection.caller)
        fits = term.behind.become(size)
        if not (size and fits):
            term.behind.become(0)
            term.behind = None
        return fits

    def unread(self, connection: Connection[RequestHead]) -> None:
        """A large answer was written, or its caller reads slowly."""
        self._unread.watch(connection.transport, address_group(connection.caller))

    def ends(self, connection: Connection[RequestHead]) -> bool:
        """Whether this connection should be closed behind its present answer."""
        term = self._terms.get(connection)
        return (
            self._front.closing
            or self._closing
            or term is None
            or self._loop.time() >= term.retires_at
        )

    def _end_one_of_many(self, newcomer: str) -> None:
        """Close the oldest idle connection of the address that holds most.

        To a newcomer from another address, one on which a request is still arriving gives way too.
        """
        group, largest = max(
            self._of_address.items(), key=lambda item: len(item[1]), default=("", {})
        )
        open_ones = [one for one in islice(largest, _LOOKED_AT) if not one.transport.is_closing()]
        for connection in open_ones:
            if not connection.at_work:
                connection.transport.close()
                return
        if group != newcomer:
            for connection in open_ones:
                if connection.arriving:
                    connection.transport.abort()
                    return

    def _look_for_life(self, connection: Connection[RequestHead]) -> None:
        """End a connection that nobody used for long, or for all of its age.

        A caller that still reads the last answer gets all of it; any other has gone. One that asks
        now and then finds `Connection: close` on an answer at its age: to close earlier could cross
        a request on the wire.
        """
        term = self._terms.get(connection)
        if term is None:
            return
        patience, now, at_work = self._patience(), self._loop.time(), connection.at_work
        idle = 0.0 if at_work else now - connection.last_used
        left = term.retires_at - now
        if idle >= _IDLE_SECONDS:
            before, term.unread = term.unread, connection.transport.get_write_buffer_size()
            if term.unread < before:
                connection.transport.close()
            else:
                connection.transport.abort()
            idle = 0.0
        elif idle >= patience:
            connection.transport.close()
            patience = _IDLE_SECONDS
        elif left <= 0 and not (at_work or connection.answered):
            connection.transport.close()
        wait = patience - idle if left <= 0 else min(patience - idle, left)
        term.look = self._loop.call_later(wait, self._look_for_life, connection)

    def _patience(self) -> float:
        """Seconds for which a connection may be idle."""
        return _REFUSED_IDLE_SECONDS if self._front.refusing else _IDLE_SECONDS
