"""Inferences that go alone have their tenant's share of the server's time, and not more."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_sidecar.http.lone_turns import LoneTurns

pytestmark = pytest.mark.looptime

FLOOD, ODD = Share("flood"), Share("odd", weight=2.0)
CROWD = [Share("a"), Share("b"), Share("c")]


class Server:
    """Who went when, beside a queue that the test fills."""

    def __init__(self, at_once: int = 1) -> None:
        self.waiting: Collection[Share] = ()
        self._idle = asyncio.Event()
        self._idle.set()
        self.began: list[tuple[str, float]] = []
        self.clock = asyncio.get_running_loop().time
        self._since = self.clock()
        self.turns = LoneTurns(
            at_once=lambda: at_once,
            room=100,
            waiting=lambda: self.waiting,
            idle=self._idle.wait,
            clock=self.clock,
        )

    def waits(self, *shares: Share) -> None:
        self.waiting = shares
        if shares:
            self._idle.clear()
        else:
            self._idle.set()

    async def infer(self, share: Share, seconds: float = 1.0) -> None:
        async with self.turns.turn(share):
            self.began.append((share.tenant, round(self.clock() - self._since, 6)))
            await asyncio.sleep(seconds)

    @asynccontextmanager
    async def flooded(self, *shares: Share, seconds: float) -> AsyncIterator[None]:
        """For so long each of them always has two more to send."""
        flood = [asyncio.create_task(self._again(share)) for share in shares for _ in range(2)]
        yield
        await asyncio.sleep(seconds)
        for one in flood:
            one.cancel()
        await asyncio.gather(*flood, return_exceptions=True)

    async def _again(self, share: Share) -> None:
        while True:
            await self.infer(share)


async def test_where_nobody_else_waits_the_next_one_goes_at_once() -> None:
    server = Server()
    async with server.flooded(FLOOD, seconds=3.5):
        pass
    assert server.began == [("flood", 0), ("flood", 1), ("flood", 2), ("flood", 3)]


async def test_ones_own_batches_make_nobody_rest() -> None:
    server = Server()
    server.waits(FLOOD)
    async with server.flooded(FLOOD, seconds=2.5):
        pass
    assert server.began == [("flood", 0), ("flood", 1), ("flood", 2)]


async def test_each_of_the_others_may_have_as_much_before_the_next() -> None:
    server = Server()
    server.waits(*CROWD)
    async with server.flooded(FLOOD, seconds=8.5):
        pass
    assert server.began == [("flood", 0), ("flood", 4), ("flood", 8)]


async def test_a_larger_weight_rests_less() -> None:
    server = Server()
    server.waits(*CROWD)
    async with server.flooded(ODD, seconds=5.5):
        pass
    assert server.began == [("odd", 0), ("odd", 2.5), ("odd", 5)]


async def test_nobody_rests_for_others_that_have_gone() -> None:
    server = Server()
    server.waits(*CROWD)
    async with server.flooded(FLOOD, seconds=2.0):
        await asyncio.sleep(1.5)
        server.waits()
    assert server.began == [("flood", 0), ("flood", 1.5), ("flood", 2.5)]


async def test_a_rest_keeps_no_other_tenant_from_its_turn() -> None:
    server = Server()
    server.waits(*CROWD)
    async with server.flooded(FLOOD, seconds=0.5):
        pass
    await server.infer(Share("another"))
    assert server.began == [("flood", 0), ("another", 0.5)]


async def test_what_went_at_the_same_time_is_paid_for_together() -> None:
    server = Server(at_once=2)
    server.waits(CROWD[0])
    async with server.flooded(FLOOD, seconds=3.5):
        pass
    assert server.began == [("flood", 0), ("flood", 0), ("flood", 3), ("flood", 3)]


async def test_who_leaves_in_the_midst_of_an_inference_pays_for_it() -> None:
    server = Server()
    server.waits(CROWD[0])
    leaves = asyncio.create_task(server.infer(FLOOD, seconds=9.0))
    await asyncio.sleep(2.0)
    leaves.cancel()
    await server.infer(FLOOD)
    assert server.began == [("flood", 0), ("flood", 4)]
