"""Callers of all kinds, at random, in front of a running chain.

Every caller notes what it was told; what must hold in the end is judged by the test.
"""

import asyncio
import contextlib
import io
import itertools
import json
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import aiohttp

from batchedmodel_contract.outcomes import Outcome, Rejection
from support.chain import Chain
from support.storm_handlers import VENOM

GIVE_UP_SECONDS: Final = 60.0
Refusals = Mapping[int, frozenset[Rejection | Outcome]]
"""What somebody may be told in place of an answer, by status: the reasons in the header."""
BEFORE_ANYTHING: Final[Refusals] = {
    429: frozenset({Rejection.QUEUE_FULL, Rejection.PREDICTED_LATE}),
    503: frozenset({Rejection.NOT_READY, Outcome.FAILED, Outcome.SHED, Outcome.EVICTED}),
}
"""What anybody may be told, whatever is asked: there are too many, or the model is away."""
THERE_ARE_TOO_MANY: Final = frozenset(
    {Rejection.QUEUE_FULL, Rejection.PREDICTED_LATE, Outcome.SHED, Outcome.EVICTED}
)
"""Why somebody is sent away of whom and of whose model nothing is wrong."""
OF_INNOCENTS: Final[Refusals] = {**BEFORE_ANYTHING, 504: frozenset({Outcome.EXPIRED})}
"""What those may be told with whose requests nothing is wrong.

A model that is away, stopped or overrun costs time, and hasty ones have little. No fault explains a
502: none makes the model talk nonsense, and a row over which it was killed has been answered long
before it is killed again.
"""
OF_POISON: Final[Refusals] = {**BEFORE_ANYTHING, 400: frozenset({Rejection.INVALID})}
OF_VENOM: Final[Refusals] = {**OF_INNOCENTS, 500: frozenset({Outcome.FAILED})}
OF_THE_OVERSIZED: Final[Refusals] = {**BEFORE_ANYTHING, 413: frozenset({Rejection.TOO_LARGE})}
_AT_ONCE: Final = 512  # callers; more are not started until one has ended
_LATE_SECONDS: Final = 0.5  # by so much callers may come late, and then together

EVERYBODY: Final[Mapping[str, float]] = {
    "single": 60,
    "hasty": 8,
    "list": 6,
    "slow": 4,
    "leaver": 8,
    "resetter": 4,
    "poison": 6,
    "venom": 2,
    "oversize": 2,
}
"""Kinds of callers and how often each comes."""


class Visit(NamedTuple):
    """One caller, from coming to being told; monotonic seconds."""

    came: float
    left: float
    told: str


@dataclass
class Diary:
    """What callers were told."""

    singles: list[Visit] = field(default_factory=list)
    """Those who ask for one row as most do."""
    told: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    """What must never happen."""
    rows_asked: int = 0
    rows_answered: int = 0
    answered_at: list[float] = field(default_factory=list)
    """When right answers came, in monotonic seconds."""


class Crowd:
    """Callers of one chain; the same seed brings the same ones, but for what time does."""

    def __init__(
        self,
        chain: Chain,
        seed: int,
        *,
        kinds: Mapping[str, float] = EVERYBODY,
        lists: tuple[int, ...] = (2, 7, 40, 200),
    ) -> None:
        """`lists`: how many rows requests with several rows have."""
        self.diary = Diary()
        self.kinds = kinds
        self.random = random.Random(seed)
        self.sidecars = 1
        """How many there have been; a caller that met the end of one may be cut off."""
        self.sidecar_is_down = False
        self._chain = chain
        self._lists = lists
        self._numbers = itertools.count(1)
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._callers: set[asyncio.Task[None]] = set()

    async def come(self, goes_on: Callable[[], bool], rate: float) -> None:
        """Callers, so many a second, as long as it goes on; return when the last has ended."""
        due = time.monotonic()
        while goes_on():
            await self._places.acquire()
            kind = self.random.choices(list(self.kinds), list(self.kinds.values()))[0]
            self._start(self._caller(kind))
            now = time.monotonic()
            due = max(due, now - _LATE_SECONDS) + self.random.expovariate(rate)
            await asyncio.sleep(max(0.0, due - now))
        async with asyncio.timeout(GIVE_UP_SECONDS):
            await asyncio.gather(*self._callers)

    async def is_served(self, *, full: bool = False) -> bool:
        """Whether somebody who asks now for one row gets the right answer.

        Where the queue is `full` all the time, to be told so is as right: at once, or after a wait
        in favour of others that can still be in time.
        """
        right = {"right", *THERE_ARE_TOO_MANY} if full else {"right"}
        try:
            return await self._ask(self._rows(1)) in right
        except (aiohttp.ClientError, OSError):
            return False

    async def reset(self, callers: int) -> None:
        """So many who tear their connections at about the same time."""
        await asyncio.gather(*[self._resetter() for _ in range(callers)])

    def _start(self, caller: Awaitable[None]) -> None:
        task = asyncio.ensure_future(caller)
        self._callers.add(task)
        task.add_done_callback(self._callers.discard)
        task.add_done_callback(lambda _: self._places.release())

    async def _caller(self, name: str) -> None:
        kind: Callable[[], Awaitable[str]] = getattr(self, f"_{name}")
        met, came = self.sidecars, time.monotonic()
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                told = await kind()
        except TimeoutError:
            told = "no answer"
            self.diary.complaints.append(f"{name}: no answer in {GIVE_UP_SECONDS:g} s")
        except Exception as error:
            cut_off = isinstance(error, aiohttp.ClientError | OSError)
            told = "broken"
            if cut_off and (self.sidecar_is_down or self.sidecars > met):
                told = "cut off"
            else:
                self.diary.complaints.append(f"{name}: {error!r}")
        self.diary.told[f"{name}: {told}"] += 1
        if name == "single":
            self.diary.singles.append(Visit(came, time.monotonic(), told))

    async def _single(self) -> str:
        return await self._ask(self._rows(1))

    async def _hasty(self) -> str:
        return await self._ask(self._rows(1), {"x-request-timeout-ms": "30"})

    async def _list(self) -> str:
        return await self._ask(self._rows(self.random.choice(self._lists)))

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
            async with asyncio.timeout(self.random.random() * 0.05):
                return await self._ask(self._rows(self.random.choice([1, 5])))
        return "left"

    async def _resetter(self) -> str:
        """One whose connection is torn in the middle of everything."""
        _, writer = await asyncio.open_connection("127.0.0.1", self._chain.port)
        body = _body(self._rows(1))
        head = f"POST {self._chain.infer_path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}"
        sent = f"{head}\r\n\r\n".encode() + body
        writer.write(sent[: self.random.randint(1, len(sent))])
        await asyncio.sleep(self.random.random() * 0.02)
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        return "left"

    async def _poison(self) -> str:
        entry = {"name": "x", "datatype": "INT64", "shape": [1, 2], "data": [1, "two"]}
        body = json.dumps({"inputs": [entry]}).encode()
        return await self._told([], body, may_be_told=OF_POISON)

    async def _venom(self) -> str:
        """What only the model itself finds out; those who share its batch must not notice."""
        return await self._told([], _body([[VENOM, 1]]), may_be_told=OF_VENOM)

    async def _oversize(self) -> str:
        body = io.BytesIO(b" " * (2**20 + 1))
        return await self._told([], body, may_be_told=OF_THE_OVERSIZED)

    def _rows(self, count: int) -> list[list[int]]:
        """Rows of one width that nobody else sends."""
        width = self.random.choice([1, 2, 8])
        return [[next(self._numbers), *range(1, width)] for _ in range(count)]

    async def _ask(self, rows: list[list[int]], headers: dict[str, str] | None = None) -> str:
        self.diary.rows_asked += len(rows)
        return await self._told(rows, _body(rows), headers=headers)

    async def _told(
        self,
        rows: list[list[int]],
        body: Any,
        *,
        headers: dict[str, str] | None = None,
        may_be_told: Refusals = OF_INNOCENTS,
    ) -> str:
        url = self._chain.url(self._chain.infer_path)
        async with self._chain.session.post(url, data=body, headers=headers) as response:
            text = await response.read()
        status = response.status
        self.diary.statuses[status] += 1
        if status == 200:
            found = json.loads(text)["outputs"][0]["data"]
            if not rows or found != [value for row in rows for value in row]:
                self.diary.complaints.append(f"{rows[:2]}... was answered {text[:200]!r}")
            self.diary.rows_answered += len(rows)
            self.diary.answered_at.append(time.monotonic())
            return "right"
        reason = response.headers.get("x-request-outcome")
        if reason not in may_be_told.get(status, ()):
            self.diary.complaints.append(f"{status}, {reason}, to {rows[:2]}: {text[:200]!r}")
        if status in BEFORE_ANYTHING and "retry-after" not in response.headers:
            self.diary.complaints.append(f"{status} does not say when to come back: {text[:200]!r}")
        return reason or str(status)


def _body(rows: list[list[int]]) -> bytes:
    flat = [value for row in rows for value in row]
    shape = [len(rows), len(rows[0])]
    entry = {"name": "x", "datatype": "INT64", "shape": shape, "data": flat}
    return json.dumps({"inputs": [entry]}).encode()
