"""The state of the model and those who follow it."""

import asyncio

import orjson

from batchedmodel_contract.processes.server_api import ModelState
from batchedmodel_model_server.lifecycle.state import Lifecycle


async def test_a_follower_sees_the_present_state_and_every_change() -> None:
    lifecycle = Lifecycle()
    lifecycle.enter(ModelState.WARMING, "warming")
    stream = lifecycle.follow()
    assert (await anext(stream)).state is ModelState.WARMING
    lifecycle.enter(ModelState.READY, "ready")
    lifecycle.enter(ModelState.DRAINING, "told to stop")
    lifecycle.close()
    assert [event.state async for event in stream] == [ModelState.READY, ModelState.DRAINING]


async def test_nothing_comes_after_the_end() -> None:
    lifecycle = Lifecycle()
    lifecycle.end("told to stop")
    lifecycle.enter(ModelState.READY, "loaded at last")
    assert lifecycle.state is ModelState.DRAINING


async def test_a_follower_that_leaves_is_forgotten() -> None:
    lifecycle = Lifecycle()

    async def follow() -> None:
        async for _ in lifecycle.follow():
            pass

    follower = asyncio.create_task(follow())
    await asyncio.sleep(0)
    follower.cancel()
    await asyncio.wait([follower])
    lifecycle.enter(ModelState.READY, "ready")
    lifecycle.close()
    assert follower.cancelled()


async def test_a_reason_can_be_sent_whatever_it_quotes() -> None:
    """A file's name, a tensor's or a handler's error may hold half of a surrogate pair."""
    lifecycle = Lifecycle()
    lifecycle.enter(ModelState.FAILED, "no \ud800\x1b[31m here\n")
    event = await anext(lifecycle.follow())
    assert orjson.loads(orjson.dumps(event.to_mapping()))["detail"] == "no \\ud800\\x1b[31m here\\n"


async def test_a_reason_without_end_is_cut_short() -> None:
    lifecycle = Lifecycle()
    lifecycle.enter(ModelState.FAILED, "config.json: architectures: " + "A" * 15_000_000)
    assert len(lifecycle.event.detail) < 10_000
