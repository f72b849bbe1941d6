"""Callers who leave batches that a server of somebody else's is at work on."""

import asyncio
import contextlib
from dataclasses import replace
from statistics import median

import pytest

from batchedmodel_contract.manifest.batching import PolicyName
from batchedmodel_sidecar.backends.upstream.protocol import BackendRequest, Response
from support.upstream_world import SECONDS, SETTINGS, UpstreamWorld, in_front, now

pytestmark = pytest.mark.looptime

LONG = 15 * SECONDS


async def test_who_leaves_pays_for_the_time_that_the_server_took() -> None:
    """Or whoever leaves in time has the device for the price of a short row."""

    async def test(world: UpstreamWorld) -> None:
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


async def test_who_leaves_a_short_row_does_not_pay_for_the_long_one_behind_it() -> None:
    """Of what the next batch takes too long the longer rows are to blame, not who gave up."""

    async def test(world: UpstreamWorld) -> None:
        long = "L" * 400
        world.server.seconds = {long: LONG}
        for _ in range(5):
            await world.call("a", caller="good")
        leaving: list[asyncio.Task[str]] = []
        post = world.server.post

        async def leaves_when_sent(posting: BackendRequest, seconds: float) -> Response:
            if b'["i"]' in b"".join(posting.parts):
                asyncio.get_running_loop().call_later(SECONDS / 2, leaving[-1].cancel)
            return await post(posting, seconds)

        world.server.post = leaves_when_sent  # type: ignore[method-assign]

        async def asks_for_long_rows() -> None:
            while True:
                await world.call([long], caller="bad")

        async def asks() -> float:
            began = now()
            await world.call("a", caller="good")
            return now() - began

        async with asyncio.TaskGroup() as group:
            bad = [group.create_task(asks_for_long_rows()) for _ in range(4)]
            good = []
            for _ in range(50):
                leaving.append(group.create_task(world.call("i", caller="good")))
                await asyncio.wait([leaving[-1]])
                await asyncio.sleep(2 * SECONDS)
                good += [group.create_task(asks()) for _ in range(8)]
                await asyncio.sleep(20 * SECONDS)
            for one in bad:
                one.cancel()
        assert median(one.result() for one in good) < 2 * LONG

    await in_front(test, replace(SETTINGS, policy=PolicyName.GREEDY, max_batch_size=1))
