"""Callers of all kinds and faults of all kinds, at random, against a running chain.

Every caller notes what it was told; what must hold in the end is judged by the test.
"""

import asyncio
import contextlib
import io
import itertools
import json
import random
import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import aiohttp

from batchedmodel_contract.batching import BatchSettings
from batchedmodel_contract.spec import PolicyName
from support.chain import Chain
from support.process_memory import resident_bytes
from support.storm_handlers import VENOM

REFUSALS: Final = {400, 408, 413, 429, 502, 503, 504}
BEFORE_ANYTHING: Final = {429, 503}
"""What anybody may be told, whatever is asked."""
_AT_ONCE: Final = 512  # callers; more are not started until one has ended
_GIVE_UP_SECONDS: Final = 60.0


@dataclass
class Diary:
    """What callers were told."""

    told: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    """What must never happen."""
    recoveries: list[float] = field(default_factory=list)
    """Seconds from the end of a fault to the first right answer to a question asked after it."""
    resident: list[int] = field(default_factory=list)
    """Bytes of memory that each sidecar had when it was killed."""


class Chaos:
    """One storm over one chain; the same seed brings the same storm, but for what time does."""

    def __init__(self, chain: Chain, settings: BatchSettings, seed: int) -> None:
        self.diary = Diary()
        self._chain = chain
        self._settings = settings
        self._random = random.Random(seed)
        self._numbers = itertools.count(1)
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._callers: set[asyncio.Task[None]] = set()
        self._sidecars = 1
        """How many there have been; a caller that met the end of one may be cut off."""
        self._is_down = False

    async def rage(self, seconds: float, rate: float) -> None:
        """Callers at `rate` a second, ten times that for a while in the middle, and faults."""
        until = time.monotonic() + seconds
        faults = asyncio.create_task(self._faults(until))
        began = time.monotonic()
        while (now := time.monotonic()) < until:
            overload = 0.4 < (now - began) / seconds < 0.6
            await self._places.acquire()
            self._start(self._caller())
            await asyncio.sleep(self._random.expovariate(10 * rate if overload else rate))
        await faults
        async with asyncio.timeout(_GIVE_UP_SECONDS):
            await asyncio.gather(*self._callers)

    def _start(self, caller: Awaitable[None]) -> None:
        task = asyncio.ensure_future(caller)
        self._callers.add(task)
        task.add_done_callback(self._callers.discard)
        task.add_done_callback(lambda _: self._places.release())

    # Callers

    async def _caller(self) -> None:
        kinds: dict[Callable[[], Awaitable[str]], float] = {
            self._single: 60,
            self._hasty: 8,
            self._list: 6,
            self._slow: 4,
            self._leaver: 8,
            self._resetter: 4,
            self._poison: 6,
            self._venom: 2,
            self._oversize: 2,
        }
        met = self._sidecars
        kind = self._random.choices(list(kinds), list(kinds.values()))[0]
        name = kind.__name__.removeprefix("_")
        try:
            async with asyncio.timeout(_GIVE_UP_SECONDS):
                told = await kind()
        except TimeoutError:
            told = "no answer"
            self.diary.complaints.append(f"{name}: no answer in {_GIVE_UP_SECONDS:g} s")
        except Exception as error:
            cut_off = isinstance(error, aiohttp.ClientError | OSError)
            told = "broken"
            if cut_off and (self._is_down or self._sidecars > met):
                told = "cut off"
            else:
                self.diary.complaints.append(f"{name}: {error!r}")
        self.diary.told[f"{name}: {told}"] += 1

    async def _single(self) -> str:
        return await self._ask(self._rows(1))

    async def _hasty(self) -> str:
        return await self._ask(self._rows(1), {"x-request-timeout-ms": "30"})

    async def _list(self) -> str:
        return await self._ask(self._rows(self._random.choice([2, 7, 40, 200])))

    async def _slow(self) -> str:
        rows = self._rows(1)
        body = _body(rows)

        async def pieces() -> Any:
            for begin in range(0, len(body), 20):
                yield body[begin : begin + 20]
                await asyncio.sleep(0.05)

        return await self._told(rows, pieces())

    async def _leaver(self) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._random.random() * 0.05):
                return await self._ask(self._rows(self._random.choice([1, 5])))
        return "left"

    async def _resetter(self) -> str:
        """One whose connection is torn in the middle of everything."""
        _, writer = await asyncio.open_connection("127.0.0.1", self._chain.port)
        body = _body(self._rows(1))
        head = f"POST {self._chain.infer_path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}"
        sent = f"{head}\r\n\r\n".encode() + body
        writer.write(sent[: self._random.randint(1, len(sent))])
        await asyncio.sleep(self._random.random() * 0.02)
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        return "left"

    async def _poison(self) -> str:
        entry = {"name": "x", "datatype": "INT64", "shape": [1, 2], "data": [1, "two"]}
        return await self._told([], json.dumps({"inputs": [entry]}).encode(), expected={400})

    async def _venom(self) -> str:
        """What only the model itself finds out; those who share its batch must not notice."""
        return await self._told([], _body([[VENOM, 1]]), expected={500})

    async def _oversize(self) -> str:
        body = io.BytesIO(b" " * (2**20 + 1))
        return await self._told([], body, expected={413})

    def _rows(self, count: int) -> list[list[int]]:
        """Rows of one width that nobody else sends."""
        width = self._random.choice([1, 2, 8])
        return [[next(self._numbers), *range(1, width)] for _ in range(count)]

    async def _ask(self, rows: list[list[int]], headers: dict[str, str] | None = None) -> str:
        return await self._told(rows, _body(rows), headers=headers)

    async def _told(
        self,
        rows: list[list[int]],
        body: Any,
        *,
        headers: dict[str, str] | None = None,
        expected: set[int] | None = None,
    ) -> str:
        url = self._chain.url(self._chain.infer_path)
        async with self._chain.session.post(url, data=body, headers=headers) as response:
            text = await response.read()
            status = response.status
            if status == 200:
                found = json.loads(text)["outputs"][0]["data"]
                if not rows or found != [value for row in rows for value in row]:
                    self.diary.complaints.append(f"{rows[:2]}... was answered {text[:200]!r}")
                return "right"
            if (
                status not in REFUSALS | (expected or set())
                or "x-request-outcome" not in response.headers
            ):
                self.diary.complaints.append(f"{status} without a reason: {text[:200]!r}")
            if status == 429 and "retry-after" not in response.headers:
                self.diary.complaints.append(f"{status} does not say when to come back")
            if expected is not None and status not in expected | BEFORE_ANYTHING:
                self.diary.complaints.append(f"{status} instead of {expected}: {text[:200]!r}")
        return str(status)

    # Faults

    async def _faults(self, until: float) -> None:
        chain = self._chain
        kinds = [
            self._kill,
            self._kill_sidecar,
            self._stop_model,
            self._stop_sidecar,
            self._edit,
            self._edit,
        ]
        first = iter(kinds[:4])  # however short the storm is, it has one of each
        while time.monotonic() < until:
            await asyncio.sleep(self._random.uniform(0.3, 1.0))
            kind = next(first, None) or self._random.choice(kinds)
            self.diary.faults[kind.__name__.removeprefix("_")] += 1
            await kind()
            await self._recovered()
        chain.configure(self._settings)

    async def _kill(self) -> None:
        seen = len(self._chain.sidecar.lines)
        self._chain.model.send(signal.SIGKILL)
        await self._chain.model.ended()
        await asyncio.sleep(self._random.random() * 0.5)
        await self._chain.model.start()
        # The model server takes its time to load; the fault ends when it says that it is ready.
        await self._chain.ready(after=seen)

    async def _kill_sidecar(self) -> None:
        """The next one has other ports, so that nobody else can take them meanwhile."""
        chain = self._chain
        seen = len(chain.sidecar.lines)
        self.diary.resident.append(resident_bytes(chain.sidecar.pid))
        self._is_down = True
        chain.sidecar.send(signal.SIGKILL)
        await chain.sidecar.ended()
        await chain.sidecar.start()
        await chain.listening(after=seen)
        self._sidecars += 1
        self._is_down = False
        await chain.ready(after=seen)

    async def _stop_model(self) -> None:
        await self._stopped(self._chain.model.send)

    async def _stop_sidecar(self) -> None:
        await self._stopped(self._chain.sidecar.send)

    async def _stopped(self, send: Callable[[signal.Signals], None]) -> None:
        send(signal.SIGSTOP)
        await asyncio.sleep(self._random.uniform(0.1, 0.8))
        send(signal.SIGCONT)

    async def _edit(self) -> None:
        self._chain.configure(
            replace(
                self._settings,
                policy=self._random.choice(list(PolicyName)),
                max_batch_size=self._random.choice([1, 4, 32]),
                target_seconds=self._random.choice([None, 0.05]),
            )
        )

    async def _recovered(self) -> None:
        """How long it takes until somebody who asks now, and again when refused, is served."""
        began = time.monotonic()
        while time.monotonic() - began < _GIVE_UP_SECONDS:
            if await self._ask(self._rows(1)) == "right":
                break
            await asyncio.sleep(0.02)
        self.diary.recoveries.append(time.monotonic() - began)


def _body(rows: list[list[int]]) -> bytes:
    flat = [value for row in rows for value in row]
    shape = [len(rows), len(rows[0])]
    entry = {"name": "x", "datatype": "INT64", "shape": shape, "data": flat}
    return json.dumps({"inputs": [entry]}).encode()
