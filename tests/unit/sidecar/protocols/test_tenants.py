"""Tenants beside each other: what one of them sends cannot make another wait."""

import asyncio
import inspect
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from statistics import median, quantiles
from typing import Any

import looptime
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile, ProfilePoint
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.spec import PolicyName
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_scheduling.core.fair_queue import FairQueue
from batchedmodel_sidecar.answers import Answer
from batchedmodel_sidecar.errors import CallError, Rejected
from batchedmodel_sidecar.protocols.headers import RequestOptions
from batchedmodel_sidecar.telemetry.tenant_counts import TenantCount
from support.examples import examples
from support.sidecar_world import FIXED, MODEL, PER_ROW, World, rows_of, world

pytestmark = pytest.mark.looptime

SETTINGS = BatchSettings(policy=PolicyName.DEADLINE, max_batch_size=8, request_timeout_seconds=30.0)
BATCH = FIXED + 8 * PER_ROW
LIMIT = 8 / BATCH
"""Rows a second of the device; some 440."""
POLICIES = list(PolicyName)


def now() -> float:
    return asyncio.get_running_loop().time()


def poisson(rate: float, seconds: float) -> list[float]:
    rng, at, times = random.Random(7), 0.0, list[float]()
    while (at := at + rng.expovariate(rate)) < seconds:
        times.append(at)
    return times


async def steady(w: World, times: list[float], began: float) -> list[float]:
    """Latencies of single rows of the interactive tenant; raises if one is not answered."""

    async def one(at: float) -> float:
        await asyncio.sleep(began + at - now())
        sent = now()
        assert rows_of(await w.send(b"mine", tenant="interactive")) == [b"mine"]
        return now() - sent

    return await asyncio.gather(*(one(at) for at in times))


async def flood(
    w: World, rate: float, seconds: float, options: RequestOptions | None = None
) -> list[str]:
    """Rows of one other tenant, ten a time; how each ended."""

    async def one() -> str:
        try:
            await w.send(b"flood", options=options or RequestOptions(), tenant="flood")
        except Rejected as refused:
            return refused.reason
        except CallError as error:
            return type(error).__name__
        return "answered"

    tasks, ends = [], now() + seconds
    while now() < ends:
        tasks += [asyncio.create_task(one()) for _ in range(10)]
        await asyncio.sleep(10 / rate)
    return await asyncio.gather(*tasks)


def first_of_all(times: list[float]) -> Iterator[float]:
    """Latencies where the same batches run and these rows go first in each.

    A batch is sent when the one before it begins: the server holds one behind the one that runs.
    """
    start, waiting = 0.0, list(times)
    while waiting:
        members = [at for at in waiting[:8] if at <= start - BATCH]
        waiting = waiting[len(members) :]
        start += BATCH
        yield from (start - at for at in members)


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_flood_of_another_tenant_moves_the_tail_by_less_than_half(
    policy: PolicyName,
) -> None:
    w = world(replace(SETTINGS, policy=policy))
    seconds = 8.0
    times = poisson(LIMIT / 5, seconds)
    flooding = asyncio.create_task(flood(w, 10 * LIMIT, seconds + 1))
    await asyncio.sleep(1)
    latencies = await steady(w, times, now())
    ends = await flooding
    tail, ideal = quantiles(latencies, n=100)[98], quantiles(first_of_all(times), n=100)[98]
    assert tail / ideal <= 1.5, f"p99 {tail:.4f} s, first of all {ideal:.4f} s"
    assert set(ends) == {"answered", Rejection.OVER_SHARE, Rejection.QUEUE_FULL}
    assert w.server.batches[10:-1].count(8) / len(w.server.batches[10:-1]) > 0.97


@pytest.mark.parametrize("callers", [12, 16, 24])
async def test_a_few_callers_that_always_ask_keep_another_for_a_batch_at_most(callers: int) -> None:
    """Too few rows wait to fill two batches, so what leaves early would pass the others by."""
    w = world(SETTINGS)
    ends = now() + 3.0

    async def asks_on() -> None:
        while now() < ends:
            await w.send(b"busy", tenant="busy")

    busy = [asyncio.create_task(asks_on()) for _ in range(callers)]
    await asyncio.sleep(0.5)
    latencies = await steady(w, [n * 0.8 * BATCH for n in range(140)], now())
    await asyncio.gather(*busy)
    # What is left of the batch that runs, a whole one at most, and their own.
    assert quantiles(latencies, n=100)[98] <= 2.5 * BATCH


async def test_very_many_tenants_of_a_row_each_are_no_reason_to_refuse_one_of_several() -> None:
    w = world(replace(SETTINGS, request_timeout_seconds=3.0))
    others = [w.send(b"other", tenant=f"t{n}") for n in range(100)]
    mine = [w.send(b"mine", tenant="interactive") for _ in range(30)]
    # All that is here takes 0.3 s; thirty turns of a hundred others would take seven.
    for one in (*others, *mine):
        assert len(rows_of(await one)) == 1
    assert now() < 1.0


@pytest.mark.parametrize("policy", POLICIES)
async def test_clumps_of_fifty_requests_move_the_tail_of_a_steady_tenant_little(
    policy: PolicyName,
) -> None:
    w = world(replace(SETTINGS, policy=policy))
    seconds = 8.0
    times = poisson(LIMIT / 5, seconds)

    async def clumps() -> None:
        tasks = []
        while now() < seconds:
            tasks += [w.send(b"agent", tenant="agents") for _ in range(50)]
            await asyncio.sleep(50 / (0.6 * LIMIT))
        await asyncio.gather(*tasks)

    agents = asyncio.create_task(clumps())
    latencies = await steady(w, times, now())
    await agents
    tail, ideal = quantiles(latencies, n=100)[98], quantiles(first_of_all(times), n=100)[98]
    assert tail / ideal <= 1.5, f"p99 {tail:.4f} s, first of all {ideal:.4f} s"


async def test_a_short_time_out_takes_no_time_from_patient_callers() -> None:
    seconds = 8.0
    times = poisson(LIMIT / 5, seconds)
    medians = []
    for timeout in (None, 1.0):
        w = world(SETTINGS)
        options = RequestOptions(timeout=timeout)
        flooding = asyncio.create_task(flood(w, 3 * LIMIT, seconds + 1, options))
        await asyncio.sleep(1)
        medians.append(median(await steady(w, times, now())))
        await flooding
    assert medians[1] <= 1.1 * medians[0]
    assert medians[1] < 3 * BATCH


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_queue_that_one_tenant_fills_has_room_for_another(policy: PolicyName) -> None:
    w = world(replace(SETTINGS, policy=policy, max_queue_size=80))
    filling = [w.send(b"flood", tenant="flood") for _ in range(70)]
    await asyncio.sleep(BATCH / 4)
    filling += [w.send(b"flood", tenant="flood") for _ in range(70)]
    with pytest.raises(Rejected, match="queue is full: 80 rows may wait"):
        await filling[-1]
    assert w.ledger.rows_waiting == 70
    mine = [w.send(b"mine", tenant="interactive") for _ in range(8)]
    await asyncio.sleep(0)
    with pytest.raises(Rejected, match="more than its share") as over:
        await w.send(b"flood", tenant="flood")
    assert over.value.status == 429
    assert over.value.retry_after is not None
    assert [rows_of(await one) for one in mine] == [[b"mine"]] * 8
    ends = await asyncio.gather(*filling, return_exceptions=True)
    refused = sum(isinstance(end, Rejected) for end in ends)
    assert list(w.ledger.tenants.rows())[:2] == [
        TenantCount("flood", served=140 - refused, refused=refused + 1, waiting=0),
        TenantCount("interactive", served=8, refused=0, waiting=0),
    ]


@pytest.mark.parametrize("policy", POLICIES)
async def test_one_tenant_has_no_more_room_than_the_manifest_says(policy: PolicyName) -> None:
    w = world(replace(SETTINGS, policy=policy, max_queue_size=80, tenant_max_share=0.25))
    filling = [w.send(b"flood", tenant="flood") for _ in range(40)]
    await asyncio.sleep(BATCH / 4)
    with pytest.raises(Rejected, match="more than its share"):
        await filling[-1]
    ends = await asyncio.gather(*filling, return_exceptions=True)
    assert sum(isinstance(end, Rejected) for end in ends) == 20
    with pytest.raises(Rejected, match="21 rows in one request are more than") as large:
        await w.send(*[b"x"] * 21, tenant="list")
    assert large.value.status == 413
    assert len(rows_of(await w.send(*[b"x"] * 20, tenant="list"))) == 20


@given(
    policy=st.sampled_from(POLICIES),
    size=st.integers(8, 60),
    calls=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 20), st.sampled_from([0, 0, 0.5, 3])),
        max_size=80,
    ),
)
@example(policy=PolicyName.DEADLINE, size=19, calls=[("a", 1, 0), ("a", 1, 0), ("a", 19, 0)])
@settings(max_examples=examples(60), deadline=None)
def test_no_more_rows_wait_than_the_queue_holds_whoever_sends_them(
    policy: PolicyName, size: int, calls: list[tuple[str, int, float]]
) -> None:
    async def run() -> None:
        w = world(replace(SETTINGS, policy=policy, max_queue_size=size))
        tasks = []
        for tenant, rows, batches in calls:
            tasks.append(w.send(*[b"x"] * rows, tenant=tenant))
            await asyncio.sleep(batches * BATCH)
            assert w.ledger.rows_waiting <= size
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, Answer | Rejected) for end in ends)
        assert w.ledger.rows_waiting == 0

    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_tenant_of_three_times_the_weight_is_served_three_times_as_much(
    policy: PolicyName,
) -> None:
    w = world(replace(SETTINGS, policy=policy, tenant_weights=(("heavy", 3.0), ("light", 1.0))))
    tasks = [w.send(name.encode(), tenant=name) for name in ("heavy", "light") * 200]
    await asyncio.sleep(20 * BATCH)
    assert w.server.rows[8:].count(b"heavy") / len(w.server.rows[8:]) == pytest.approx(
        0.75, abs=0.05
    )
    await asyncio.gather(*tasks)


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


@pytest.mark.skipif(not inspect.isfunction(FairQueue.add), reason="what is compiled is not watched")
async def test_a_row_costs_no_more_to_place_the_more_tenants_have_one_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is hidden then, and nobody is shown again for each who comes."""
    looked, add = list[object](), FairQueue.add

    def seen(line: FairQueue[object], tenant: str, key: object, **what: Any) -> None:
        looked.append(key)
        add(line, tenant, key, **what)

    monkeypatch.setattr(FairQueue, "add", seen)
    w = world(replace(SETTINGS, policy=PolicyName.GREEDY))
    tasks = []
    for number in range(400):
        tasks.append(w.send(b"m", tenant=str(number)))
        await asyncio.sleep(0.1 / LIMIT)
    await asyncio.gather(*tasks)
    assert len(looked) <= 2 * len(tasks)


async def test_all_that_one_tenant_alone_sends_is_seen_by_the_policy() -> None:
    w = world(SETTINGS)
    tasks = [w.send(b"%03d" % n, tenant="only") for n in range(200)]
    await asyncio.gather(*tasks)
    assert w.server.rows == [b"%03d" % n for n in range(200)]


@pytest.mark.parametrize("policy", POLICIES)
async def test_whoever_leaves_or_is_failed_each_call_ends_once(policy: PolicyName) -> None:
    rng = random.Random(3)
    w = world(replace(SETTINGS, policy=policy, max_queue_size=300))
    tasks = []
    for _ in range(600):
        rows = [b"x"] * rng.choice([1, 1, 1, 2, 30])
        tasks.append(w.send(*rows, tenant=rng.choice("abc")))
        if rng.random() < 0.3:
            rng.choice(tasks).cancel()
        if rng.random() < 0.05:
            await asyncio.sleep(rng.random() * BATCH)
        if rng.random() < 0.01:
            w.batcher.configure(replace(w.batcher.settings, policy=rng.choice(POLICIES)))
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks, return_exceptions=True)
        await w.batcher.idle()
    assert w.ledger.rows_waiting == w.ledger.rows_live == 0
