"""Whose inference goes alone next, beside batches of others.

Such an inference takes the server for a time that nobody knows before, and cannot be interrupted.
So its tenant pays afterwards: it rests until each of the others that ask could have had as much, by
weight. An instant in which nobody waits does not end a rest: callers ask again when they have their
answers.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_sidecar.body.fair_threads import FairTurns

Result = TypeVar("Result")
Work = Callable[[], Coroutine[Any, Any, Result]]
"""An inference, which has the server for as long as it takes."""

_LEAST_SECONDS: Final = 0.001
"""What is owed below it is nothing."""
_LOOKS: Final = 4
_SHORT_SECONDS: Final = 0.01
_LONG_SECONDS: Final = 1.0


class LoneTurns:
    """As many at a time as batches, in turns of tenants."""

    def __init__(
        self,
        *,
        at_once: Callable[[], int],
        asking: Callable[[], Collection[Share]],
        clock: Callable[[], float],
    ) -> None:
        """`asking`: whose calls wait, are answered or came within the last moments.

        Whoever asks for a turn bounds how many wait.
        """
        self._turns = FairTurns(at_once=at_once, room=0)
        self._asking = asking
        self._clock = clock
        self._here: Counter[Share] = Counter()
        """Inferences that wait for their turn or have it."""
        self._debts: dict[str, float] = {}
        """By tenant: seconds, by weight, that each of the others may have before it goes on."""
        self._followed = clock()
        """Until when what was paid of them is known."""

    def rest(self, share: Share) -> float:
        """Seconds until a tenant's next turn may come, if the others stay who they are now."""
        others = self._follow()
        others.pop(share.tenant, None)
        if not others or share.tenant not in self._debts:
            return 0.0
        # Who owes as much as all the others is behind nobody.
        owed = self._debts[share.tenant] - min(self._debts.get(name, 0.0) for name in others)
        return owed * sum(others.values()) if owed > _LEAST_SECONDS else 0.0

    async def during(self, share: Share, work: Work[Result]) -> Result:
        """What an inference gives, in its turn.

        The turn lasts as long as `work`, also where its caller leaves: the server may go on.
        """
        self._here[share] += 1
        try:
            while True:
                await self._rested(share)
                turn = self._turns.take_turn(share, 1, partial(self._begun, share, work))
                if (done := await turn) is not None:
                    return done[0]
        finally:
            self._here[share] -= 1
            if not self._here[share]:
                del self._here[share]

    def _begun(self, share: Share, work: Work[Result]) -> "asyncio.Task[tuple[Result] | None]":
        return asyncio.get_running_loop().create_task(self._paid(share, work))

    async def _paid(self, share: Share, work: Work[Result]) -> tuple[Result] | None:
        """None where the tenant rests: another of its inferences was here first."""
        if self.rest(share) > 0:
            return None
        began = self._clock()
        try:
            return (await work(),)
        finally:
            self._follow()
            owed = self._debts.get(share.tenant, 0.0)
            self._debts[share.tenant] = owed + (self._clock() - began) / share.weight

    def _follow(self) -> dict[str, float]:
        """Let all have paid until now; the weights of those that have something here."""
        shares = {one.tenant: one.weight for one in (*self._asking(), *self._here)}
        now, whole = self._clock(), sum(shares.values())
        passed, self._followed = now - self._followed, now
        left = {}
        for tenant, owed in self._debts.items():
            # Who has left pays as if it were here.
            others = whole - shares.get(tenant, 0.0)
            if others and (owed := owed - passed / others) > _LEAST_SECONDS:
                left[tenant] = owed
        self._debts = left
        return shares

    async def _rested(self, share: Share) -> None:
        """Return once the tenant owes nothing, or there is nobody to whom."""
        while True:
            seconds = self.rest(share)
            if not seconds:
                return
            # Others come and go, so it is looked at again before all of it is over.
            await asyncio.sleep(min(max(seconds / _LOOKS, _SHORT_SECONDS), seconds, _LONG_SECONDS))
