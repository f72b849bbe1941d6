"""Connections to the admin port that somebody keeps."""

import contextlib
import signal
import time
from pathlib import Path

from batchedmodel_contract.processes.sidecar_api import STATS
from batchedmodel_sidecar.service import READERS_LEAVE_SECONDS, STRAGGLERS_SECONDS
from support.chain import running_chain
from support.raw_caller import RawCaller, request


async def test_connections_on_which_the_autoscaler_asks_now_and_then_hold_no_drain_up(
    tmp_path: Path,
) -> None:
    async with (
        running_chain(tmp_path, handler="none", start_model=False) as chain,
        contextlib.AsyncExitStack() as stack,
    ):
        callers = [
            await stack.enter_async_context(RawCaller.calling(chain.admin_port)) for _ in range(50)
        ]
        for _ in range(2):
            for caller in callers:
                caller.sends(request(STATS, method="GET"))
                assert (await caller.answer())[0] == 200
        await chain.drain()
        began = time.monotonic()
        chain.sidecar.send(signal.SIGTERM)
        assert [await caller.rest() for caller in callers] == [b""] * len(callers)
        assert await chain.sidecar.ended() == 0
        assert time.monotonic() - began < STRAGGLERS_SECONDS + READERS_LEAVE_SECONDS
