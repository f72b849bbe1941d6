"""Calls of very many rows among single ones, and what a call is told of its way."""

import asyncio
from dataclasses import replace

import pytest

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_sidecar.body.byte_budget import ByteBudget, Hold
from batchedmodel_sidecar.calls import Answer
from batchedmodel_sidecar.errors import Unserved
from support.sidecar_world import FIXED, PER_ROW, World, call_of, rows_of, world

pytestmark = pytest.mark.looptime

SETTINGS = BatchSettings(policy=PolicyName.GREEDY, max_batch_size=8)


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("policy", list(PolicyName))
async def test_a_long_list_and_single_calls_are_served_in_turns(policy: PolicyName) -> None:
    w = world(replace(SETTINGS, policy=policy, max_queue_size=4096))
    batch = FIXED + 8 * PER_ROW
    long = w.send(*(b"%d" % n for n in range(2000)))
    await asyncio.sleep(batch / 2)
    for _ in range(10):
        began = now()
        assert rows_of(await w.send(b"single")) == [b"single"]
        # Two batches on their way, two that the policy has seen, its own.
        assert now() - began < 5.5 * batch
    assert not long.done()
    assert rows_of(await long) == [b"%d" % n for n in range(2000)]
    assert w.server.batches.count(8) >= 245, "the list fills its batches all the same"


async def test_all_rows_of_a_list_take_room_in_the_queue() -> None:
    w = world(replace(SETTINGS, max_queue_size=100))
    long = w.send(*(b"%d" % n for n in range(90)), tenant="t")
    await asyncio.sleep(FIXED / 2)
    assert w.ledger.rows_waiting == 90 - 16  # of the 88 that one tenant alone may have
    task = w.send(*(b"x" for _ in range(15)), tenant="t")
    with pytest.raises(Exception, match="queue is full"):
        await task
    assert len(rows_of(await w.send(*(b"x" for _ in range(14)), tenant="t"))) == 14
    assert len(rows_of(await long)) == 90


async def asked(here: World, rows: list[bytes], held: Hold) -> Answer:
    pending = here.batcher.offer(call_of(rows))
    pending.hold = held
    return await pending


async def test_a_list_whose_answered_rows_have_no_memory_ends_and_harms_nobody() -> None:
    w, budget = world(SETTINGS), ByteBudget(1000)
    # Whoever holds nothing beside others is answered, however little memory is left.
    budget.hold(Share("others")).regain(960)
    held = budget.hold(Share("list"))
    rows = [b"%02d" % n for n in range(50)]
    long = asyncio.create_task(asked(w, rows, held))
    others = [w.send(b"single") for _ in range(3)]
    with pytest.raises(Unserved, match="no room for all rows") as told:
        await long
    assert (told.value.status, told.value.answered) == (503, False)
    assert held.kept == 40
    assert [rows_of(await one) for one in others] == [[b"single"]] * 3
    assert w.ledger.rows_live == 0
    assert w.ledger.rows_waiting == 0
    held.release()
    rows = rows[:20]
    assert rows_of(await asked(w, rows, held)) == rows
    assert held.kept < 40, "the rows that are answered last wait for nothing"


async def test_a_list_that_cannot_be_in_time_is_refused_whole() -> None:
    w = world(replace(SETTINGS, policy=PolicyName.DEADLINE, request_timeout_seconds=1.0))
    rows = [b"x"] * 1000  # 125 full batches of 18 ms
    with pytest.raises(Exception, match="would not be answered within"):
        await w.send(*rows)
    assert w.server.batches == []


async def test_a_list_that_several_workers_answer_in_time_is_taken() -> None:
    one = replace(SETTINGS, policy=PolicyName.DEADLINE, request_timeout_seconds=1.0)
    w = world(replace(one, max_concurrent_batches=3))
    w.server.side_by_side = True
    assert len(rows_of(await w.send(*[b"x"] * 1000))) == 1000


async def test_what_a_call_met_is_told() -> None:
    w = world(SETTINGS)
    first = w.send(b"a")
    await asyncio.sleep(FIXED / 2)
    second = w.send(b"b", b"c")
    timing = (await first).timing
    assert timing is not None
    assert (timing.batch_size, timing.queue_seconds) == (1, 0.0)
    assert timing.model_seconds == pytest.approx(FIXED + PER_ROW)
    timing = (await second).timing
    assert timing is not None
    assert timing.batch_size == 2
    assert timing.queue_seconds == pytest.approx(FIXED / 2 + PER_ROW, rel=0.3)
