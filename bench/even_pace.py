"""Questions at even times, however long the answers take.

Called by the benchmarks that read metrics as HPAs do. Not as fast as answers come: that would
measure two full cores. A question that has to wait for the one before is late, too.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

_SOON: Final = 0.1


async def paced(asks: Iterable[Callable[[], Awaitable[object]]], per_second: float) -> list[float]:
    """Seconds of each, from the moment at which it was due."""

    async def timed(ask: Callable[[], Awaitable[object]], due: float) -> float:
        await asyncio.sleep(due - time.perf_counter())
        await ask()
        return time.perf_counter() - due

    began = time.perf_counter() + _SOON
    return await asyncio.gather(*(timed(ask, began + i / per_second) for i, ask in enumerate(asks)))
