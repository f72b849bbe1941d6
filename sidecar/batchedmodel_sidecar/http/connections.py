"""The connections of the data port: of bounded number, age and idleness.

A pooled client keeps its connections for ever and would never reach a pod that was added later;
so a connection that has reached its age is closed behind its next answer. When nearly as many are
open as may be, the address that holds most of them loses its idle ones. Put together by the
service; what is asked on a connection is its door's business.
"""

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from batchedmodel_contract.tenants import address_group
from batchedmodel_http.connection import Door
from batchedmodel_http.connection_set import Doors
from batchedmodel_http.head_cache import Headings
from batchedmodel_http.streaming import General, request_factory
from batchedmodel_sidecar.body.byte_budget import Hold
from batchedmodel_sidecar.http.data_handler import Front
from batchedmodel_sidecar.http.request_head import Asked
from batchedmodel_sidecar.http.unread_answers import UnreadAnswers

_SPREAD: Final = 0.2
_IDLE_SECONDS: Final = 75.0
_NEARLY_ALL: Final = 0.9
"""The share of connections above which each that comes ends an idle one."""
_LOOKED_AT: Final = 1000
"""Connections of an address among which an idle one is looked for."""


@dataclass(slots=True, kw_only=True)
class _Term:
    """When a connection should end, at the latest and for want of use."""

    retires_at: float
    age: asyncio.TimerHandle
    idle: asyncio.TimerHandle
    address: str
    behind: Hold | None = None
    """What it sent ahead, behind a request that is being answered."""
    unread: float = math.inf
    """Bytes of answers that its caller had not read when it was found idle."""


class Connections:
    """Knows when each connection should end, and admits no more of them than it may."""

    def __init__(
        self,
        front: Front,
        *,
        unread: UnreadAnswers,
        hold: Callable[[str], Hold],
        mean_age: float,
        at_most: int,
        max_body_bytes: int,
    ) -> None:
        """Needs a running loop. `mean_age` is in seconds; `hold` gives memory of an address."""
        self._loop = asyncio.get_running_loop()
        self._front = front
        self._unread = unread
        self._hold = hold
        self._of_address: dict[str, dict[Door[Asked], None]] = {}
        """The connections of each address, or network of one, in the order in which they came."""
        self._mean_age = mean_age
        self._at_most = at_most
        self._terms: dict[Door[Asked], _Term] = {}
        self._doors = Doors()
        self._make_request = request_factory(max_body_bytes, self._loop)
        self._headings = Headings(self._loop, Asked)

    def open(self) -> Door[Asked]:
        """A door for a caller that comes."""
        return Door(self, self._front, self._headings, self._loop, self._front.left_early)

    async def close(self, seconds: float) -> None:
        """Hang up behind the answers that are under way, which have so long."""
        await self._doors.close(seconds)

    def entered(self, door: Door[Asked]) -> bool:
        """A caller has come, and has an age; False when there are too many."""
        address = _address(door)
        group = address_group(address)
        if len(self._terms) >= self._at_most * _NEARLY_ALL:
            self._end_one_of_many(group)
        if len(self._terms) >= self._at_most:
            return False
        self._of_address.setdefault(group, {})[door] = None
        self._doors.add(door)
        age = self._mean_age * random.uniform(1 - _SPREAD, 1 + _SPREAD)
        self._terms[door] = _Term(
            retires_at=self._loop.time() + age,
            age=self._loop.call_later(age, self._retire, door),
            idle=self._loop.call_later(_IDLE_SECONDS, self._look_for_life, door),
            address=address,
        )
        return True

    def left(self, door: Door[Asked]) -> None:
        """Forget a caller."""
        term = self._terms.pop(door, None)
        if term is not None:
            term.age.cancel()
            term.idle.cancel()
            group = address_group(term.address)
            del self._of_address[group][door]
            if not self._of_address[group]:
                del self._of_address[group]
            self._unread.forget(door.transport)
            if term.behind is not None:
                term.behind.become(0)
        self._doors.remove(door)

    def behind(self, door: Door[Asked], size: int) -> bool:
        """So many bytes are here behind the present request; False when they do not fit."""
        term = self._terms.get(door)
        if term is None:
            return True
        if term.behind is None:
            term.behind = self._hold(term.address)
        fits = term.behind.become(size)
        if not (size and fits):
            term.behind.become(0)
            term.behind = None
        return fits

    def unread(self, door: Door[Asked]) -> None:
        """A large answer was written, or its caller reads slowly."""
        self._unread.watch(door.transport, address_group(_address(door)))

    def ends(self, door: Door[Asked]) -> bool:
        """Whether this connection should be closed behind its present answer."""
        term = self._terms.get(door)
        return (
            self._front.closing
            or self._doors.closing
            or term is None
            or self._loop.time() >= term.retires_at
        )

    def general(self, door: Door[Asked]) -> General:
        """What answers the other requests of a connection."""
        return General(
            self._front.handle,
            self._make_request,
            unreadable=self._front.unreadable,
            ends=partial(self.ends, door),
            used=door.used,
            behind=partial(self.behind, door),
            loop=self._loop,
        )

    def _end_one_of_many(self, newcomer: str) -> None:
        """Close the oldest idle connection of the address that holds most.

        To a newcomer from another address, one on which a request is still arriving gives way too.
        """
        group, largest = max(
            self._of_address.items(), key=lambda item: len(item[1]), default=("", {})
        )
        open_ones = [one for one in islice(largest, _LOOKED_AT) if not one.transport.is_closing()]
        for door in open_ones:
            if not door.at_work:
                door.transport.close()
                return
        if group != newcomer:
            for door in open_ones:
                if door.arriving:
                    door.transport.abort()
                    return

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


def _address(door: Door[Asked]) -> str:
    """Where a caller's connection comes from; empty when nobody says so."""
    name = door.transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) else ""
