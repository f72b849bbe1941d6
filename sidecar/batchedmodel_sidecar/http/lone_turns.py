"""Whose inference goes alone next, beside batches of others.

Such an inference takes the server for a time that nobody knows before, and cannot be interrupted.
So its tenant pays afterwards: it rests until each of the others that wait has had as much, by
weight, or nobody waits any more.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Final

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_sidecar.body.fair_threads import FairTurns

_FORGOTTEN_ABOVE: Final = 256
"""Tenants whose rests are remembered before those that are over are forgotten."""


class LoneTurns:
    """As many at a time as batches, in turns of tenants."""

    def __init__(
        self,
        *,
        at_once: Callable[[], int],
        room: int,
        waiting: Callable[[], Collection[Share]],
        idle: Callable[[], Awaitable[object]],
        clock: Callable[[], float],
    ) -> None:
        """`room`: inferences that may wait or be answered; `waiting`: who has calls in the queue or
        in a batch; `idle` returns once nobody has.
        """
        self._turns = FairTurns(at_once=at_once, room=room)
        self._waiting = waiting
        self._idle = idle
        self._clock = clock
        self._rests: dict[str, float] = {}
        """By tenant: until when it rests."""

    @asynccontextmanager
    async def turn(self, share: Share) -> AsyncIterator[None]:
        """The block is an inference at the server."""
        while True:
            await self._rested(share.tenant)
            async with self._turns.turn(share, 1):
                if self._rest_of(share.tenant) > 0:
                    continue  # another of its inferences was here first
                started = self._clock()
                try:
                    yield
                finally:
                    self._pay(share, self._clock() - started)
                return

    def _rest_of(self, tenant: str) -> float:
        return self._rests.get(tenant, 0.0) - self._clock()

    async def _rested(self, tenant: str) -> None:
        while (seconds := self._rest_of(tenant)) > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._idle()
            except TimeoutError:
                continue  # it may have become longer
            self._rests.pop(tenant, None)

    def _pay(self, share: Share, seconds: float) -> None:
        others = sum(one.weight for one in self._waiting() if one.tenant != share.tenant)
        if not others:
            return
        now = self._clock()
        if len(self._rests) >= _FORGOTTEN_ABOVE:
            self._rests = {tenant: until for tenant, until in self._rests.items() if until > now}
        begins = max(now, self._rests.get(share.tenant, now))
        self._rests[share.tenant] = begins + seconds * others / share.weight
