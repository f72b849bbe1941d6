"""How long something that was disturbed is not well, as somebody sees it who asks all the time."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

_BETWEEN_QUESTIONS: Final = 0.02  # seconds
_GIVE_UP_SECONDS: Final = 60.0
_TICK: Final = 0.02  # seconds
_USUAL_LATENESS: Final = 0.002  # seconds, of a timer on a machine that does nothing else


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """How the chain came to itself again behind the end of a fault; seconds."""

    fault: str
    ended: float
    """When the fault did, in monotonic seconds."""
    took: float
    """To the first right answer behind which every answer was right until the next fault."""
    lag: float
    """By how much this process itself was late in the same time: the machine's doing."""

    @property
    def own(self) -> float:
        """What of it the chain is to blame for."""
        return self.took - self.lag


async def recovery(fault: str, is_served: Callable[[], Awaitable[bool]], calm: float) -> Recovery:
    """From now, the end of a fault, until all is well; returns when it was so for `calm` seconds.

    Asked is one question behind the other. The first right answer counts behind the last wrong one.
    """
    ended = time.monotonic()
    well: float | None = None
    async with lateness() as late:
        while True:
            served = await is_served()
            now = time.monotonic()
            if not served:
                well = None
            elif well is None:
                well, lag = now, late.total()
            if well is not None and now - well >= calm:
                return Recovery(fault=fault, ended=ended, took=well - ended, lag=lag)
            assert now - ended < _GIVE_UP_SECONDS, f"{fault}: not well for a minute"
            await asyncio.sleep(_BETWEEN_QUESTIONS)


class Lateness:
    """By how many seconds a loop woke late."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []
        """From when it should have woken to when it did, in monotonic seconds."""
        self._due = math.inf

    def total(self) -> float:
        """In all until now."""
        return self.between(-math.inf, math.inf)

    def between(self, since: float, until: float) -> float:
        """Between these two times, of which the later one may be to come."""
        spans = [*self._spans, (self._due, time.monotonic())]
        late = (min(woke, until) - max(due + _USUAL_LATENESS, since) for due, woke in spans)
        return sum(seconds for seconds in late if seconds > 0.0)

    async def tick(self) -> None:
        """For ever."""
        try:
            while True:
                self._due = time.monotonic() + _TICK
                await asyncio.sleep(_TICK)
                self._spans.append((self._due, time.monotonic()))
        finally:
            self._due = math.inf


@contextlib.asynccontextmanager
async def lateness() -> AsyncIterator[Lateness]:
    """By how much this loop is late from now on."""
    late = Lateness()
    ticking = asyncio.create_task(late.tick())
    try:
        yield late
    finally:
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
