"""Inferences that go alone have their tenant's share of the server's time, and not more."""

import asyncio
from collections import Counter
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
        self.asking: Collection[Share] = ()
        self.began: list[tuple[str, float]] = []
        self.clock = asyncio.get_running_loop().time
        self._since = self.clock()
        self.turns = LoneTurns(
            at_once=lambda: at_once,
            asking=lambda: self.asking,
            clock=self.clock,
        )

    def asks(self, *shares: Share) -> None:
        self.asking = shares

    async def infer(self, share: Share, seconds: float = 1.0) -> None:
        async def work() -> None:
            self.began.append((share.tenant, round(self.clock() - self._since, 2)))
            await asyncio.sleep(seconds)

        await self.turns.during(share, work)

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
    server.asks(FLOOD)
    async with server.flooded(FLOOD, seconds=2.5):
        pass
    assert server.began == [("flood", 0), ("flood", 1), ("flood", 2)]


async def test_each_of_the_others_may_have_as_much_before_the_next() -> None:
    server = Server()
    server.asks(*CROWD)
    async with server.flooded(FLOOD, seconds=8.5):
        pass
    assert server.began == [("flood", 0), ("flood", 4), ("flood", 8)]


async def test_a_larger_weight_rests_less() -> None:
    server = Server()
    server.asks(*CROWD)
    async with server.flooded(ODD, seconds=5.5):
        pass
    assert server.began == [("odd", 0), ("odd", 2.5), ("odd", 5)]


async def test_nobody_rests_for_others_that_have_gone() -> None:
    server = Server()
    server.asks(*CROWD)
    async with server.flooded(FLOOD, seconds=2.0):
        await asyncio.sleep(1.5)
        server.asks()
    (_, first), (_, second), (_, third) = server.began
    assert first == 0
    assert 1.5 <= second < 2.5, "it is looked at again every second"
    assert third == second + 1


async def test_a_rest_is_as_long_as_others_are_many_meanwhile() -> None:
    server = Server()
    server.asks(*[Share(f"c{number}") for number in range(100)])
    async with server.flooded(FLOOD, seconds=60.0):
        await asyncio.sleep(1.5)
        server.asks(CROWD[0], FLOOD)
    (_, first), (_, second), *_ = server.began
    assert (first, second < 30) == (0, True), "not the hundred seconds of those who left"


async def test_a_rest_keeps_no_other_tenant_from_its_turn() -> None:
    server = Server()
    server.asks(*CROWD)
    async with server.flooded(FLOOD, seconds=1.5):
        pass
    await server.infer(Share("another"))
    assert server.began == [("flood", 0), ("another", 1.5)]


async def test_who_goes_alone_for_long_leaves_the_time_to_who_goes_for_short() -> None:
    server = Server()

    async def short() -> None:
        while True:
            await server.infer(Share("short"), seconds=0.05)

    waits = [asyncio.create_task(short()) for _ in range(2)]
    async with server.flooded(FLOOD, seconds=20.0):
        pass
    for one in waits:
        one.cancel()
    times = Counter(name for name, _ in server.began)
    assert 0.7 < times["short"] * 0.05 / times["flood"] < 1.4


async def test_what_went_at_the_same_time_is_paid_for_together() -> None:
    server = Server(at_once=2)
    server.asks(CROWD[0])
    async with server.flooded(FLOOD, seconds=3.5):
        pass
    assert server.began == [("flood", 0), ("flood", 0), ("flood", 3), ("flood", 3)]


async def test_who_leaves_has_its_turn_until_the_server_is_done_and_pays_for_all_of_it() -> None:
    server = Server()
    server.asks(CROWD[0])
    leaves = asyncio.create_task(server.infer(FLOOD, seconds=9.0))
    await asyncio.sleep(0.1)
    leaves.cancel()
    another = asyncio.create_task(server.infer(Share("another"), seconds=0.5))
    await server.infer(FLOOD)
    await another
    began = dict(server.began[1:])
    assert began["another"] == 9
    assert began["flood"] >= 18


async def test_a_rest_is_told_to_who_comes() -> None:
    server = Server()
    server.asks(*CROWD)
    assert server.turns.rest(FLOOD) == 0
    await server.infer(FLOOD)
    assert server.turns.rest(FLOOD) == pytest.approx(3)
    await asyncio.sleep(1.0)
    assert server.turns.rest(FLOOD) == pytest.approx(2)
    server.asks()
    assert server.turns.rest(FLOOD) == 0
