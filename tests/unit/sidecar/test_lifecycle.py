"""The steps of a drain, in the order in which a pod is taken out of its Service."""

import asyncio
from dataclasses import replace

import pytest

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.processes.sidecar_api import MOST_DRAIN_DELAYS
from batchedmodel_sidecar.errors import Unserved
from batchedmodel_sidecar.lifecycle import BEGINS_SECONDS, FOLLOWED_SECONDS, DrainEnd, Lifecycle
from batchedmodel_sidecar.model import LinkStatus
from support.sidecar_world import FIXED, MODEL, PER_ROW, World, rows_of, world

pytestmark = pytest.mark.looptime

DELAY = 5.0
LIMIT = 20.0
HELD = BatchSettings(policy=PolicyName.WINDOW, max_batch_size=8, max_wait_seconds=10.0)
"""What waits is held for company, for longer than the delay."""


def now() -> float:
    return asyncio.get_running_loop().time()


def lifecycle_of(w: World) -> Lifecycle:
    status = LinkStatus(model=MODEL, reason="")
    return Lifecycle(
        w.batcher, model=lambda: status, watch=lambda closely: None, delay=DELAY, limit=LIMIT
    )


async def test_work_is_taken_until_others_know_and_then_nothing_waits_for_company() -> None:
    w = world(HELD)
    lifecycle = lifecycle_of(w)
    drain = lifecycle.begin_drain()
    await asyncio.sleep(DELAY - 1.0)
    assert lifecycle.draining, "not ready from the beginning"
    assert not lifecycle.refusing, "who has not heard of it yet is served"
    late = w.send(b"late")
    assert await drain is DrainEnd.EMPTY
    assert lifecycle.refusing
    assert rows_of(await late) == [b"late"]
    assert now() == pytest.approx(DELAY + FIXED + PER_ROW), "flushed when the delay was over"


async def test_work_is_taken_until_none_has_come_for_the_delay() -> None:
    lifecycle = lifecycle_of(world(HELD))
    drain = lifecycle.begin_drain()
    for _ in range(2):
        await asyncio.sleep(DELAY - 1.0)
        assert lifecycle.takes_calls()
    assert await drain is DrainEnd.EMPTY
    assert now() == 2 * (DELAY - 1.0) + DELAY
    assert not lifecycle.takes_calls()


async def test_callers_that_never_hear_of_a_drain_are_refused_in_the_end() -> None:
    lifecycle = lifecycle_of(world(HELD))
    lifecycle.begin_drain()
    for _ in range(int(MOST_DRAIN_DELAYS * DELAY)):
        assert lifecycle.takes_calls()
        await asyncio.sleep(1.0)
    assert not lifecycle.takes_calls()


async def test_what_is_not_done_at_the_limit_ends_the_drain_and_is_told_so() -> None:
    w = world(replace(HELD, request_timeout_seconds=60.0))
    w.server.free_at = now() + 50.0
    waiting = w.send(b"a")
    assert await lifecycle_of(w).begin_drain() is DrainEnd.LIMIT
    assert now() == DELAY + LIMIT
    w.batcher.give_up("this pod is stopping and its time is over")
    with pytest.raises(Unserved, match="its time is over") as told:
        await waiting
    assert (told.value.status, told.value.retry_after) == (503, 1.0)


@pytest.mark.parametrize(
    ("after", "end"), [(1.0, DrainEnd.TAKEN_BACK), (DELAY + 1.0, DrainEnd.EMPTY)]
)
async def test_a_drain_by_hook_is_taken_back_when_the_model_returns(
    after: float, end: DrainEnd
) -> None:
    w = world(HELD)
    lifecycle = lifecycle_of(w)
    drain = lifecycle.begin_drain()
    await asyncio.sleep(after)
    lifecycle.resume()
    assert await drain is end
    assert not lifecycle.draining
    assert not lifecycle.refusing
    began = now()
    await w.send(b"a")
    assert now() - began > HELD.max_wait_seconds, "held for company again"


@pytest.mark.parametrize("delay", [0.0, DELAY])
async def test_a_list_of_which_a_part_has_left_waits_no_longer_than_that_for_a_model_that_is_gone(
    delay: float,
) -> None:
    w = world(replace(HELD, policy=PolicyName.GREEDY))
    status = LinkStatus(model=MODEL, reason="")
    lifecycle = Lifecycle(
        w.batcher, model=lambda: status, watch=lambda closely: None, delay=delay, limit=LIMIT
    )
    long = w.send(*[b"%d" % n for n in range(40)])
    await asyncio.sleep(FIXED / 2)
    single = w.send(b"single")
    drain = asyncio.create_task(lifecycle.terminate())
    await asyncio.sleep(FIXED / 10)
    status = LinkStatus(model=None, reason="gone")
    w.batcher.detach()
    lifecycle.model_lost()
    for task in (single, long):
        with pytest.raises(Unserved, match="the model is gone and this pod is stopping") as told:
            await task
        assert (told.value.status, told.value.retry_after) == (503, 1.0)
    assert await drain is DrainEnd.EMPTY
    # What the model had is awaited: an answer may have been all that a call lacked.
    assert now() == pytest.approx(max(delay, 2 * (FIXED + 8 * PER_ROW)), abs=FIXED)


async def test_a_drain_by_a_signal_is_not_taken_back() -> None:
    lifecycle = lifecycle_of(world(HELD))
    ended = asyncio.create_task(lifecycle.terminate())
    await asyncio.sleep(1.0)
    lifecycle.resume()
    assert lifecycle.draining
    assert await ended is DrainEnd.EMPTY
    assert lifecycle.refusing


async def test_the_models_hook_waits_for_the_drain_that_the_sidecars_hook_begins_later() -> None:
    w = world(HELD)
    lifecycle = lifecycle_of(w)
    hook = asyncio.create_task(lifecycle.drained())
    await asyncio.sleep(BEGINS_SECONDS - 1.0)
    waiting = w.send(b"a")
    lifecycle.begin_drain()
    assert await hook is DrainEnd.EMPTY
    assert now() == pytest.approx(BEGINS_SECONDS - 1.0 + DELAY + FIXED + PER_ROW)
    assert rows_of(await waiting) == [b"a"]


async def test_a_model_that_is_restarted_alone_is_not_drained_and_held_up_no_longer_than_that() -> (
    None
):
    w = world(HELD)
    lifecycle = lifecycle_of(w)
    assert await lifecycle.drained() is DrainEnd.NONE
    assert now() == BEGINS_SECONDS
    assert not lifecycle.draining


async def test_the_hook_of_a_model_that_is_gone_waits_for_nothing() -> None:
    gone = LinkStatus(model=None, reason="gone")
    lifecycle = Lifecycle(
        world(HELD).batcher,
        model=lambda: gone,
        watch=lambda closely: None,
        delay=DELAY,
        limit=LIMIT,
    )
    assert await lifecycle.drained() is DrainEnd.NONE
    assert now() == 0.0


async def test_a_drain_that_nobody_follows_by_an_end_is_taken_back() -> None:
    w = world(HELD)
    lifecycle = lifecycle_of(w)
    assert await lifecycle.begin_drain() is DrainEnd.EMPTY
    await asyncio.sleep(LIMIT + FOLLOWED_SECONDS - 1.0)
    assert lifecycle.refusing, "a pod that is ending is given all its time"
    await asyncio.sleep(2.0)
    assert not lifecycle.draining
    assert rows_of(await w.send(b"a")) == [b"a"]


async def test_a_pod_that_is_ending_stays_drained() -> None:
    lifecycle = lifecycle_of(world(HELD))
    await lifecycle.begin_drain()
    await lifecycle.terminate()
    await asyncio.sleep(10 * (LIMIT + FOLLOWED_SECONDS))
    assert lifecycle.refusing
