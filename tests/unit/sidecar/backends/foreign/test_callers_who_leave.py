"""Callers who leave batches that a server of somebody else's is at work on."""

import asyncio
import contextlib
from dataclasses import replace
from statistics import median

import pytest

from batchedmodel_contract.manifest.spec import PolicyName
from support.foreign_world import SECONDS, SETTINGS, Foreigners, in_front, now

pytestmark = pytest.mark.looptime

LONG = 15 * SECONDS


async def test_who_leaves_pays_for_the_time_that_the_server_took() -> None:
    """Or whoever leaves in time has the device for the price of a short row."""

    async def test(world: Foreigners) -> None:
        world.server.seconds = {"L": LONG}
        for _ in range(5):
            await world.call("a", caller="good")

        async def leaves_again_and_again() -> None:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.9 * LONG):
                        await world.call("L", caller="bad")

        async def asks() -> float:
            began = now()
            assert await world.call("a", caller="good") == "a"
            return now() - began

        async with asyncio.TaskGroup() as group:
            bad = [group.create_task(leaves_again_and_again()) for _ in range(4)]
            good = []
            for _ in range(100):
                good.append(group.create_task(asks()))
                await asyncio.sleep(3 * SECONDS)
            for one in bad:
                one.cancel()
        assert median(one.result() for one in good) < LONG

    await in_front(test, replace(SETTINGS, policy=PolicyName.GREEDY, max_batch_size=1))
