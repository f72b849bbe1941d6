"""Whose fault a failure is: a probe with what was answered before, and rests of single keys."""

import asyncio
import json

import pytest

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_scheduling.queue.items import Item, ItemId
from batchedmodel_scheduling.queue.set_aside import RestingItems
from batchedmodel_sidecar.errors import Unserved
from support.upstream_world import SECONDS, Rows, UpstreamWorld, in_front, now, said, well

pytestmark = pytest.mark.looptime

SINGLE = BatchSettings(
    policy=PolicyName.GREEDY, max_batch_size=1, max_concurrent_batches=1, max_queue_size=64
)
GATEWAY = "192.0.2.1"


async def failed(world: UpstreamWorld, rows: str) -> None:
    """One call after the other, all from one address."""
    for row in rows:
        with pytest.raises(Unserved):
            await world.call(row, caller=GATEWAY)


async def keyed(world: UpstreamWorld, row: str, key: str) -> str:
    """What is answered to a row in a request with a header of its own."""
    model = world.link.status.model
    assert model is not None
    adapter = world.protocol.public_protocol("/v1/models/m:predict", f"?k={key}", {})
    parsed = await adapter.parse(json.dumps({"instances": [row]}).encode(), None, model, 4096)
    answer = await world.batcher.offer(parsed.call)
    return str(json.loads(bytes(answer.rows[0][0].data)))


async def test_behind_one_address_an_ill_server_opens_the_circuit_after_five_failures() -> None:
    async def test(world: UpstreamWorld) -> None:
        assert await world.call("w", caller=GATEWAY) == "w"
        world.server.reaction = lambda rows: said(502, "broken")
        await failed(world, "abcde")
        assert world.batcher.closed is None, "only one caller says so"
        await asyncio.sleep(2 * SECONDS)
        assert world.server.sent == [["w"], ["a"], ["b"], ["c"], ["d"], ["e"], ["w"]]
        assert world.batcher.closed is not None

    await in_front(test, SINGLE)


async def test_what_fails_beside_a_probe_that_is_answered_is_the_callers_own() -> None:
    async def test(world: UpstreamWorld) -> None:
        assert await world.call("w", caller=GATEWAY) == "w"
        world.server.reaction = lambda rows: well(rows) if rows == ["w"] else said(502, "no")
        began = now()
        await failed(world, "abcde" * 20)
        await asyncio.sleep(2 * SECONDS)
        assert world.batcher.closed is None
        probes = world.server.sent[1:].count(["w"])
        assert 1 <= probes <= 1 + (now() - began), "one a second at most"

    await in_front(test, SINGLE)


async def test_without_anything_that_was_answered_nothing_is_sent_and_nothing_opens() -> None:
    async def test(world: UpstreamWorld) -> None:
        world.server.reaction = lambda rows: said(502, "broken")
        await failed(world, "abcdefgh")
        await asyncio.sleep(2 * SECONDS)
        assert len(world.server.sent) == 8
        assert world.batcher.closed is None

    await in_front(test, SINGLE)


async def test_a_bad_trial_keeps_a_server_that_is_well_again_from_nobody() -> None:
    async def test(world: UpstreamWorld) -> None:
        assert await world.call("w") == "w"
        world.server.reaction = lambda rows: said(502, "broken")
        await failed(world, "abcde")
        await asyncio.sleep(1.1)
        world.server.reaction = lambda rows: said(502, "no") if rows == ["p"] else well(rows)
        await failed(world, "p")
        await asyncio.sleep(2 * SECONDS)
        assert world.batcher.closed is None
        assert await world.call("x") == "x"

    await in_front(test, SINGLE)


async def test_a_row_of_another_key_does_not_wait_while_one_rests() -> None:
    async def test(world: UpstreamWorld) -> None:
        reacted: list[Rows] = []

        def react(rows: Rows) -> object:
            reacted.append(rows)
            busy = said(429, "later", **{"Retry-After": "5"})
            return busy if rows[0] in "pq" and now() < began + 4 else well(rows)

        began = now()
        world.server.reaction = react  # type: ignore[assignment]  # of the kinds that it knows
        resting = asyncio.create_task(keyed(world, "p", "bad"))
        await asyncio.sleep(2 * SECONDS)
        behind = asyncio.create_task(keyed(world, "q", "bad"))
        for row in "abc":
            asked = now()
            assert await keyed(world, row, "good") == row
            assert now() - asked < 3 * SECONDS
        assert not behind.done()
        assert (await resting, await behind) == ("p", "q")
        assert now() - began == pytest.approx(5.0, abs=5 * SECONDS)
        assert reacted[0] == ["p"]
        assert reacted.count(["q"]) == 1, "it waited with its key"

    await in_front(test, SINGLE)


async def test_the_server_rests_when_a_probe_is_told_the_same() -> None:
    async def test(world: UpstreamWorld) -> None:
        assert await keyed(world, "w", "good") == "w"
        began = now()
        busy = said(503, "later", **{"Retry-After": "2"})
        world.server.reaction = lambda rows: busy if now() < began + 1 else well(rows)
        other = asyncio.create_task(keyed(world, "p", "bad"))
        await asyncio.sleep(4 * SECONDS)
        sent = len(world.server.sent)
        assert world.server.sent[-1] == ["w"]
        third = asyncio.create_task(keyed(world, "a", "third"))
        await asyncio.sleep(1.0)
        assert len(world.server.sent) == sent, "it has asked to be left alone"
        assert (await other, await third) == ("p", "a")

    await in_front(test, SINGLE)


async def test_whoever_waits_with_a_resting_key_takes_room_and_may_leave() -> None:
    async def test(world: UpstreamWorld) -> None:
        busy = said(429, "later", **{"Retry-After": "5"})
        world.server.reaction = lambda rows: busy if rows[0] == "p" else well(rows)
        calls = [asyncio.create_task(keyed(world, "p", "bad")) for _ in range(64)]
        await asyncio.sleep(3 * SECONDS)
        assert world.batcher.refusal() is not None, "the queue is full of them"
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert world.batcher.refusal() is None
        assert await keyed(world, "a", "good") == "a"

    await in_front(test, SINGLE)


def test_resting_keys_of_one_tenant_end_no_rest_of_another() -> None:
    resting = RestingItems[Item]()
    resting.rest("key", "a", 1.0)
    for key in range(100):
        resting.rest(key, "b", 2.0)
    assert resting.rests("key", "a")


def test_of_too_many_resting_keys_of_a_tenant_the_one_that_ends_first_ends_now() -> None:
    resting = RestingItems[Item]()
    for key in range(257):
        resting.rest(key, "", 400.0 - key)
    assert not resting.rests(256, "")
    assert sum(resting.rests(key, "") for key in range(257)) == 256
    assert resting.changes_at() == 400.0 - 255


def test_rows_of_a_key_whose_rest_was_cut_short_wait_no_longer() -> None:
    resting = RestingItems[Item]()
    resting.rest("first", "", 1.0)
    row = Item(id=ItemId(1), key="first", length=1, arrived=0.0, due=1.0, deadline=1.0)
    assert resting.takes(row)
    for key in range(256):
        resting.rest(key, "", 2.0)
    assert resting.woken(0.0) == [row]
    assert resting.woken(9.0) == []
