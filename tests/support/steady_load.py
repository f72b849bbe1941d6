"""A bounded number of persistent connections that ask at a steady pace, and what they met."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp

Ask = Callable[[aiohttp.ClientSession, str, int, int], Awaitable[str]]
"""Asks a URL for the turn of a caller, both by number, and says "right" or what was wrong."""


def echo_body(*values: int) -> dict[str, Any]:
    """A v2 request to the simulated handler, which echoes."""
    entry = {"name": "x", "datatype": "INT64", "shape": [1, len(values)], "data": list(values)}
    return {"inputs": [entry]}


async def echoed(session: aiohttp.ClientSession, url: str, number: int, turn: int) -> str:
    """The simulated handler gives back what it gets."""
    async with session.post(url, json=echo_body(number, turn)) as response:
        if response.status != 200:
            return f"status {response.status}"
        document = json.loads(await response.read())
    return "right" if document["outputs"][0]["data"] == [number, turn] else "wrong"


class SteadyLoad:
    """`connections` callers, together `rate` requests a second, each answer checked."""

    def __init__(self, url: str, *, connections: int, rate: float, ask: Ask = echoed) -> None:
        self.outcomes: Counter[str] = Counter()
        self.failed: list[tuple[float, str]] = []
        """Everything that was not a right answer, with the second in which it was asked for."""
        self.rate = rate
        self._url = url
        self._asking = ask
        self._began = 0.0
        self._connections = connections

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["SteadyLoad"]:
        """Ask until the block ends; requests under way are awaited."""
        stop = asyncio.Event()
        self._began = time.monotonic()
        callers = [
            asyncio.create_task(self._caller(number, stop)) for number in range(self._connections)
        ]
        try:
            yield self
        finally:
            stop.set()
            await asyncio.gather(*callers)

    async def _caller(self, number: int, stop: asyncio.Event) -> None:
        # One connector each: a shared pool would balance what the test wants to see.
        connector = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(connector=connector) as session:
            turn = 0
            due = time.monotonic() + number / self.rate
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), max(0.0, due - time.monotonic()))
                    break
                turn += 1
                asked = self.seconds
                outcome = await self._ask(session, number, turn)
                self.outcomes[outcome] += 1
                if outcome != "right":
                    self.failed.append((asked, outcome))
                due = max(due + self._connections / self.rate, time.monotonic())

    async def _ask(self, session: aiohttp.ClientSession, number: int, turn: int) -> str:
        try:
            return await self._asking(session, self._url, number, turn)
        except (aiohttp.ClientError, OSError) as error:
            return type(error).__name__
