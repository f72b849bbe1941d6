"""The connections of the data port: of bounded number, age and idleness.

A pooled client keeps its connections for ever and would never reach a pod that was added later;
so a connection that has reached its age is closed behind its next answer. Put together by the
service; what is asked on a connection is its door's business.
"""

import asyncio
import math
import random
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from batchedmodel_http.breaks import is_broken
from batchedmodel_http.door import Door
from batchedmodel_http.doors import Doors
from batchedmodel_http.headings import Headings
from batchedmodel_sidecar.ports.asked import Asked
from batchedmodel_sidecar.ports.front import Front
from batchedmodel_sidecar.ports.general import General, request_factory

_SPREAD: Final = 0.2
_IDLE_SECONDS: Final = 75.0


@dataclass(slots=True, kw_only=True)
class _Term:
    """When a connection should end, at the latest and for want of use."""

    retires_at: float
    age: asyncio.TimerHandle
    idle: asyncio.TimerHandle
    unread: float = math.inf
    """Bytes of answers that its caller had not read when it was found idle."""
    general: RequestHandler | None = None


class Connections:
    """Knows when each connection should end, and admits no more of them than it may."""

    def __init__(self, front: Front, *, mean_age: float, at_most: int, max_body_bytes: int) -> None:
        """Needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._front = front
        self._mean_age = mean_age
        self._at_most = at_most
        self._terms: dict[Door[Asked], _Term] = {}
        self._doors = Doors()
        self._generals: dict[Any, Door[Asked]] = {}
        self._server = web.Server(
            self._handle,
            request_factory=request_factory(max_body_bytes),
            handler_cancellation=True,
        )
        self._headings = Headings(self._loop, Asked)

    def open(self) -> Door[Asked]:
        """A door for a caller that comes."""
        return Door(self, self._front, self._headings, self._loop, self._front.left_early)

    async def close(self, seconds: float) -> None:
        """Hang up behind the answers that are under way, which have so long."""
        await self._doors.close(seconds)

    def entered(self, door: Door[Asked]) -> bool:
        """A caller has come, and has an age; False when there are too many."""
        if len(self._terms) >= self._at_most:
            return False
        self._doors.add(door)
        age = self._mean_age * random.uniform(1 - _SPREAD, 1 + _SPREAD)
        self._terms[door] = _Term(
            retires_at=self._loop.time() + age,
            age=self._loop.call_later(age, self._retire, door),
            idle=self._loop.call_later(_IDLE_SECONDS, self._look_for_life, door),
        )
        return True

    def left(self, door: Door[Asked]) -> None:
        """Forget a caller."""
        term = self._terms.pop(door, None)
        if term is not None:
            term.age.cancel()
            term.idle.cancel()
            self._generals.pop(term.general, None)
        self._doors.remove(door)

    def ends(self, door: Door[Asked]) -> bool:
        """Whether this connection should be closed behind its present answer."""
        term = self._terms.get(door)
        return (
            self._front.closing
            or self._doors.closing
            or term is None
            or self._loop.time() >= term.retires_at
        )

    def general(self, door: Door[Asked]) -> RequestHandler:
        """aiohttp's side of a connection."""
        general = General(self._server, self._front.unreadable, self._loop)
        self._terms[door].general = general
        self._generals[general] = door
        return general

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request that aiohttp received."""
        door = self._generals.get(request.protocol)
        if door is None:
            return await self._front.handle(request)
        try:
            response = await self._front.handle(request)
        finally:
            door.used()
        if self.ends(door) or is_broken(request):
            response.force_close()
        return response

    def _retire(self, door: Door[Asked]) -> None:
        """End a connection that has reached its age and will not end behind an answer.

        A caller that asks is met with `Connection: close` on its next answer, which it cannot
        mistake. Closing under its hands could cross a request on the wire, so it is done only to a
        caller that never finished one, or that let a second age pass.
        """
        term = self._terms.get(door)
        if term is None or door.at_work:
            return
        if door.answered:
            door.answered = False
            term.age = self._loop.call_later(self._mean_age, self._retire, door)
            return
        door.transport.close()

    def _look_for_life(self, door: Door[Asked]) -> None:
        """End a connection that nobody used for long.

        It goes when its caller has read the last answer; who reads nothing more of it has gone.
        """
        term = self._terms.get(door)
        if term is None:
            return
        idle = 0.0 if door.at_work else self._loop.time() - door.last_used
        if idle >= _IDLE_SECONDS:
            before, term.unread = term.unread, door.transport.get_write_buffer_size()
            if term.unread < before:
                door.transport.close()
            else:
                door.transport.abort()
            idle = 0.0
        term.idle = self._loop.call_later(_IDLE_SECONDS - idle, self._look_for_life, door)
