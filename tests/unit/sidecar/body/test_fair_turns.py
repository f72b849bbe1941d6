"""The line in front of what does long works: its order, and the room that tenants share."""

import asyncio

from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.body.fair_threads import FairTurns


class Line:
    """One work at a time, each of which ends when the test says."""

    def __init__(self, room: int = 10) -> None:
        self.turns = FairTurns(at_once=lambda: 1, room=room)
        self.begun: list[str] = []
        self._doing: asyncio.Future[None] | None = None

    async def join(
        self, name: str, share: Share = NOBODY, *, size: int = 1
    ) -> "asyncio.Task[None]":
        """A work comes that takes one place."""
        turn = self.turns.take_turn(share, size, lambda: self._begin(name))
        task = asyncio.create_task(turn)
        await settled()
        return task

    def _begin(self, name: str) -> "asyncio.Future[None]":
        self.begun.append(name)
        self._doing = asyncio.get_running_loop().create_future()
        return self._doing

    async def end_one(self) -> None:
        assert self._doing is not None
        doing, self._doing = self._doing, None
        doing.set_result(None)
        await settled()

    async def order(self) -> list[str]:
        """The names of all works in the order in which they were begun."""
        while self._doing is not None:
            await self.end_one()
        return self.begun


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_work_that_is_being_done_has_a_place_too() -> None:
    line = Line(room=2)
    await line.join("a")
    assert line.turns.refusal(NOBODY, 1) is None
    await line.join("b")
    assert line.turns.refusal(NOBODY, 1) is Rejection.QUEUE_FULL
    await line.end_one()
    assert line.turns.refusal(NOBODY, 1) is None


async def test_a_flood_of_works_keeps_another_tenant_waiting_for_one_of_its_size() -> None:
    line = Line(room=40)
    for n in range(8):
        await line.join(f"flood {n}", Share("flood"), size=100)
    for n in range(12):
        await line.join(f"mine {n}", Share("mine"), size=10)
    names = await line.order()
    mine = [f"mine {n}" for n in range(12)]
    assert [name for name in names[1:12] if name in mine] == mine[:10]
    assert sorted(names) == sorted([f"flood {n}" for n in range(8)] + mine)


async def test_one_tenant_leaves_places_for_another() -> None:
    flood, line = Share("flood"), Line(room=16)
    while line.turns.refusal(flood, 1) is None:
        await line.join("flood", flood)
    assert line.turns.refusal(Share("mine"), 1) is None
    await line.join("mine", Share("mine"))
    assert line.turns.refusal(flood, 1) is Rejection.OVER_SHARE
    assert len(await line.order()) == 15
    assert line.turns.refusal(flood, 1) is None


async def test_a_caller_that_leaves_leaves_the_line() -> None:
    line = Line()
    await line.join("first")
    gone = await line.join("gone")
    await line.join("stays")
    gone.cancel()
    await settled()
    assert await line.order() == ["first", "stays"]


async def test_a_work_that_is_being_done_is_not_taken_back() -> None:
    line = Line(room=1)
    doing = await line.join("a")
    doing.cancel()
    await settled()
    assert line.turns.refusal(NOBODY, 1) is Rejection.QUEUE_FULL, "it is being done still"
    await line.end_one()
    assert line.turns.refusal(NOBODY, 1) is None
