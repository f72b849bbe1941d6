"""What connections that say nothing at the admin port take from the callers of the data port.

Three processes hold 10,000 such connections each, from addresses of their own (as many as the limit
of descriptors lets them), and one of them opens 200 a second anew. Meanwhile callers at the data
port come with a connection for each request, as those do who meet a pod first, and a prober asks
`/live` as a kubelet does. Counted are those who got no answer, or one that is not 200.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from batchedmodel_contract.processes.sidecar_api import LIVE
from bench_report import Figure, at_least, at_most
from support.chain import Chain, running_chain
from support.idle_crowd import idle_crowd
from support.raw_caller import RawCaller, request

_CLIENTS: Final = 3
_CONNECTIONS: Final = 10_000
_QUICK_CONNECTIONS: Final = 3_000
_RATE: Final = 200.0
_SECONDS: Final = 20.0
_QUICK_SECONDS: Final = 4.0
_CALLERS: Final = 8
_PAUSE: Final = 0.02
_ANSWER_SECONDS: Final = 5.0
_PROBE_SECONDS: Final = 1.0
"""As long as a kubelet waits for a probe."""
_BODY: Final = b'{"inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [1]}]}'


def figures(*, quick: bool, before: Path | None) -> list[Figure]:
    """Requests and probes that failed beside the crowds."""
    count = _QUICK_CONNECTIONS if quick else _CONNECTIONS
    seconds = _QUICK_SECONDS if quick else _SECONDS
    idle, failed, asked, probes = asyncio.run(_measured(count, seconds))
    name = f"beside {idle} idle connections at 9090"
    return [
        at_most(f"{name}: failed at 8000", float(failed), f"of {asked}", 0.0),
        at_most(f"{name}: failed probes", float(probes), "", 0.0),
        at_least(f"{name}: requests", float(asked), "", 100.0),
    ]


async def _measured(count: int, seconds: float) -> tuple[int, int, int, int]:
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        chain = await stack.enter_async_context(running_chain(Path(folder), handler="simulated"))
        idle = 0
        for number in range(_CLIENTS):
            crowd = idle_crowd(
                chain.admin_port,
                count=count,
                rate=0.0 if number else _RATE,
                address=f"127.0.{66 + number}.1",
            )
            idle += await stack.enter_async_context(crowd)
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        callers = (_failures(chain, _infers, lambda: loop.time() < until) for _ in range(_CALLERS))
        *found, (_, probes) = await asyncio.gather(
            *callers, _failures(chain, _is_live, lambda: loop.time() < until)
        )
        return idle, sum(one[1] for one in found), sum(one[0] for one in found), probes


async def _failures(
    chain: Chain, ask: Callable[[Chain], Awaitable[bool]], goes_on: Callable[[], bool]
) -> tuple[int, int]:
    """How often it was asked, and failed."""
    asked = failed = 0
    while goes_on():
        asked += 1
        failed += not await ask(chain)
        await asyncio.sleep(_PAUSE)
    return asked, failed


async def _infers(chain: Chain) -> bool:
    wire = request(chain.infer_path, _BODY, "Content-Type: application/json")
    return await _answered(chain.port, wire, _ANSWER_SECONDS)


async def _is_live(chain: Chain) -> bool:
    return await _answered(chain.admin_port, request(LIVE, method="GET"), _PROBE_SECONDS)


async def _answered(port: int, wire: bytes, seconds: float) -> bool:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
        async with asyncio.timeout(seconds), RawCaller.calling(port) as caller:
            caller.sends(wire)
            return (await caller.answer())[0] == 200
    return False
