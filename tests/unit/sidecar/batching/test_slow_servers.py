"""A server that is slow and sound: no batch is cut off for what its members' time leaves."""

import asyncio
from dataclasses import replace
from string import ascii_lowercase

import pytest

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile, ProfilePoint
from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.outcomes import ReleaseReason
from batchedmodel_scheduling.batching.decisions import Batch, BatchId
from batchedmodel_scheduling.batching.policy import Pipeline
from batchedmodel_scheduling.latency.batch_times import BatchTimes
from batchedmodel_scheduling.queue.items import Item, ItemId
from batchedmodel_sidecar.batching.in_flight import patience
from batchedmodel_sidecar.errors import Expired
from support.upstream_world import UpstreamWorld, in_front, poisoned

pytestmark = pytest.mark.looptime

SLOW = 7.0  # seconds of each batch
SETTINGS = BatchSettings(
    policy=PolicyName.GREEDY, max_wait_seconds=0.0, max_batch_size=1, request_timeout_seconds=60.0
)


async def overloaded(world: UpstreamWorld) -> int:
    """Callers come twice as fast as they can be served; how many are told that it was too late."""
    calls = [asyncio.create_task(world.call("a"))]
    for letter in ascii_lowercase[1:]:
        await asyncio.sleep(SLOW / 2)
        calls.append(asyncio.create_task(world.call(letter)))
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(end, str | Expired) for end in ends)
    return sum(isinstance(end, Expired) for end in ends)


async def test_no_batch_of_a_server_that_is_slow_is_cut_off_because_its_members_waited() -> None:
    async def test(world: UpstreamWorld) -> None:
        world.server.seconds = dict.fromkeys(ascii_lowercase, SLOW)
        assert await overloaded(world) > 3
        assert world.server.cut_off == 0
        assert not world.link.status.stuck
        assert world.batcher.closed is None

    await in_front(test, SETTINGS)


def test_what_a_batch_is_known_to_take_counts_where_callers_have_less_time() -> None:
    """They may get nothing of it; but it is no reason to restart a server."""
    points = tuple(ProfilePoint(rows=rows, length=1, seconds=SLOW) for rows in (1, 8))
    profile = Profile(cost_rule=CostRule.ROWS, device="slow", points=points)
    item = Item(id=ItemId(1), key=None, length=1, arrived=0.0, due=0.5, deadline=0.5)
    batch = Batch(id=BatchId(1), items=(item,), reason=ReleaseReason.IDLE)
    hasty = replace(SETTINGS, request_timeout_seconds=0.5)
    known, unknown = (Pipeline(BatchTimes(one)) for one in (profile, None))
    assert patience(batch, hasty, 0.4, known) > 2 * SLOW, "it may lie behind another one"
    assert patience(batch, hasty, 0.4, unknown) == 5.5


async def test_a_server_that_hangs_is_found_out_after_the_time_of_a_caller() -> None:
    async def test(world: UpstreamWorld) -> None:
        world.server.seconds = {"a": 3600.0}
        with pytest.raises(Expired):
            await world.call("a")
        await asyncio.sleep(4.9)
        assert world.server.cut_off == 0
        await asyncio.sleep(0.2)
        assert world.server.cut_off == 1

    await in_front(test, SETTINGS)


async def test_parts_of_a_batch_that_was_refused_have_as_much_time_each() -> None:
    async def test(world: UpstreamWorld) -> None:
        world.server.seconds = dict.fromkeys("pbcd", 18.0)
        world.server.reaction = poisoned
        became = await asyncio.gather(*map(world.call, "pbcd"), return_exceptions=True)
        # The whole and three parts: 72 s, of which the last began before the callers' time ended.
        assert len(world.server.sent) == 4
        assert all(isinstance(end, Expired) for end in became)
        await asyncio.sleep(SLOW + 5)
        assert world.server.cut_off == 0

    await in_front(test, replace(SETTINGS, max_batch_size=4, max_wait_seconds=0.1))
