"""A chain with an honest crowd, and what became of both while somebody attacked them."""

import asyncio
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import aiohttp

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.upstream import ServerProtocol
from compile_modules import compiled_modules
from load_generator import cache_folder
from support.attacks.aim import Attack, Kind, document, path_of
from support.chain import TESTS, Chain, running_chain
from support.process_memory import held_bytes
from support.row_server import in_front

BUDGET_BYTES: Final = 32 * 2**20
"""What the sidecar may hold of callers' bodies."""
ROWS_PER_SECOND: Final = 300.0
_SHARE: Final = 0.3
_BATCH: Final = 6
_CALLERS: Final = 16
_LOOK_SECONDS: Final = 0.1
_IDLE_AFTER_SECONDS: Final = 5.0
_IDLE_SECONDS: Final = 2.0
_IDLE_LOOKS: Final = 3
IDLE_CORES: Final = 0.01
"""What a sidecar may use that nobody asks anything."""
_NANOSECONDS: Final = 1e9
SETTINGS: Final = BatchSettings(max_batch_size=_BATCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One bout: crowd, attack beside the crowd, crowd, and the sidecar left alone."""

    crowd: Counter[str]
    """What honest callers were told, `right` or what it was instead."""
    before: list[float]
    """Seconds that answers took, as below."""
    during: list[float]
    after: list[float]
    attackers: dict[str, dict[str, Any]]
    """By attack: `visits`, and `told`, answers by status."""
    memory_bytes: int
    """The most that the sidecar held during it, above what it held before."""
    batch_seconds: float
    """The longest that the server took for a batch during it."""
    idle_cores: float | None
    """What the sidecar used five seconds after the attackers left; None: not looked at.

    The least of up to three looks of two seconds: what an attack leaves behind stays, a busy
    machine's noise does not.
    """


def p99(seconds: Sequence[float]) -> float:
    """Of what was measured; NaN of nothing."""
    ordered = sorted(seconds)
    return ordered[max(0, math.ceil(0.99 * len(ordered)) - 1)] if ordered else math.nan


@dataclass
class Crowd:
    """Honest callers at 30 % of what the device can do."""

    chain: Chain
    kind: Kind
    told: Counter[str] = field(default_factory=Counter)
    asked: list[tuple[float, float]] = field(default_factory=list)
    """When they asked, monotonic, and the seconds that it took."""
    _numbers: "count[int]" = field(default_factory=lambda: count(1))

    async def comes(self, until: asyncio.Event) -> None:
        """Ask at an even pace, each time as long as a place is free."""
        places = asyncio.Semaphore(_CALLERS * 8)
        async with asyncio.TaskGroup() as group:
            due = time.monotonic()
            while not until.is_set():
                await places.acquire()
                group.create_task(self._ask(places))
                due = max(due + 1 / (_SHARE * ROWS_PER_SECOND), time.monotonic() - 0.1)
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _ask(self, places: asyncio.Semaphore) -> None:
        row, began = [next(self._numbers), 7], time.monotonic()
        url = self.chain.url(path_of(self.kind))
        try:
            body = document(self.kind, [row])
            async with self.chain.session.post(url, json=body) as response:
                text = await response.read()
            right = response.status == 200 and answers(self.kind, row, text)
            self.told["right" if right else f"{response.status}: {text[:200]!r}"] += 1
        except (aiohttp.ClientError, OSError) as error:
            self.told[repr(error)] += 1
        finally:
            places.release()
        self.asked.append((began, time.monotonic() - began))


def answers(kind: Kind, row: list[int], text: bytes) -> bool:
    """Whether this is the row's answer."""
    found = json.loads(text)
    if kind is Kind.V1:
        return bool(found["predictions"] == [{"got": [str(one) for one in row], "with": {}}])
    if kind is Kind.OPENAI:
        total = sum(row)
        return bool(found["data"][0]["embedding"] == [total / 7, -total / 1e7, float(total)])
    return bool(found["outputs"][0]["data"] == row)


@dataclass
class Ring:
    """A sidecar and what is behind it, for one bout after the other."""

    chain: Chain
    kind: Kind
    batches: "Batches"

    async def bout(
        self,
        attacks: Sequence[Attack],
        *,
        crowd_seconds: float = 1.0,
        seconds: float = 3.0,
        looks_at_idle: bool = True,
        niceness: int = 0,
    ) -> Report:
        """Let these attacks run together beside the crowd.

        `niceness` of the attackers: where times are measured, what they compute on this machine
        is not what they do through the port. On a busy machine nice ones never come.
        """
        crowd, over = Crowd(self.chain, self.kind), asyncio.Event()
        pid = self.chain.sidecar.pid
        coming = asyncio.create_task(crowd.comes(over))
        await asyncio.sleep(crowd_seconds)
        held, began = held_bytes(pid), time.monotonic()
        memory = _Memory()
        watch = asyncio.create_task(memory.watch(pid))
        attackers = await self._attacked([one.name for one in attacks], seconds, niceness)
        left = time.monotonic()
        await asyncio.sleep(crowd_seconds)
        over.set()
        await coming
        watch.cancel()
        idle = await _idle(pid, left) if looks_at_idle else None
        times = crowd.asked
        return Report(
            crowd=crowd.told,
            before=[took for asked, took in times if asked < began],
            during=[took for asked, took in times if began <= asked < left],
            after=[took for asked, took in times if asked >= left],
            attackers=attackers,
            memory_bytes=memory.most - held,
            batch_seconds=self.batches.longest(began, left),
            idle_cores=idle,
        )

    async def _attacked(
        self, names: list[str], seconds: float, niceness: int
    ) -> dict[str, dict[str, Any]]:
        told = {
            "port": self.chain.port,
            "kind": self.kind,
            "attacks": names,
            "seconds": seconds,
            "niceness": niceness,
        }
        attacker = await _started("attacker", json.dumps(told))
        try:
            async with asyncio.timeout(seconds + 60.0):
                printed, _ = await attacker.communicate()
        finally:
            if attacker.returncode is None:
                attacker.kill()
        assert attacker.returncode == 0, names
        found: dict[str, dict[str, Any]] = json.loads(printed)
        return found


async def _started(name: str, told: str) -> asyncio.subprocess.Process:
    """A process of this package, whose output is read here."""
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"support.attacks.{name}", told),
        env={**os.environ, "PYTHONPATH": path},
        stdout=asyncio.subprocess.PIPE,
    )


class Batches:
    """How long a server of one's own took for batches, as it says while it serves."""

    def __init__(self) -> None:
        self._said: list[tuple[float, float]] = []

    def longest(self, began: float, ended: float) -> float:
        """Of those between two times, monotonic; a full batch's time at least."""
        took = [seconds for at, seconds in self._said if began <= at <= ended + _LOOK_SECONDS]
        return max([_BATCH / ROWS_PER_SECOND, *took])

    async def listen(self, stream: asyncio.StreamReader) -> None:
        """Until it ends."""
        async for line in stream:
            at, seconds = map(float, line.split())
            self._said.append((at, seconds))


@asynccontextmanager
async def _server(seconds: float, batches: Batches) -> AsyncIterator[str]:
    """Where a server of one's own is, which takes so long for a batch."""
    process = await _started("server", str(seconds))
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip()
        hears = asyncio.create_task(batches.listen(process.stdout))
        yield url
    finally:
        process.kill()
        await process.wait()
    await hears


class _Memory:
    """The most that a process was seen to hold, in bytes."""

    def __init__(self) -> None:
        self.most = 0

    async def watch(self, pid: int) -> None:
        """Look now and then, for ever."""
        while True:
            self.most = max(self.most, held_bytes(pid))
            await asyncio.sleep(_LOOK_SECONDS)


async def _idle(pid: int, left: float) -> float:
    await asyncio.sleep(max(0.0, left + _IDLE_AFTER_SECONDS - time.monotonic()))
    least = math.inf
    for _ in range(_IDLE_LOOKS):
        before, began = _cpu_seconds(pid), time.monotonic()
        await asyncio.sleep(_IDLE_SECONDS)
        least = min(least, (_cpu_seconds(pid) - before) / (time.monotonic() - began))
        if least < IDLE_CORES:
            break
    return least


def _cpu_seconds(pid: int) -> float:
    threads = Path("/proc", str(pid), "task").iterdir()
    spent = ((thread / "schedstat").read_text().split()[0] for thread in threads)
    return sum(map(int, spent)) / _NANOSECONDS


_PROTOCOLS: Final = {
    Kind.V2: ServerProtocol.V2,
    Kind.V1: ServerProtocol.V1,
    Kind.OPENAI: ServerProtocol.OPENAI,
}


@asynccontextmanager
async def ring(folder: Path, kind: Kind) -> AsyncIterator[Ring]:
    """One of 300 rows a second, ready; the sidecar is compiled, as in its image."""
    bounds: dict[str, Any] = {"max_body_bytes": 8 * 2**20, "max_queue_bytes": BUDGET_BYTES}
    bounds["compiled"] = compiled_modules(cache_folder(os.environ))
    async with AsyncExitStack() as stack:
        if kind is Kind.OURS:
            per_row = str(1 / ROWS_PER_SECOND)
            device = {"fixedSeconds": "0", "rowSeconds": per_row}
            started = running_chain(
                folder, handler="simulated", parameters=device, settings=SETTINGS, **bounds
            )
            chain = await stack.enter_async_context(started)
            yield Ring(chain, kind, Batches())
            return
        batches = Batches()
        url = await stack.enter_async_context(_server(_BATCH / ROWS_PER_SECOND, batches))
        fronted = in_front(url, folder, _PROTOCOLS[kind], SETTINGS, **bounds)
        chain = await stack.enter_async_context(fronted)
        # Of a v2 server the sidecar sees by this that its output follows the rows.
        async with chain.session.post(
            chain.url(path_of(kind)), json=document(kind, [[1, 7]])
        ) as one:
            assert one.status == 200, await one.text()
        yield Ring(chain, kind, batches)
