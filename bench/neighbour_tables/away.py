"""What callers with kept connections meet when one of two model servers is killed.

Two sidecars with a model server each stand for two pods, a small balancer for their Service: it
asks for readiness once a second, and new connections go to what is ready. Callers keep their
connections as pools do: some ask all the time, others now and then. The model server of one pod is
killed by SIGKILL, is away for some seconds and returns, five times in turns. Counted is what each
connection sees, and when after the kill a connection from before it was refused last.
"""

import asyncio
import contextlib
import math
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from bench_report import Figure, at_least, at_most
from support.balancer import Balancer
from support.chain import Chain, running_chain
from support.raw_caller import RawCaller, request

_KILLS: Final = 5
_QUICK_KILLS: Final = 1
_AWAY_SECONDS: Final = 4.0
_BACK_SECONDS: Final = 2.0
_BUSY: Final = 16
_RARE: Final = 16
_BUSY_PAUSE: Final = 0.02
_RARE_PAUSE: Final = 1.5
_BODY: Final = b'{"inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [1]}]}'


@dataclass(slots=True, kw_only=True)
class _Connection:
    """What one connection of a caller saw; monotonic seconds."""

    opened: float
    answers: int = 0
    refused_at: list[float] = field(default_factory=list)
    cut_off: bool = False
    """Whether it ended behind a request and before its answer."""


def figures(*, quick: bool, before: Path | None) -> list[Figure]:
    """The worst connection of all kills."""
    kills, connections = asyncio.run(_measured(_QUICK_KILLS if quick else _KILLS))
    most = max(len(one.refused_at) for one in connections)
    late = [
        max(_refused_late(connections, kill, until), default=0.0)
        for kill, until in pairwise([*kills, math.inf])
    ]
    refused = sum(len(one.refused_at) for one in connections)
    answers = sum(one.answers for one in connections)
    return [
        at_most("model away: 503s that one connection sees", float(most), "", 1.0),
        at_most("model away: last 503 on a connection from before the kill", max(late), "s", 2.0),
        Figure(name="model away: 503s", value=float(refused), unit=f"of {answers} answers"),
        Figure(
            name="model away: connections cut off behind a request",
            value=float(sum(one.cut_off for one in connections)),
            unit=f"of {len(connections)}",
        ),
        at_least("model away: kills", float(len(kills)), "", 1.0),
    ]


def _refused_late(connections: Sequence[_Connection], kill: float, until: float) -> Iterator[float]:
    """Seconds from a kill to each refusal, before the next kill, on connections from before it."""
    for one in connections:
        if one.opened < kill:
            yield from (at - kill for at in one.refused_at if kill < at < until)


async def _measured(kills: int) -> tuple[list[float], list[_Connection]]:
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        pods = []
        for _ in range(2):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            pods.append(await stack.enter_async_context(running_chain(folder, handler="simulated")))
        balancer = await stack.enter_async_context(Balancer.in_front_of(pods))
        seen: list[_Connection] = []
        chance = random.Random(1)
        callers = [
            asyncio.create_task(_calls(balancer.port, pause, chance.random() * pause, seen))
            for pause in [_BUSY_PAUSE] * _BUSY + [_RARE_PAUSE] * _RARE
        ]
        times = []
        await asyncio.sleep(_BACK_SECONDS)
        for number in range(kills):
            pod = pods[number % len(pods)]
            times.append(loop.time())
            await _dies_and_returns(pod)
            await asyncio.sleep(_BACK_SECONDS)
        for caller in callers:
            caller.cancel()
        for ended in await asyncio.gather(*callers, return_exceptions=True):
            if not isinstance(ended, asyncio.CancelledError):
                raise RuntimeError("a caller ended early") from ended
        return times, seen


async def _dies_and_returns(pod: Chain) -> None:
    await pod.model.kill()
    await asyncio.sleep(_AWAY_SECONDS)
    after = len(pod.sidecar.lines)
    await pod.model.start()
    await pod.ready(after=after)


async def _calls(port: int, pause: float, begins: float, seen: list[_Connection]) -> None:
    """One caller, on one kept connection after the other."""
    wire = request("/v2/models/m/infer", _BODY, "Content-Type: application/json")
    await asyncio.sleep(begins)
    while True:
        connection = _Connection(opened=asyncio.get_running_loop().time())
        seen.append(connection)
        asked = False
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with RawCaller.calling(port) as caller:
                while not caller.has_ended():
                    caller.sends(wire)
                    asked = True
                    status, _ = await caller.answer()
                    asked = False
                    connection.answers += 1
                    if status == 503:
                        connection.refused_at.append(asyncio.get_running_loop().time())
                    await asyncio.sleep(pause)
        connection.cut_off = asked
