"""Large answers of a server of somebody else's, which are divided while it has the next batch."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from batchedmodel_sidecar.backends.upstream.protocol import BackendProtocol, Response, SplitReply
from batchedmodel_sidecar.calls import Row
from batchedmodel_sidecar.errors import Unserved
from batchedmodel_sidecar.helper.shared_memory import SharedMemory
from support.upstream_world import SECONDS, SETTINGS, Rows, UpstreamWorld, in_front, said, well

pytestmark = pytest.mark.looptime

CUT = 0.1
"""Seconds that it takes to divide an answer."""
FULL = replace(SETTINGS, max_batch_size=4, max_concurrent_batches=1)


class SlowHelper:
    """Divides answers in another process, as it seems."""

    def __init__(self) -> None:
        self.dividing = 0
        self._one = asyncio.Lock()

    async def dealt(
        self, protocol: BackendProtocol, response: Response, rows: Sequence[Row], alone: bool
    ) -> SplitReply:
        self.dividing += 1
        try:
            async with self._one:
                await asyncio.sleep(CUT)
        finally:
            self.dividing -= 1
            if response.memory is not None:
                response.memory.close()
        return protocol.dealt(response, rows, alone=alone)


def large(response: Response) -> Response:
    return replace(response, memory=SharedMemory())


def largely_well(rows: Rows) -> Response:
    return large(well(rows))


async def beside(world: UpstreamWorld, helper: SlowHelper) -> None:
    """The helper divides the answers from now on."""
    link: Any = world.link
    link._deal = helper.dealt


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_server_has_its_next_batch_while_a_large_answer_is_divided() -> None:
    async def test(world: UpstreamWorld) -> None:
        helper = SlowHelper()
        await beside(world, helper)
        world.server.reaction = largely_well
        began = now()
        first = asyncio.create_task(world.calls("abcd"))
        await asyncio.sleep(SECONDS / 2)
        second = asyncio.create_task(world.calls("efgh"))
        await asyncio.sleep(4 * SECONDS)
        assert ["".join(rows) for rows in world.server.sent] == ["abcd", "efgh"]
        assert not first.done()
        assert await first == {row: row for row in "abcd"}
        assert await second == {row: row for row in "efgh"}
        assert now() - began < 2 * CUT + 3 * SECONDS
        assert world.server.most_running == 1

    await in_front(test, FULL)


async def test_one_answer_is_divided_at_a_time_and_the_server_waits_for_a_slow_helper() -> None:
    async def test(world: UpstreamWorld) -> None:
        helper = SlowHelper()
        await beside(world, helper)
        world.server.reaction = largely_well
        tasks = [asyncio.create_task(world.calls(f"{n}" * 4)) for n in range(6)]
        await asyncio.sleep(2.5 * CUT)
        # Two are divided, one is being divided, and one waits for that in the server's place.
        assert len(world.server.sent) == 4
        assert helper.dividing == 2
        for task in tasks:
            await task
        assert world.server.most_running == 1

    await in_front(test, FULL)


async def test_where_a_large_answer_makes_no_sense_the_search_takes_its_turn_at_the_server() -> (
    None
):
    def odd(rows: Rows) -> Response:
        return large(said(200, {"predictions": ["too few"]})) if "p" in rows else largely_well(rows)

    async def test(world: UpstreamWorld) -> None:
        await beside(world, SlowHelper())
        world.server.reaction = odd
        first = asyncio.create_task(world.calls("pbcd"))
        await asyncio.sleep(SECONDS / 2)
        others = [asyncio.create_task(world.calls(f"{n}" * 4)) for n in range(4)]
        became = await first
        assert isinstance(became["p"], str) or became["p"].status == 502
        assert [became[row] for row in "bcd"] == ["b", "c", "d"]
        for task in others:
            assert not any(isinstance(one, Unserved) for one in (await task).values())
        assert world.server.most_running == 1

    await in_front(test, FULL)


async def test_who_leaves_while_its_answer_is_divided_takes_nobody_along() -> None:
    async def test(world: UpstreamWorld) -> None:
        helper = SlowHelper()
        await beside(world, helper)
        world.server.reaction = largely_well
        leaves = [asyncio.create_task(world.call(row, caller=row)) for row in "abcd"]
        await asyncio.sleep(SECONDS + CUT / 2)
        stays = asyncio.create_task(world.calls("efgh"))
        assert helper.dividing == 1
        for task in leaves:
            task.cancel()
        await asyncio.sleep(0)
        assert await stays == {row: row for row in "efgh"}
        assert helper.dividing == 0
        assert await world.call("i") == "i"

    await in_front(test, FULL)
