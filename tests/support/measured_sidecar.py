"""The sidecar as it is, with a timer in its loop that tells how late the loop makes it.

Run in the sidecar's place by tests of what holds the loop up. The timer is due every millisecond;
between two of its calls lies whatever else the loop did, counted in time of the CPU: that is what
the sidecar does, however busy the machine is. On SIGUSR1 it tells the delays since the last time,
and what the collector of garbage looks at.
"""

import asyncio
import gc
import json
import signal
import sys
import time
from collections.abc import Coroutine
from typing import Any, Final

import uvloop

from batchedmodel_sidecar.__main__ import main

_EVERY: Final = 0.001  # seconds
_SHORTEST: Final = 0.002  # seconds; what is shorter holds nobody up and is not told


class _Watch:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._delays: list[float] = []
        self._loop.add_signal_handler(signal.SIGUSR1, self._tell)
        self._before = time.thread_time()
        self._tick()

    def _tick(self) -> None:
        now = time.thread_time()
        if now - self._before >= _SHORTEST:
            self._delays.append(now - self._before)
        self._before = now
        self._loop.call_later(_EVERY, self._tick)

    def _tell(self) -> None:
        print("delays:", json.dumps([round(delay, 5) for delay in self._delays]), flush=True)  # noqa: T201
        self._delays.clear()
        frozen, followed, between = gc.get_freeze_count(), len(gc.get_objects()), gc.get_threshold()
        print(f"collector: {frozen} frozen, {followed} followed, {between[0]} new", flush=True)  # noqa: T201
        self._before = time.thread_time()  # what is told here is no delay of the sidecar's


def _run(service: Coroutine[Any, Any, bool], as_ever: Any = uvloop.run) -> bool:
    async def watched() -> bool:
        _Watch()
        return await service

    emptied: bool = as_ever(watched())
    return emptied


if __name__ == "__main__":
    uvloop.run = _run  # type: ignore[assignment]  # for the one coroutine that it is given
    sys.exit(main())
