"""Asks for metrics as HPAs do, at even times.

Called by `control_plane`. Not as fast as answers come: that would measure two full cores. A
question that has to wait for the one before is late, too.
"""

import asyncio
import random
import time

from control_plane_api import until
from control_plane_world import Name, World


async def metric_reads(
    world: World, count: int, per_second: float, limit_seconds: float
) -> list[float]:
    """Seconds of each, through the API server, from the moment at which it was due.

    Raises:
        SystemExit: nobody serves the metric within the limit.
    """

    async def read(name: Name, due: float) -> float:
        await asyncio.sleep(due - time.perf_counter())
        await world.api.call("GET", name.metric_path)
        return time.perf_counter() - due

    async def answered() -> bool:
        try:
            await world.api.call("GET", world.names[0].metric_path)
        except RuntimeError:
            return False
        return True

    await until("the metric is served", answered, limit_seconds=limit_seconds)
    began = time.perf_counter()
    chosen = random.Random(1).choices(world.names, k=count)
    return await asyncio.gather(
        *(read(name, began + i / per_second) for i, name in enumerate(chosen, 1))
    )
