"""Which modules of ours run code for a request in every one of several traces."""

import json
import signal
from collections.abc import Awaitable, Callable
from typing import Final

from support.chain import Chain

_TRACES: Final = 5


async def modules_of(chain: Chain, request: Callable[[], Awaitable[None]]) -> list[str]:
    """Sorted names. `chain` runs `support.traced_sidecar`.

    What the first request alone needs, and timers of other concerns, fall into some traces only
    and are no part of a request's way.
    """
    traces = []
    for _ in range(_TRACES):
        seen = len(chain.sidecar.lines)
        chain.sidecar.send(signal.SIGUSR1)
        await chain.sidecar.wait_for("^tracing$", after=seen)
        await request()
        chain.sidecar.send(signal.SIGUSR2)
        line = await chain.sidecar.wait_for("^modules: (.*)$", after=seen)
        traces.append(set(json.loads(line[1])))
    return sorted(set.intersection(*traces))
