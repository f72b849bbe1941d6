"""Connections to the admin port that somebody keeps."""

import asyncio
import contextlib
import signal
import time
from pathlib import Path

from batchedmodel_contract.processes.sidecar_api import LIVE, STATS
from batchedmodel_http.ports.listener import ANSWERS_LEAVE_SECONDS
from batchedmodel_sidecar.service import STRAGGLERS_SECONDS
from support.chain import running_chain
from support.idle_crowd import idle_crowd
from support.raw_caller import RawCaller, request

BODY = b'{"inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [1]}]}'


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
        assert time.monotonic() - began < STRAGGLERS_SECONDS + ANSWERS_LEAVE_SECONDS


async def test_a_crowd_at_the_admin_port_takes_nothing_from_callers_or_from_probes(
    tmp_path: Path,
) -> None:
    """It had all of the process's descriptors: `/live` was silent, and callers met a closed door.

    The sidecar may open 1,024 files here.
    """
    async with (
        running_chain(
            tmp_path, handler="simulated", sidecar_module="support.confined_sidecar"
        ) as chain,
        idle_crowd(chain.admin_port, count=1_500, rate=200.0),
    ):
        for _ in range(20):
            async with RawCaller.calling(chain.port) as caller:
                caller.sends(request(chain.infer_path, BODY, "Content-Type: application/json"))
                assert (await caller.answer())[0] == 200
            async with RawCaller.calling(chain.admin_port) as prober:
                prober.sends(request(LIVE, method="GET"))
                assert (await prober.answer())[0] == 200
            await asyncio.sleep(0.02)
