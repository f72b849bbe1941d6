"""Turns between tenants: whose batch goes first, and who pays for what it takes."""

import asyncio
import inspect
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from statistics import quantiles

import pytest

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile, ProfilePoint
from batchedmodel_contract.manifest.batching import PolicyName
from batchedmodel_scheduling.queue.ready_queue import Lane, QueuedItem, ReadyQueue
from support.sidecar_world import FIXED, MODEL, PER_ROW, world
from support.tenants import BATCH, LIMIT, POLICIES, SETTINGS, now

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize(("rule", "times"), [(CostRule.PADDED, 3.0), (CostRule.PACKED, 1.5)])
async def test_who_makes_others_be_padded_pays_for_it(rule: CostRule, times: float) -> None:
    """A long row costs one and a half short ones, and so does a short one beside it if padded."""
    points = tuple(
        ProfilePoint(rows=rows, length=length, seconds=factor * rows * PER_ROW)
        for rows in (1, 4)
        for length, factor in ((2, 1.0), (7, 1.5))
    )
    w = world(replace(SETTINGS, policy=PolicyName.GREEDY, max_batch_size=4), attached=False)
    profile = Profile(cost_rule=rule, device="pretend", points=points)
    w.batcher.attach(replace(MODEL, profile=profile))
    rows = {"long": b"l" * 7, "short": b"ss"}
    tasks = [w.send(rows[name], tenant=name) for name in rows for _ in range(400)]
    await asyncio.sleep(60 * (FIXED + 4 * PER_ROW))
    served = w.server.rows[40:]
    assert served.count(b"ss") / served.count(rows["long"]) == pytest.approx(times, rel=0.15)
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("by", ["key", "length"])
async def test_where_rows_share_no_batch_their_tenants_batches_alternate(
    policy: PolicyName, measured: bool, by: str
) -> None:
    """Whose rows came first is no reason for two batches of one tenant in a row."""
    w = world(replace(SETTINGS, policy=policy), attached=False)
    w.batcher.attach(MODEL if measured else replace(MODEL, profile=None, depth=1))
    ends, rng = now() + 10.0, random.Random(11)

    async def floods() -> None:
        while now() < ends:
            if by == "key":
                await w.send(b"flood", tenant="flood", key="flood")
            else:
                await w.send(b"flood" * 1000, tenant="flood")

    async def one() -> float:
        sent = now()
        await w.send(b"minor", tenant="mine")
        return now() - sent

    flooding = [asyncio.create_task(floods()) for _ in range(100)]
    mine = []
    while now() < ends - 1.0:
        await asyncio.sleep(rng.expovariate(0.3 * LIMIT))
        mine.append(asyncio.create_task(one()))
    tail = quantiles(await asyncio.gather(*mine), n=100)[98]
    # One that runs, one that has its place behind it, and its own, with some company to come.
    assert tail < (4.5 if measured else 3.5) * BATCH, tail / BATCH
    await asyncio.gather(*flooding)


async def test_whose_batch_has_just_ended_finds_no_two_of_another_tenant_before_its_next_row() -> (
    None
):
    """Full batches leave just in time while others may come."""
    w = world(SETTINGS)
    theirs = [w.send(*[b"flood" * 1000] * 8, tenant="flood") for _ in range(6)]
    await asyncio.sleep(0.1 * BATCH)
    await w.send(b"m", tenant="mine")
    began, seen = now(), len(w.server.batches)
    await asyncio.sleep(0)
    await w.send(b"m", tenant="mine")
    assert len(w.server.batches) - seen <= 2
    assert now() - began < 2.5 * BATCH
    await asyncio.gather(*theirs)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("key", [None, "mine"])
async def test_who_has_a_batch_at_the_server_is_behind_who_comes_meanwhile(
    policy: PolicyName, key: str | None
) -> None:
    w = world(replace(SETTINGS, policy=policy), attached=False)
    w.batcher.attach(replace(MODEL, depth=1))
    theirs = [w.send(*[b"flood" * 1000] * 8, tenant="flood") for _ in range(5)]
    await asyncio.sleep(0.1 * BATCH)
    mine = [w.send(b"m", tenant="mine", key=key) for _ in range(3)]
    await asyncio.gather(*theirs, *mine)
    assert w.server.rows.index(b"m") == 8, "the second batch is the newcomer's"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("batches", [1, 12])
@pytest.mark.parametrize("may_share", [True, False])
async def test_where_nobody_measured_the_device_large_rows_pay_for_their_time(
    policy: PolicyName, batches: int, may_share: bool
) -> None:
    """One takes as long as so many full batches of small ones."""
    w = world(replace(SETTINGS, policy=policy), attached=False)
    w.batcher.attach(replace(MODEL, profile=None))
    w.server.per_byte = batches * BATCH / 20_000

    async def calls(row: bytes) -> None:
        while True:
            await w.send(row, tenant=str(len(row)), key=None if may_share else len(row))

    tasks = [asyncio.create_task(calls(row)) for row in (b"l" * 20_000, b"s") for _ in range(40)]
    await asyncio.sleep(50 * batches * BATCH)
    seen = len(w.server.seconds)
    await asyncio.sleep(100 * batches * BATCH)
    took = list(zip(w.server.lengths[seen:], w.server.seconds[seen:], strict=True))
    large = sum(seconds for lengths, seconds in took if max(lengths) > 1)
    assert large / sum(seconds for _, seconds in took) == pytest.approx(0.5, abs=0.1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("policy", POLICIES)
async def test_who_was_served_while_the_device_stalled_is_not_blamed_for_it(
    policy: PolicyName,
) -> None:
    """Five seconds, which would be two hundred and eighty batches that others have first."""
    w = world(replace(SETTINGS, policy=policy), attached=False)
    w.batcher.attach(replace(MODEL, profile=None))

    async def calls() -> None:
        while True:
            await w.send(b"f", tenant="flood", key="flood")

    flooding = [asyncio.create_task(calls()) for _ in range(100)]
    w.server.stalls[b"mine 50"] = 5.0
    took = []
    for number in range(200):
        began = now()
        await w.send(b"mine %d" % number, tenant="mine", key="mine")
        took.append(now() - began)
        await asyncio.sleep(3 * BATCH)
    assert took[50] > 5.0
    assert sum(took[51:]) < 2 * sum(took[:50]) * len(took[51:]) / 50
    assert max(took[51:]) < 25 * BATCH
    for task in flooding:
        task.cancel()
    await asyncio.gather(*flooding, return_exceptions=True)


@pytest.mark.parametrize("rows", [2, 24])
async def test_whose_rows_wait_for_company_leave_the_device_to_others_meanwhile(rows: int) -> None:
    """Each of them is of a kind of its own, so that no company comes until its time is over."""
    patient = replace(SETTINGS, policy=PolicyName.WINDOW, max_wait_seconds=12 * BATCH)
    w = world(patient)
    numbers = count()

    async def asks_on(tenant: str, key: Callable[[], object]) -> None:
        while True:
            await w.send(tenant.encode(), tenant=tenant, key=key())

    tasks = [asyncio.create_task(asks_on("many", lambda: None)) for _ in range(64)]
    tasks += [asyncio.create_task(asks_on("odd", lambda: next(numbers))) for _ in range(rows)]
    await asyncio.sleep(120 * BATCH)
    assert sum(w.server.seconds) > 110 * BATCH
    assert w.server.rows.count(b"many") > (0.85 if rows == 2 else 0.4) * 120 * 8
    # What others were served meanwhile is no credit to those who waited of their own accord.
    seen = len(w.server.rows)
    tasks += [asyncio.create_task(asks_on("odd", lambda: "odd")) for _ in range(64)]
    await asyncio.sleep(20 * BATCH)
    assert w.server.rows[seen:].count(b"many") > 0.35 * 20 * 8
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.skipif(
    not inspect.isfunction(ReadyQueue.add), reason="what is compiled is not watched"
)
@pytest.mark.parametrize("keys", [1, 400])
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_decision_looks_at_no_more_rows_the_more_tenants_have_one_that_waits(
    policy: PolicyName, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, add = list[object](), ReadyQueue.add

    def seen(ready: ReadyQueue, entry: QueuedItem) -> Lane:
        looked.append(entry)
        return add(ready, entry)

    monkeypatch.setattr(ReadyQueue, "add", seen)
    w = world(replace(SETTINGS, policy=policy, max_wait_seconds=0.0))
    tasks = [w.send(b"m", tenant=str(number), key=number % keys) for number in range(400)]
    await asyncio.gather(*tasks)
    assert sorted(w.server.rows) == [b"m"] * 400
    offered = 400 if keys > 1 else 2 * 400
    assert len(looked) <= 2 * offered + 400
